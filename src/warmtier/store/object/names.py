"""Names in the bucket. Everything a reader or a collector must know before it fetches an object is in its name.

``ROOT/m/TIME-EXPIRY-WRITER-SESSION-NUMBER-KIND``  manifests; sorted by time of publication over all writers, so that
                                                   one LIST after the last seen name finds what everybody published
``ROOT/p/WRITER/EXPIRY-SESSION-NUMBER``            packs; sorted by expiry: a collector meets the expired ones first

ROOT is ``PREFIX/warmtier-v1/NAMESPACE``. A session is one opening of the store by a writer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from warmtier.core.types import Namespace

VERSION: Final = "warmtier-v1"
_TIME_DIGITS: Final = 13
_EXPIRY_DIGITS: Final = 11
_SESSION_DIGITS: Final = 16
_NUMBER_DIGITS: Final = 8
_SESSION: Final = rf"([0-9a-f]{{{_SESSION_DIGITS}}})"
_NUMBER: Final = rf"([0-9]{{{_NUMBER_DIGITS}}})"
_EXPIRY: Final = rf"([0-9]{{{_EXPIRY_DIGITS}}})"
_MANIFEST: Final = re.compile(rf"([0-9]{{{_TIME_DIGITS}}})-{_EXPIRY}-([A-Za-z0-9._-]+)-{_SESSION}-{_NUMBER}-([df])")
_PACK: Final = re.compile(rf"{_EXPIRY}-{_SESSION}-{_NUMBER}")


@dataclass(frozen=True, slots=True)
class ManifestName:
    """What the name of a manifest says. A ``full`` one lists all packs of its writer and replaces earlier ones.

    Times are by the server's clock, since 1970. After ``expires_s`` all packs that it names have expired.
    """

    time_ms: int
    expires_s: int
    writer: str
    session: str
    number: int
    full: bool

    def __str__(self) -> str:
        kind = "f" if self.full else "d"
        times = f"{self.time_ms:0{_TIME_DIGITS}d}-{self.expires_s:0{_EXPIRY_DIGITS}d}"
        return f"{times}-{self.writer}-{self.session}-{self.number:0{_NUMBER_DIGITS}d}-{kind}"


@dataclass(frozen=True, slots=True)
class PackName:
    """What the name of a pack says. ``expires_s`` is in seconds since 1970, by the server's clock."""

    writer: str
    expires_s: int
    session: str
    number: int

    def __str__(self) -> str:
        return f"{self.writer}/{self.expires_s:0{_EXPIRY_DIGITS}d}-{self.session}-{self.number:0{_NUMBER_DIGITS}d}"


def root_of(prefix: str, namespace: Namespace) -> str:
    """Return where everything of one namespace lies below ``prefix``."""
    parts = [prefix.strip("/"), VERSION, namespace.hex()]
    return "/".join(part for part in parts if part)


def version_root(prefix: str) -> str:
    """Return where everything of this format lies below ``prefix``, whatever the namespace."""
    return "/".join(part for part in (prefix.strip("/"), VERSION) if part)


def watermark(time_ms: int) -> str:
    """Return a name that sorts before every manifest published at ``time_ms`` or later."""
    return f"{max(0, time_ms):0{_TIME_DIGITS}d}"


def parse_manifest(name: str) -> ManifestName | None:
    """Return what the last component of a path says, or None when it is no manifest of ours."""
    match = _MANIFEST.fullmatch(name)
    if match is None:
        return None
    time_text, expiry, writer, session, number, kind = match.groups()
    return ManifestName(int(time_text), int(expiry), writer, session, int(number), full=kind == "f")


def parse_pack(writer: str, name: str) -> PackName | None:
    """Return what the last component of a path below ``p/WRITER`` says, or None when it is no pack of ours."""
    match = _PACK.fullmatch(name)
    if match is None:
        return None
    expiry, session, number = match.groups()
    return PackName(writer, int(expiry), session, int(number))
