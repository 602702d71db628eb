"""`shm`: between CPU ranks of one host, a ring in shared memory (see `segment` and `ring`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from .base import MOST_IMMEDIATE, Bytes, Data, Link, ReceiveChannel, SendChannel
from .channel import arrays, expect, mismatch, size
from .ring import SLOT, SLOTS, Ring, create
from .segment import Giver, Taker, reach


class _Message:
    """One message and how much of it has moved."""

    def __init__(self, channel: _Sender | _Receiver, pieces: Sequence[Data], tag: int) -> None:
        self._channel, self.tag, self.length = channel, tag, size(pieces)
        self._pieces = arrays(pieces)
        self._piece = self._at = 0
        self.done = False

    def move(self, slot: Bytes, out: bool, limit: int) -> int:
        """Copy up to `limit` bytes between the slot and the pieces; how many."""
        moved = 0
        while self._piece < len(self._pieces) and moved < limit:
            piece = self._pieces[self._piece]
            count = min(limit - moved, len(piece) - self._at)
            mine, theirs = piece[self._at : self._at + count], slot[moved : moved + count]
            if out:
                np.copyto(theirs, mine)
            else:
                np.copyto(mine, theirs)
            moved += count
            self._at += count
            if self._at == len(piece):
                self._piece, self._at = self._piece + 1, 0
        self.done = self._piece == len(self._pieces)
        return moved

    def test(self) -> bool:
        if not self.done:
            self._channel.pump()
        return self.done

    def describe(self) -> str:
        way = "to" if isinstance(self._channel, _Sender) else "from"
        return f"{self.length} bytes {way} {self._channel.link.peer} over shm"


class _Sender(Giver):
    immediate = SLOT >= MOST_IMMEDIATE

    def __init__(self, link: Link) -> None:
        super().__init__(link, create)
        self.ring: Ring | None = None
        self._queue: deque[_Message] = deque()

    def attach(self, descriptor: int) -> None:
        self.ring = Ring(descriptor, SLOTS, SLOT)

    def send(self, pieces: Sequence[Data], tag: int) -> _Message:
        message = _Message(self, pieces, tag)
        self._queue.append(message)
        return message

    def put(self, data: Bytes, tag: int) -> bool:
        ring = self.ring
        if ring is None or self._queue or self._error is not None:
            self.pump()  # connects, sends what is queued, raises what went wrong
            return False
        slot = ring.room()
        if slot is None:
            if self.gone():
                self.fail(self.closed())
            return False
        length = data.nbytes
        slot[:length] = data
        ring.publish(tag, length, length)
        return True

    def _pump(self) -> None:
        """Fill free slots."""
        ring = self._open()
        while ring is not None and self._queue:
            slot = ring.room()
            if slot is None:
                if self.gone():
                    raise self.closed()
                return
            message = self._queue[0]
            ring.publish(message.tag, message.length, message.move(slot, True, ring.slot))
            if message.done:
                self._queue.popleft()

    def _open(self) -> Ring | None:
        if self.ring is None:
            self.connect()
        return self.ring

    def close(self) -> None:
        super().close()
        self.ring = None
        self._queue.clear()


class _Receiver(Taker):
    immediate = SLOT >= MOST_IMMEDIATE

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.ring: Ring | None = None
        self._posted: deque[_Message] = deque()

    def attach(self, descriptor: int) -> None:
        self.ring = Ring(descriptor, SLOTS, SLOT)

    def receive(self, pieces: Sequence[Data], tag: int) -> _Message:
        message = _Message(self, pieces, tag)
        self._posted.append(message)
        return message

    def poll(self) -> bool:
        if self._posted:
            return False
        self.pump()
        return self.ring is not None and self.ring.peek() is not None

    def take(self, data: Bytes, tag: int) -> bool:
        ring = self.ring
        if ring is None or self._posted or self._error is not None:
            self.pump()
            return False
        header = ring.peek()
        if header is None:
            if self.gone() and ring.peek() is None:
                self.fail(self.closed())
            return False
        found, total, length = header
        if found != tag or total != data.nbytes:
            self.fail(mismatch(found, total, tag, data.nbytes, self.link))
        data[:] = ring.payload()[:length]
        ring.consume()
        return True

    def _pump(self) -> None:
        """Empty published slots into what is posted."""
        ring = self._open()
        while ring is not None and self._posted:
            header = ring.peek()
            if header is None:
                # Asked again after the end was seen: the last slots may have been published in between.
                if self.gone() and ring.peek() is None:
                    raise self.closed()
                return
            message = self._posted[0]
            tag, total, count = header
            expect(tag, total, message.tag, message.length, self.link)
            message.move(ring.payload(), False, count)
            ring.consume()
            if message.done:
                self._posted.popleft()

    def _open(self) -> Ring | None:
        if self.ring is None:
            self.connect()
        return self.ring

    def close(self) -> None:
        super().close()
        self.ring = None
        self._posted.clear()


class Shm:
    """Works where both processes see each other in /proc and belong to one user."""

    name = "shm"

    def offers(self, device: str) -> str | None:
        return reach() if device == "cpu" else None

    def connects(self, mine: str, theirs: str, same_host: bool) -> bool:
        return same_host and mine == theirs

    def sender(self, link: Link) -> SendChannel:
        return _Sender(link)

    def receiver(self, link: Link) -> ReceiveChannel:
        return _Receiver(link)


transport = Shm()
