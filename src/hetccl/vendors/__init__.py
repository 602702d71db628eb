"""Vendor adaptors; see `base` for the contract and docs/vendors.md for how to add one."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points

import torch

from ..errors import ConfigurationError
from .base import Vendor

__all__ = ["Vendor", "default", "find", "names"]


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="hetccl.vendors")}


def names() -> tuple[str, ...]:
    """The adaptors that are installed; their libraries may still be absent."""
    return tuple(sorted(_installed()))


def find(name: str) -> Vendor:
    """The adaptor of this name. Raises ConfigurationError where there is none."""
    point = _installed().get(name)
    if point is None:
        raise ConfigurationError(f"there is no vendor adaptor {name!r}; HETCCL_VENDOR may be {', '.join(names())}")
    vendor: Vendor = point.load()
    return vendor


def default() -> Vendor:
    """The adaptor for the devices that this process's torch has."""
    return find("nccl" if torch.cuda.is_available() else "gloo")
