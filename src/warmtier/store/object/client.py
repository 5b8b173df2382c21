"""Requests to object storage, on an event loop in a thread of its own. Every request has a deadline.

Texts of the server are never passed on: those of S3 can repeat the access key. What is told is the kind of failure
and the server's error code.
"""

from __future__ import annotations

import asyncio
import enum
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, TypeVar

from warmtier.core.extras import require
from warmtier.store.base import Traffic

T = TypeVar("T")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_REFUSALS: Final = {
    "AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "NoSuchBucket",
    "AuthenticationFailed", "AuthorizationFailure",
}  # fmt: skip
_LIST_PAGE: Final = 1000
_DELETE_BATCH: Final = 100  # a server may take milliseconds for each


class Failure(enum.StrEnum):
    """Why a request did not succeed."""

    ABSENT = "absent"
    EXISTS = "exists"
    DENIED = "denied"
    SHORT = "short"  # the object ends before the range starts
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"


class RequestError(Exception):
    """A request that did not succeed. ``code`` is the server's word for it, if it gave one."""

    def __init__(self, failure: Failure, code: str) -> None:
        super().__init__(f"{failure.value} ({code})" if code else failure.value)
        self.failure = failure
        self.code = code


@dataclass(frozen=True, slots=True)
class Listed:
    """One object of a listing. ``modified_s`` is in seconds since 1970, by the server's clock."""

    path: str
    size_bytes: int
    modified_s: float


class ObjectClient:
    """A bucket or directory behind ``store``, an object store of obstore.

    Coroutines run on the client's loop only (``run`` and ``spawn`` bring them there). ``keeps_buffers``: the store
    keeps what it is given without a copy, as obstore's memory store does, so bytes are copied before they are sent.
    ``ordered``: listings come in the order of paths.
    """

    def __init__(self, store: object, *, keeps_buffers: bool = False, ordered: bool = True) -> None:
        self.ordered = ordered
        self._store = store
        self._keeps_buffers = keeps_buffers
        self._obstore: ModuleType = require("obstore", extra="s3", purpose="the object tier")
        self._puts = self._gets = self._lists = self._deletes = self._failures = 0
        self._sent_bytes = self._received_bytes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="warmtier-object", daemon=True)
        self._thread.start()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start ``coroutine`` on the loop. Any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call ``function`` on the loop. Any thread."""
        self._loop.call_soon_threadsafe(function)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run ``coroutine`` on the loop and wait for it. Raises RequestError after ``timeout_s``."""
        future = self.spawn(coroutine)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            future.cancel()
            raise RequestError(Failure.TIMEOUT, "") from error

    def close(self) -> None:
        """End the loop and its thread. What still runs is cancelled."""
        if self._loop.is_closed():
            return
        self.spawn(_cancel_others()).result(5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()

    def traffic(self) -> Traffic:
        """Return what was asked so far."""
        return Traffic(
            puts=self._puts,
            gets=self._gets,
            lists=self._lists,
            deletes=self._deletes,
            failures=self._failures,
            sent_bytes=self._sent_bytes,
            received_bytes=self._received_bytes,
        )

    async def put_new(self, path: str, data: memoryview | bytes, *, timeout_s: float) -> None:
        """Create an object of ``data``. Raises RequestError, EXISTS if there is one of that name."""
        self._puts += 1
        self._sent_bytes += len(data)
        payload = bytes(data) if self._keeps_buffers else data
        request = self._obstore.put_async(self._store, path, payload, mode="create", use_multipart=False)
        await self._within(request, timeout_s)

    async def get(self, path: str, start: int, length: int, *, timeout_s: float) -> memoryview:
        """Return ``length`` bytes from ``start``, or fewer where the object ends before. Raises RequestError."""
        self._gets += 1
        request = self._obstore.get_range_async(self._store, path, start=start, length=length)
        data = memoryview(await self._within(request, timeout_s))
        self._received_bytes += data.nbytes
        return data

    async def list_after(
        self, prefix: str, after: str | None, *, timeout_s: float, until: Callable[[Listed], bool] | None = None
    ) -> list[Listed]:
        """Return the objects below ``prefix`` with paths above ``after``; stop where ``until`` says so.

        The time is for each page of the listing. Raises RequestError.
        """
        found: list[Listed] = []
        stream = self._obstore.list(self._store, prefix, offset=after, chunk_size=_LIST_PAGE).__aiter__()
        while True:
            self._lists += 1
            page = await self._within(_next_page(stream), timeout_s)
            for meta in page or ():
                item = Listed(str(meta["path"]), int(meta["size"]), meta["last_modified"].timestamp())
                if until is not None and until(item):
                    return found
                found.append(item)
            if page is None or len(page) < _LIST_PAGE:
                return found

    async def directories(self, prefix: str, *, timeout_s: float) -> list[str]:
        """Return the names of the directories directly below ``prefix``. Raises RequestError."""
        self._lists += 1
        listing = await self._within(self._obstore.list_with_delimiter_async(self._store, prefix), timeout_s)
        return [str(path).rstrip("/").rsplit("/", 1)[-1] for path in listing["common_prefixes"]]

    async def delete(self, paths: Sequence[str], *, timeout_s: float) -> None:
        """Delete objects; absent ones are fine. The time is for each batch. Raises RequestError."""
        for start in range(0, len(paths), _DELETE_BATCH):
            batch = list(paths[start : start + _DELETE_BATCH])
            self._deletes += 1
            try:
                await self._within(self._obstore.delete_async(self._store, batch), timeout_s)
            except RequestError as error:
                if error.failure is not Failure.ABSENT:
                    raise
                await self._delete_singly(batch, timeout_s)

    async def _delete_singly(self, paths: Sequence[str], timeout_s: float) -> None:
        for path in paths:
            self._deletes += 1
            try:
                await self._within(self._obstore.delete_async(self._store, path), timeout_s)
            except RequestError as error:
                if error.failure is not Failure.ABSENT:
                    raise

    async def _within(self, request: Awaitable[T], timeout_s: float) -> T:
        try:
            async with asyncio.timeout(timeout_s):
                return await request
        except TimeoutError:
            self._failures += 1
            raise RequestError(Failure.TIMEOUT, "") from None
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, its text must not get out
            failure = self._failure(error)
            self._failures += failure not in {Failure.ABSENT, Failure.EXISTS}
            # The cause is dropped on purpose: its text may hold what must not be logged.
            raise RequestError(failure, _code(error)) from None

    def _failure(self, error: Exception) -> Failure:
        errors = self._obstore.exceptions
        if isinstance(error, FileNotFoundError | errors.NotFoundError):
            # A missing bucket is no missing object: everything would look like a miss for ever.
            return Failure.DENIED if _code(error) == "NoSuchBucket" else Failure.ABSENT
        if isinstance(error, errors.AlreadyExistsError | errors.PreconditionError):
            return Failure.EXISTS
        if isinstance(error, errors.PermissionDeniedError | errors.UnauthenticatedError | PermissionError):
            return Failure.DENIED
        text = str(error)
        if _code(error) in _REFUSALS or "403 Forbidden" in text or "401 Unauthorized" in text:
            return Failure.DENIED
        if "InvalidRange" in text or "Invalid range" in text:
            return Failure.SHORT
        return Failure.TIMEOUT if "timed out" in text else Failure.UNAVAILABLE


async def _next_page(stream: AsyncIterator[Sequence[T]]) -> Sequence[T] | None:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        return None


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _code(error: Exception) -> str:
    found = _CODE.search(str(error))
    return found.group(1) if found else ""
