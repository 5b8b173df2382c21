"""The error tree of warmtier. Expected outcomes (a miss, a refused store) are values, never these.

WarmtierError
 +-- UsageError              the caller's words are wrong: a flag, a hint, an argument          exit 2
 |    +-- ConfigError        a configuration value, with its place and the nearest valid name   exit 2
 +-- RequirementError        something the machine lacks: memory, a package, a version          exit 3
 |    +-- UnsupportedError   a model, engine or platform that warmtier refuses by name          exit 3
 +-- TargetError             a server or store that cannot be reached                           exit 4
 +-- CheckFailedError        a check ran and did not pass                                       exit 1
 +-- StoreError              a store that cannot be opened or has failed as a whole
 |    +-- StoreLockedError   another engine holds this store
 +-- InternalError           a broken invariant of our own: always a bug
"""

from __future__ import annotations


class WarmtierError(Exception):
    """Base of all errors raised by warmtier.

    ``message`` says what and where, ``why`` the reason, ``fix`` what the reader can do. ``exit_code`` is what the
    command line returns for it.
    """

    exit_code: int = 1

    def __init__(self, message: str, *, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        parts = [self.message]
        if self.why:
            parts.append(f"why: {self.why}")
        if self.fix:
            parts.append(f"fix: {self.fix}")
        return "\n  ".join(parts)


class UsageError(WarmtierError):
    """A flag, argument or hint that cannot be used as given."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration value that is unknown, malformed or contradicts another; the message names its place."""


class RequirementError(WarmtierError):
    """The machine or installation lacks something: memory, a package, a supported version."""

    exit_code = 3


class UnsupportedError(RequirementError):
    """A model, engine version or platform that is refused by name."""


class TargetError(WarmtierError):
    """A server that cannot be reached or answers with something else than expected."""

    exit_code = 4


class CheckFailedError(WarmtierError):
    """A check ran to its end and did not pass."""

    exit_code = 1


class StoreError(WarmtierError):
    """A store that cannot be opened or has failed as a whole. Single chunks never raise: they are misses."""

    exit_code = 3


class StoreLockedError(StoreError):
    """Another live engine holds this store's lock."""


class InternalError(WarmtierError):
    """An invariant of warmtier itself does not hold. Always a bug; please report it."""
