"""A ring of slots in memory that two processes share: one writes, one reads, with no lock and no system call.

Layout: the writer's count of published slots at byte 0, the reader's count of consumed ones at byte 64, each alone on
its cache line; from byte 4096 on the slots, each a header (tag, message length, bytes in this slot) and its payload.
A count is one aligned 64-bit store, made after the payload; processors that keep the order of stores (x86-64) need
nothing more, and others are kept in order by the interpreter's own locking between the two statements.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any

import numpy as np

SLOTS, SLOT = 8, 256 * 1024
_FIRST, _ALIGN = 4096, 64
HEADER = struct.Struct("=QQQ")

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Ring:
    """One end of a ring over a file descriptor, which may be closed afterwards."""

    def __init__(self, descriptor: int, slots: int, slot: int) -> None:
        self.slots, self.slot = slots, slot
        self.map = mmap.mmap(descriptor, length(slots, slot))
        self._published = np.frombuffer(self.map, np.uint64, 1, 0)
        self._consumed = np.frombuffer(self.map, np.uint64, 1, 64)
        self._payload: list[Bytes] = [
            np.frombuffer(self.map, np.uint8, slot, self._at(place) + _ALIGN) for place in range(slots)
        ]
        self._mine = 0

    def _at(self, place: int) -> int:
        return _FIRST + place * (_ALIGN + self.slot)

    def room(self) -> Bytes | None:
        """The writer's next slot, if it is free."""
        if self._mine - int(self._consumed[0]) >= self.slots:
            return None
        return self._payload[self._mine % self.slots]

    def publish(self, tag: int, total: int, count: int) -> None:
        """Hand the slot that `room` gave to the reader."""
        HEADER.pack_into(self.map, self._at(self._mine % self.slots), tag, total, count)
        self._mine += 1
        self._published[0] = self._mine

    def peek(self) -> tuple[int, int, int] | None:
        """The header of the reader's next slot, if one is published."""
        if int(self._published[0]) == self._mine:
            return None
        tag, total, count = HEADER.unpack_from(self.map, self._at(self._mine % self.slots))
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
    os.ftruncate(descriptor, length(SLOTS, SLOT))
    return descriptor
