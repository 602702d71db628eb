"""A ring of slots in memory that two processes share: one writes, one reads, with no lock and no system call.

Layout: the writer's count of published slots at byte 0, the reader's count of consumed ones at byte 64, each alone on
its cache line; from byte 4096 on the slots, each a header (tag, message length, bytes in this slot) and its payload.
A count is one aligned 64-bit store, made after the payload. That order reaches the other process only on processors
that keep the order of stores, since Python has no memory fence: `ORDERED` says whether this one does.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct

import numpy as np

from .base import Bytes

ORDERED = platform.machine() in ("x86_64", "AMD64")
SLOTS, SLOT = 8, 256 * 1024
_FIRST, _ALIGN = 4096, 64
HEADER = struct.Struct("=QQQ")


class Ring:
    """One end of a ring over a file descriptor, which may be closed afterwards."""

    def __init__(self, descriptor: int, slots: int, slot: int) -> None:
        """Raises ValueError where the memory is smaller than such a ring."""
        self.slots, self.slot = slots, slot
        self._map = mmap.mmap(descriptor, length(slots, slot))
        counts = memoryview(self._map)[:_FIRST].cast("Q")
        self._published, self._consumed = counts[0:1], counts[_ALIGN // 8 : _ALIGN // 8 + 1]
        self._places = [_FIRST + place * (_ALIGN + slot) for place in range(slots)]
        self._payload: list[Bytes] = [np.frombuffer(self._map, np.uint8, slot, at + _ALIGN) for at in self._places]
        self._mine = 0

    def room(self) -> Bytes | None:
        """The writer's next slot, if it is free."""
        if self._mine - self._consumed[0] >= self.slots:
            return None
        return self._payload[self._mine % self.slots]

    def publish(self, tag: int, total: int, count: int) -> None:
        """Hand the slot that `room` gave to the reader."""
        HEADER.pack_into(self._map, self._places[self._mine % self.slots], tag, total, count)
        self._mine += 1
        self._published[0] = self._mine

    def peek(self) -> tuple[int, int, int] | None:
        """The header of the reader's next slot, if one is published."""
        if self._published[0] == self._mine:
            return None
        tag, total, count = HEADER.unpack_from(self._map, self._places[self._mine % self.slots])
        return tag, total, count

    def payload(self) -> Bytes:
        return self._payload[self._mine % self.slots]

    def consume(self) -> None:
        self._mine += 1
        self._consumed[0] = self._mine


def length(slots: int, slot: int) -> int:
    return _FIRST + slots * (_ALIGN + slot)


def create() -> int:
    """A descriptor of new shared memory without a name: nothing can be left behind, whatever dies."""
    descriptor = os.memfd_create("hetccl", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, length(SLOTS, SLOT))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
