"""Jobs under way in the executor, and their deadlines."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from warmtier.core.types import JobId, Key
from warmtier.tiering.request import Request, Slots


class JobKind(enum.Enum):
    """What a job does."""

    PROMOTE = enum.auto()
    DEMOTE = enum.auto()
    MIGRATE = enum.auto()


@dataclass(slots=True, eq=False)
class Job:
    """One job from its action until ``job_done``. ``start`` is the path index of its first key."""

    job_id: JobId
    kind: JobKind
    tier: str
    keys: Sequence[Key]
    size_bytes: int
    deadline_s: float
    epoch: int
    slots: Slots
    start: int = 0
    source: str | None = None
    late: bool = False
    waiters: set[Request] = field(default_factory=set)
    owner: Request | None = None


class JobTable:
    """All jobs by id, and the next deadline. Bounded by the tiers' budgets."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, Job] = {}
        self._deadlines: list[tuple[float, JobId]] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def new_id(self) -> JobId:
        """Return an id never used before."""
        self._last += 1
        return JobId(self._last)

    def add(self, job: Job) -> None:
        """Keep a job until ``pop``."""
        self._jobs[job.job_id] = job
        heapq.heappush(self._deadlines, (job.deadline_s, job.job_id))

    def pop(self, job_id: JobId) -> Job | None:
        """Return and forget a job, None if it is not known."""
        job = self._jobs.pop(job_id, None)
        if len(self._deadlines) > 2 * len(self._jobs) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._jobs]
            heapq.heapify(self._deadlines)
        return job

    def overdue(self, now: float) -> list[Job]:
        """Return the jobs whose deadline has passed and mark them late. Each is returned once."""
        found = []
        while self._deadlines and self._deadlines[0][0] <= now:
            job = self._jobs.get(heapq.heappop(self._deadlines)[1])
            if job is not None and not job.late:
                job.late = True
                found.append(job)
        return found
