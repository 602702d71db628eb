"""Device runtimes; see `base` for the contract and docs/paths.md for how to add one."""

from __future__ import annotations

import functools

from .base import Runtime

__all__ = ["Runtime", "runtime_of"]


@functools.cache
def runtime_of(kind: str) -> Runtime | None:
    """The runtime of a torch device type; None for CPUs, whose memory needs none, and for devices without one here."""
    if kind != "cuda":
        return None
    from .cuda import load

    return load()
