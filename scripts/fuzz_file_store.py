"""Kill a writer of the file store at random moments and check what it left: 0 corrupt, 0 phantom, within capacity.

Each round starts a process that opens the store, stores chunks from two threads, reads and deletes, and perhaps closes;
SIGKILL hits it anywhere between its start and its end. Then the store is opened here and every chunk in it is read.

corrupt   read back with other bytes, or a listed chunk that fails its checksum
phantom   listed, but never offered by any writer
lost      acknowledged, not evicted, not deleted, and not there (roomy rounds: nothing needs to be evicted)
unreported  gone in tight rounds: evicted by the very call that was killed before it could say so
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from warmtier.core.types import Key, Namespace
from warmtier.store.base import Read, ReadOutcome, Write, WriteOutcome
from warmtier.store.file import Durability, FileStore

SEGMENT_BYTES = 1 << 20
ROOMY_BYTES = 1 << 30
TIGHT_BYTES = 12 << 20
ROUNDS_PER_DIRECTORY = 10
SIZES = (100, 4096, 9_000, 16_384, 30_000)


def key_of(number: int) -> Key:
    """Return the key of chunk ``number``."""
    return Key(b"fuzz" + number.to_bytes(28, "big"))


def number_of(key: Key) -> int:
    """Return the number in a key."""
    return int.from_bytes(key[4:], "big")


def content_of(number: int) -> bytes:
    """Return the one right content of chunk ``number``."""
    rng = random.Random(number)
    return rng.randbytes(rng.choice(SIZES))


def make_store(directory: Path, capacity_bytes: int, durability: str) -> FileStore:
    """Return the store that writers and the checker share."""
    return FileStore(
        directory,
        Namespace(b"fuzz" * 4),
        capacity_bytes=capacity_bytes,
        segment_bytes=SEGMENT_BYTES,
        durability=Durability(durability),
    )


@dataclass
class Journal:
    """What the writer said before it died. One line per call, each one write to a file."""

    offered_to: int = 0
    acknowledged: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)  # evicted, or about to be deleted
    opened: bool = False
    closed: bool = False

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Parse; a line cut by the kill cannot happen, since each is one small write."""
        journal = cls()
        for line in path.read_text().splitlines():
            kind, *words = line.split()
            numbers = [int(word) for word in words]
            match kind:
                case "open":
                    journal.opened = True
                case "closed":
                    journal.closed = True
                case "offer":
                    journal.offered_to = max(journal.offered_to, *numbers)
                case "stored":
                    journal.acknowledged += numbers
                case "gone":
                    journal.gone += numbers
        return journal


def child(arguments: argparse.Namespace) -> None:
    """Write until told to stop by time, then close. Killed somewhere along the way."""
    out = os.open(arguments.journal, os.O_WRONLY | os.O_APPEND)

    def say(kind: str, numbers: Sequence[int] = ()) -> None:
        os.write(out, f"{kind} {' '.join(map(str, numbers))}\n".encode())

    store = make_store(arguments.child, arguments.capacity, arguments.durability)
    store.open()
    say("open")
    stop_at = time.monotonic() + arguments.run_s
    lock = threading.Lock()
    following = arguments.first

    def work(seed: int) -> None:
        nonlocal following
        rng = random.Random(seed)
        while time.monotonic() < stop_at:
            with lock:
                numbers = range(following, following + rng.choice((1, 4, 16, 64)))
                following = numbers.stop
            say("offer", [numbers.stop])
            contents = [content_of(n) for n in numbers]
            result = store.put([Write(key_of(n), memoryview(c)) for n, c in zip(numbers, contents, strict=True)])
            say("gone", [number_of(key) for key in result.evicted])
            say("stored", [n for n, o in zip(numbers, result.outcomes, strict=True) if o is WriteOutcome.STORED])
            some = rng.randrange(arguments.first, following)
            if rng.random() < 0.2:
                store.get([Read(key_of(some), memoryview(bytearray(len(content_of(some)))))])
            elif rng.random() < 0.05:
                say("gone", [some])
                store.delete([key_of(some)])

    workers = [threading.Thread(target=work, args=(arguments.seed * 2 + n,)) for n in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    store.close()
    say("closed")


@dataclass
class Tally:
    """Sums over the rounds of one durability."""

    durability: str
    rounds: int = 0
    killed_while_opening: int = 0
    closed_in_time: int = 0
    acknowledged: int = 0
    reread: int = 0
    corrupt: int = 0
    phantom: int = 0
    lost: int = 0
    unreported: int = 0
    torn_dropped: int = 0
    over_capacity: int = 0


class Fuzz:
    """Runs rounds and counts."""

    def __init__(self, root: Path, durability: str, seed: int) -> None:
        self.tally = Tally(durability)
        self._root = root
        self._rng = random.Random(f"{seed} {durability}")
        self._number = 0
        self._alive: set[int] = set()
        self._directory = root / "none"
        self._capacity = ROOMY_BYTES

    def round(self) -> None:
        """Start a writer, kill it, check."""
        if self.tally.rounds % ROUNDS_PER_DIRECTORY == 0:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = self._root / f"dir{self.tally.rounds}"
            self._alive = set()
            self._capacity = TIGHT_BYTES if self.tally.rounds // ROUNDS_PER_DIRECTORY % 3 == 2 else ROOMY_BYTES
        self.tally.rounds += 1
        journal = self._run_writer()
        self.tally.killed_while_opening += not journal.opened
        self.tally.closed_in_time += journal.closed
        self.tally.acknowledged += len(journal.acknowledged)
        self._number = max(self._number, journal.offered_to)
        if self._directory.exists():
            self._check((self._alive | set(journal.acknowledged)) - set(journal.gone))

    def _run_writer(self) -> Journal:
        path = self._root / "journal"
        path.write_text("")
        run_s = self._rng.uniform(0.1, 0.7)
        command = [sys.executable, __file__, "--child", str(self._directory), "--journal", str(path)]
        command += ["--first", str(self._number), "--capacity", str(self._capacity), "--run-s", str(run_s)]
        command += ["--durability", self.tally.durability, "--seed", str(self._rng.randrange(1 << 30))]
        process = subprocess.Popen(command)
        try:
            if self._rng.random() < 0.85:  # else the kill may hit the start itself
                while process.poll() is None and "open" not in path.read_text():
                    time.sleep(0.002)
                time.sleep(self._rng.uniform(0.0, run_s * 1.2))
            else:
                time.sleep(self._rng.uniform(0.1, 0.6))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"the writer failed by itself: exit {process.returncode}")
        return Journal.read(path)

    def _check(self, expected: set[int]) -> None:
        tally = self.tally
        tally.over_capacity += _blocks(self._directory) > self._capacity
        store = make_store(self._directory, self._capacity, tally.durability)
        listed = dict(store.open())
        tally.torn_dropped += store.recovery.torn if store.recovery else 0
        tally.over_capacity += _blocks(self._directory) > self._capacity
        numbers = sorted(number_of(key) for key in listed)
        tally.phantom += sum(number >= self._number for number in numbers)
        readable = set()
        for first in range(0, len(numbers), 64):
            some = numbers[first : first + 64]
            buffers = [bytearray(listed[key_of(n)]) for n in some]
            outcomes = store.get([Read(key_of(n), memoryview(b)) for n, b in zip(some, buffers, strict=True)])
            for number, buffer, outcome in zip(some, buffers, outcomes, strict=True):
                if outcome is ReadOutcome.OK and buffer == content_of(number):
                    readable.add(number)
                else:
                    tally.corrupt += 1
        tally.reread += len(readable)
        missing = len(expected - readable)
        if self._capacity == ROOMY_BYTES:
            tally.lost += missing
        else:
            tally.unreported += missing
        self._alive = readable
        if self._rng.random() < 0.5:
            store.close()
        else:
            _drop_without_closing(store)


def _drop_without_closing(store: FileStore) -> None:
    """End as a killed process does, so that the next writer has to recover without a fresh snapshot."""
    session = store._session  # noqa: SLF001 - there is no other way to stop without closing
    if session is not None:
        session.abandon()


def _blocks(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in [directory, *directory.iterdir()])


def main() -> int:
    """Run the rounds for each durability; exit 1 if anything but loss was found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=20, help="rounds for each durability")
    options.add_argument("--chunks", type=int, default=0, help="go on until so many were acknowledged, each")
    options.add_argument("--durability", choices=[d.value for d in Durability], action="append")
    options.add_argument("--seed", type=int, default=None)
    options.add_argument("--directory", type=Path, help="where to work (default: the temporary directory)")
    options.add_argument("--format", choices=("text", "json"), default="text")
    for name, kind in (("child", Path), ("journal", Path), ("first", int), ("capacity", int), ("run-s", float)):
        options.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.child:
        arguments.durability = arguments.durability[0]
        child(arguments)
        return 0
    seed = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    tallies = []
    for durability in arguments.durability or [d.value for d in Durability]:
        with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="warmtier-fuzz-") as root:
            fuzz = Fuzz(Path(root), durability, seed)
            while fuzz.tally.rounds < arguments.rounds or fuzz.tally.acknowledged < arguments.chunks:
                fuzz.round()
        tallies.append(fuzz.tally)
    return _report(tallies, seed, arguments.format)


def _report(tallies: list[Tally], seed: int, style: str) -> int:
    if style == "json":
        print(json.dumps({"seed": seed, "tallies": [asdict(tally) for tally in tallies]}))
    else:
        print(f"seed {seed}")
        for tally in tallies:
            print(", ".join(f"{name} {value}" for name, value in asdict(tally).items()))
    bad = sum(t.corrupt + t.phantom + t.over_capacity for t in tallies)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
