"""Optional packages: imported where they are needed, with the command that installs them when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from warmtier.core.errors import RequirementError


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import ``module`` or raise RequirementError naming the extra of warmtier that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and not module.startswith(error.name):
            raise
        fix = f"pip install 'warmtier[{extra}]'"
        raise RequirementError(f"{purpose} needs the package {module!r}", why="it is not installed", fix=fix) from error
