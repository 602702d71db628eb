"""`hostmap`: between a device and a CPU, or devices of different vendors, of one host: a ring of slots in host memory.

Each side that has a device registers the memory with its runtime. Then the device's own copy engine fills and empties
the slots, and its stream writes and awaits the two counts by which the sides take turns: a whole message is put on the
stream at once, and no processor is in the data path. A side on a CPU copies by itself and polls the counts.

Layout: 32-bit counts of slots filled (byte 0) and emptied (64), 64-bit counts of messages described (128) and checked
(192), each written by one side only; from 4096 on the descriptions (tag, length) of messages, which only the processors
read and write; then the slots. The counts wrap; differences are taken in their circle.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch

from ..devices import Runtime, runtime_of
from .base import Bytes, Data, Link, ReceiveChannel, SendChannel
from .channel import expect, size
from .segment import Giver, Taker, reach

SLOTS, SLOT = 6, 8 << 20
_DESCRIPTION = struct.Struct("=QQ")
_DESCRIPTIONS, _FIRST = 256, 8192
_WORD = 1 << 32
_AHEAD = 64
"""Slots that may wait on a stream for the other side: streams hold about a thousand entries and then block the
processor, which would keep it from the other direction."""
_PARALLEL = 1 << 20
"""Bytes from which a processor's copy is worth several threads."""


class Segment:
    """The memory as one side sees it; `runtime` is that of its device, None on a CPU."""

    def __init__(self, descriptor: int, slots: int, slot: int, runtime: Runtime | None) -> None:
        """Raises ValueError where the memory is too small, RuntimeError where the device can't reach it."""
        self.slots, self.slot = slots, slot
        self._map = mmap.mmap(descriptor, length(slots, slot))
        view = memoryview(self._map)
        words, long = view[:_FIRST].cast("I"), view[:_FIRST].cast("Q")
        self.filled, self.emptied = words[0:1], words[16:17]
        self.described, self.checked = long[16:17], long[24:25]
        whole: Bytes = np.frombuffer(self._map, np.uint8)
        self.payload = [whole[at : at + slot] for at in range(_FIRST, len(whole), slot)]
        self._runtime, self._address = runtime, whole.ctypes.data
        self.base = runtime.register(self._address, len(whole)) if runtime else 0
        """The memory's address for the device."""

    def place(self, number: int) -> int:
        """A slot's address for the device."""
        return self.base + _FIRST + number % self.slots * self.slot

    def describe(self, number: int, tag: int, total: int) -> bool:
        """Say what a message is; False while the other side has too many to check."""
        if number - self.checked[0] >= _DESCRIPTIONS:
            return False
        _DESCRIPTION.pack_into(self._map, 4096 + number % _DESCRIPTIONS * _DESCRIPTION.size, tag, total)
        self.described[0] = number + 1
        return True

    def description(self, number: int) -> tuple[int, int] | None:
        """(tag, length) of a message, once the other side has said it."""
        if self.described[0] <= number:
            return None
        tag, total = _DESCRIPTION.unpack_from(self._map, 4096 + number % _DESCRIPTIONS * _DESCRIPTION.size)
        return tag, total

    def release(self, counts: memoryview) -> None:
        """Let every stream go on that waits for a count of the other side, which will not come any more."""
        counts[0] = (counts[0] + _WORD // 4) % _WORD

    def close(self) -> None:
        if self._runtime is not None:
            self._runtime.unregister(self._address)


def length(slots: int, slot: int) -> int:
    return _FIRST + slots * slot


def _behind(mine: int, theirs: int) -> int:
    """How far a count is behind another, in the circle."""
    return (mine - theirs) % _WORD


class _Message:
    """One message: a run over its pieces, slot by slot."""

    def __init__(self, channel: _Sender | _Receiver, pieces: Sequence[Data], tag: int, number: int) -> None:
        self._channel, self.tag, self.number, self.length = channel, tag, number, size(pieces)
        self._keep = pieces
        self.stream = channel.runtime.current(channel.link.device) if channel.runtime else None
        self.parts = self._cut(pieces, channel.path.slot)
        self.part = next(self.parts, None)
        self.begun = self.done = False

    @staticmethod
    def _cut(pieces: Sequence[Data], slot: int) -> Iterator[list[tuple[int, Data]]]:
        """For each slot: (offset in the slot, bytes of a piece)."""
        part: list[tuple[int, Data]] = []
        at = 0
        for piece in pieces:
            first = 0
            while first < piece.nbytes:
                count = min(slot - at, piece.nbytes - first)
                part.append((at, piece[first : first + count]))
                at, first = at + count, first + count
                if at == slot:
                    yield part
                    part, at = [], 0
        if part:
            yield part

    def test(self) -> bool:
        """Whether the message is on the stream, or, on a CPU, done."""
        if not self.done:
            self._channel.pump()
        return self.done

    def settled(self) -> bool:
        """Whether the other side's description, if it was not awaited, was found right."""
        return self._channel.settle(self)

    def describe(self) -> str:
        way = "to" if isinstance(self._channel, _Sender) else "from"
        return f"{self.length} bytes {way} {self._channel.link.peer} over hostmap"


class _Sender(Giver):
    def __init__(self, link: Link, path: Hostmap) -> None:
        super().__init__(link, path.create)
        self.path, self.runtime = path, runtime_of(link.device.type)
        self.segment: Segment | None = None
        self._queue: deque[_Message] = deque()
        self._messages = self._mine = 0

    def attach(self, descriptor: int) -> None:
        self.segment = Segment(descriptor, self.path.slots, self.path.slot, self.runtime)

    def send(self, pieces: Sequence[Data], tag: int) -> _Message:
        message = _Message(self, pieces, tag, self._messages)
        self._messages += 1
        self._queue.append(message)
        return message

    def _pump(self) -> None:
        if self.segment is None and not self.connect():
            return None
        assert self.segment is not None
        while self._queue:
            message = self._queue[0]
            if not message.begun:
                if not self.segment.describe(message.number, message.tag, message.length):
                    return self._look()
                message.begun = True
            while message.part is not None:
                if not self._fill(self.segment, message, message.part):
                    return self._look()
                message.part = next(message.parts, None)
            message.done = True
            self._queue.popleft()
        return None

    def _fill(self, segment: Segment, message: _Message, part: list[tuple[int, Data]]) -> bool:
        """Fill one slot, or have the stream do it; False while there is no room."""
        waiting = _behind(self._mine, segment.emptied[0])
        runtime, stream = self.runtime, message.stream
        if waiting >= (_AHEAD if runtime else segment.slots):
            return False
        if runtime is None:
            slot = segment.payload[self._mine % segment.slots]
            for at, data in part:
                _copy(slot[at : at + data.nbytes], _array(data))
            self._mine = (self._mine + 1) % _WORD
            segment.filled[0] = self._mine
            return True
        place = segment.place(self._mine)
        if waiting >= segment.slots:
            runtime.wait(segment.base + 64, (self._mine - segment.slots + 1) % _WORD, stream)
        for at, data in part:
            runtime.copy(place + at, _address(data), data.nbytes, stream)
        self._mine = (self._mine + 1) % _WORD
        runtime.write(segment.base, self._mine, stream)
        return True

    def _look(self) -> None:
        if self.gone():
            raise self.closed()

    def settle(self, message: _Message) -> bool:
        if self._error is None and self.segment is not None:
            self._look()
        return True

    def release(self) -> None:
        if self.segment is not None:
            self.segment.release(self.segment.emptied)

    def close(self) -> None:
        super().close()
        if self.segment is not None:
            self.segment.close()
        self.segment = None
        self._queue.clear()


class _Receiver(Taker):
    def __init__(self, link: Link, path: Hostmap) -> None:
        super().__init__(link)
        self.path, self.runtime = path, runtime_of(link.device.type)
        self.segment: Segment | None = None
        self._posted: deque[_Message] = deque()
        self._unchecked: deque[_Message] = deque()
        self._messages = self._mine = 0

    def attach(self, descriptor: int) -> None:
        self.segment = Segment(descriptor, self.path.slots, self.path.slot, self.runtime)

    def receive(self, pieces: Sequence[Data], tag: int) -> _Message:
        message = _Message(self, pieces, tag, self._messages)
        self._messages += 1
        self._posted.append(message)
        self._unchecked.append(message)
        return message

    def poll(self) -> bool:
        if self._posted:
            return False
        self.pump()
        if self.segment is None and not self.connect():
            return False
        return self.segment is not None and self.segment.described[0] > self._messages

    def _pump(self) -> None:
        if self.segment is None and not self.connect():
            return None
        assert self.segment is not None
        self._check(self.segment)
        while self._posted:
            message = self._posted[0]
            if self.runtime is None and message in self._unchecked:
                return self._look()  # a processor waits for the description; a stream has its own order
            while message.part is not None:
                if not self._empty(self.segment, message, message.part):
                    return self._look()
                message.part = next(message.parts, None)
            message.done = True
            self._posted.popleft()
        return None

    def _check(self, segment: Segment) -> None:
        """Compare what has been described with what was awaited."""
        while self._unchecked:
            message = self._unchecked[0]
            found = segment.description(message.number)
            if found is None:
                return
            expect(*found, message.tag, message.length, self.link)
            self._unchecked.popleft()
            segment.checked[0] = message.number + 1

    def _empty(self, segment: Segment, message: _Message, part: list[tuple[int, Data]]) -> bool:
        """Empty one slot, or have the stream do it; False while there is nothing."""
        runtime, stream = self.runtime, message.stream
        if runtime is None:
            if segment.filled[0] == self._mine:
                return False
            slot = segment.payload[self._mine % segment.slots]
            for at, data in part:
                _copy(_array(data), slot[at : at + data.nbytes])
            self._mine = (self._mine + 1) % _WORD
            segment.emptied[0] = self._mine
            return True
        if _behind(self._mine, segment.emptied[0]) >= _AHEAD:
            return False
        place = segment.place(self._mine)
        self._mine = (self._mine + 1) % _WORD
        runtime.wait(segment.base, self._mine, stream)
        for at, data in part:
            runtime.copy(_address(data), place + at, data.nbytes, stream)
        runtime.write(segment.base + 64, self._mine, stream)
        return True

    def _look(self) -> None:
        if self.gone():
            raise self.closed()

    def settle(self, message: _Message) -> bool:
        self.pump()
        return message not in self._unchecked

    def release(self) -> None:
        if self.segment is not None:
            self.segment.release(self.segment.filled)

    def close(self) -> None:
        super().close()
        if self.segment is not None:
            self.segment.close()
        self.segment = None
        self._posted.clear()
        self._unchecked.clear()


def _array(data: Data) -> Bytes:
    return data if isinstance(data, np.ndarray) else data.numpy()


def _address(data: Data) -> int:
    return data.data_ptr() if isinstance(data, torch.Tensor) else data.ctypes.data


def _copy(target: Bytes, source: Bytes) -> None:
    """One processor moves less than a device's copy engine does; several come near."""
    workers = min(4, os.cpu_count() or 1)
    if len(target) < _PARALLEL or workers == 1:
        np.copyto(target, source)
        return
    edges = [len(target) * place // workers for place in range(workers + 1)]
    parts = [slice(*pair) for pair in itertools.pairwise(edges)]
    list(_helpers().map(lambda part: np.copyto(target[part], source[part]), parts))


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1), "hetccl-copy")


class Hostmap:
    """Works where both processes see each other in /proc, and at least one has a device with a runtime."""

    name = "hostmap"

    def __init__(self, slots: int = SLOTS, slot: int = SLOT) -> None:
        """`slots` of `slot` bytes each, per channel; alike on both sides."""
        self.slots, self.slot = slots, slot

    def offers(self, device: str) -> str | None:
        runtime, place = runtime_of(device), reach()
        if place is None or (runtime is None and device != "cpu"):
            return None
        return f"{runtime.name if runtime else 'cpu'} {place}"

    def connects(self, mine: str, theirs: str, same_host: bool) -> bool:
        (my_side, _, my_place), (their_side, _, their_place) = mine.partition(" "), theirs.partition(" ")
        return same_host and my_place == their_place and not (my_side == their_side == "cpu")

    def create(self) -> int:
        """A descriptor of new memory for a channel."""
        descriptor = os.memfd_create("hetccl", os.MFD_CLOEXEC)
        try:
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, length(self.slots, self.slot))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def sender(self, link: Link) -> SendChannel:
        return _Sender(link, self)

    def receiver(self, link: Link) -> ReceiveChannel:
        return _Receiver(link, self)


transport = Hostmap()
