"""Writes the access log: a thread of its own, files of bounded size, keys and names as keyed hashes.

The scheduler's thread only puts records into a queue. When the queue is full, records are dropped and counted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Final

import msgspec

from warmtier.core.errors import RequirementError
from warmtier.core.types import Key
from warmtier.trace.access_log import AccessRecord, KeyHasher, encode_record

_SECRET_BYTES: Final = 32


class AccessLog:
    """Appends to ``path``; at ``capacity_bytes / files`` it becomes ``path.1`` and so on; the oldest is removed.

    The secret of the hashes lies in ``path.key`` (0600), so that logs of one engine can be joined over restarts. Raises
    RequirementError from construction when the files cannot be made. ``dropped`` and ``written`` may be read anywhere.
    """

    def __init__(
        self,
        path: Path,
        *,
        capacity_bytes: int,
        files: int = 4,
        max_queue: int = 4096,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._path = path
        self._file_bytes = capacity_bytes // files
        self._files = files
        self._max_queue = max_queue
        self._log = log
        self._queue: SimpleQueue[tuple[AccessRecord, Sequence[Key]] | None] = SimpleQueue()
        self.dropped = 0
        self.written = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._hasher = KeyHasher(_secret(path.with_name(path.name + ".key")))
            self._file = self._open()
        except OSError as error:
            raise RequirementError(f"cannot write the access log {path}", why=str(error)) from error
        self._thread = threading.Thread(target=self._run, name="warmtier-access-log", daemon=True)
        self._thread.start()

    def write(self, record: AccessRecord, keys: Sequence[Key]) -> None:
        """Queue a record. Never blocks."""
        if self._queue.qsize() >= self._max_queue:
            self.dropped += 1
        else:
            self._queue.put((record, keys))

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is queued and close the file. Blocks up to ``timeout_s``."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        failing = False
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: self._file.close())
            while (item := self._queue.get()) is not None:
                try:
                    self._append(*item)
                    failing = False
                except OSError as error:
                    self.dropped += 1
                    if not failing:
                        self._log(f"The access log {self._path} cannot be written: {error}")
                    failing = True

    def _append(self, record: AccessRecord, keys: Sequence[Key]) -> None:
        line = encode_record(
            msgspec.structs.replace(
                record,
                keys=self._hasher.pack(keys),
                session=None if record.session is None else self._hasher.name(record.session),
                tenant=None if record.tenant is None else self._hasher.name(record.tenant),
            )
        )
        if self._file.tell() + len(line) > self._file_bytes:
            self._rotate()
        self._file.write(line)
        self._file.flush()
        self.written += 1

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._files - 1, 0, -1):
            older = self._numbered(number)
            if number == self._files - 1:
                older.unlink(missing_ok=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    older.rename(self._numbered(number + 1))
        self._path.rename(self._numbered(1))
        self._file = self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _open(self) -> IO[bytes]:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        return os.fdopen(descriptor, "ab")


def _secret(path: Path) -> bytes:
    """Return the secret in ``path``, made on first use."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_hex(_SECRET_BYTES // 2).encode())
    return path.read_bytes()[:64]
