"""Paths between two ranks; see `base` for the contract and docs/paths.md for how to add one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.metadata import entry_points

from ..errors import ConfigurationError
from .base import Transport

__all__ = ["Transport", "available"]

_PREFERENCE = {"hostmap": 0, "shm": 1, "tcp": 3}
"""Best first; paths of others come between, in order of name."""


@functools.cache
def _installed() -> dict[str, Transport]:
    found = {point.name: point for point in entry_points(group="hetccl.transports")}
    order = sorted(found, key=lambda name: (_PREFERENCE.get(name, 2), name))
    return {name: found[name].load() for name in order}


def available(names: Sequence[str] | None = None) -> tuple[Transport, ...]:
    """The installed paths, best first, or those of `names` in their order. Raises ConfigurationError for unknown."""
    installed = _installed()
    unknown = [name for name in names or () if name not in installed]
    if unknown:
        raise ConfigurationError(
            f"HETCCL_PATHS names {unknown[0]}, which is no path here; known are {', '.join(installed)}"
        )
    return tuple(installed[name] for name in names or installed)
