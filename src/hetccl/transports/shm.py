"""`shm`: between CPU ranks of one host, a ring in shared memory.

The sender makes the memory and tells the receiver, over an authenticated connection, which of its descriptors it is;
the receiver opens it through /proc. The connection stays: its end tells of the other's death.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import PeerError
from .base import MOST_IMMEDIATE, Bytes, Data, Link, ReceiveChannel, SendChannel
from .channel import Channel, arrays, expect, mismatch, size
from .endpoint import Dial
from .ring import ORDERED, SLOT, SLOTS, Ring, create

_INVITATION = struct.Struct("!QQQQ")  # process, descriptor, slots, bytes a slot
_PATIENCE = 64
"""Fruitless looks at the ring between two looks at the connection."""


class _Channel(Channel):
    """What both ends share: the ring, the connection, and noticing its end."""

    immediate = SLOT >= MOST_IMMEDIATE

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.ring: Ring | None = None
        self.socket: socket.socket | None = None
        self._misses = 0

    def gone(self) -> bool:
        """Whether the other end has gone; looked up now and then, since it costs a system call."""
        self._misses += 1
        if self._misses % _PATIENCE:
            return False
        return self._read(1, socket.MSG_PEEK) == b""

    def _closed(self) -> PeerError:
        return PeerError(f"{self.link.peer} closed its connection")

    def _read(self, count: int, flags: int = 0) -> bytes | None:
        """Bytes from the connection: None where there are none yet, empty at its end."""
        assert self.socket is not None
        try:
            return self.socket.recv(count, flags)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        super().close()
        if self.socket is not None:
            self.socket.close()
        self.ring = None


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


class _Sender(_Channel):
    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._queue: deque[_Message] = deque()
        self._dial: Dial | None = None
        self._descriptor = -1

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
                self.fail(self._closed())
            return False
        length = data.nbytes
        slot[:length] = data
        ring.publish(tag, length, length)
        return True

    def _pump(self) -> None:
        """Fill free slots."""
        ring = self.ring or self._connect()
        while ring is not None and self._queue:
            slot = ring.room()
            if slot is None:
                if self.gone():
                    raise self._closed()
                return
            message = self._queue[0]
            ring.publish(message.tag, message.length, message.move(slot, True, ring.slot))
            if message.done:
                self._queue.popleft()

    def _connect(self) -> Ring | None:
        if self.socket is None:
            if self._dial is None:
                deadline = time.monotonic() + self.link.timeout
                self._dial = self.link.endpoint.dial(self.link.location, self.link.key, deadline)
            if not self._dial.test():
                return None
            self.socket = self._dial.connection
            self._descriptor = create()
            try:
                # A fresh connection has room for these few bytes.
                self.socket.sendall(_INVITATION.pack(os.getpid(), self._descriptor, SLOTS, SLOT))
            except OSError as error:
                raise PeerError(f"the connection to {self.link.peer} failed: {error.strerror}") from error
        taken = self._read(1)
        if taken is None:
            return None
        if taken != b"\x01":
            raise PeerError(f"{self.link.peer} could not open the shared memory; HETCCL_PATHS=tcp avoids it")
        self.ring = Ring(self._descriptor, SLOTS, SLOT)
        os.close(self._descriptor)
        self._descriptor = -1
        return self.ring

    def close(self) -> None:
        super().close()
        if self._dial is not None:
            self._dial.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._queue.clear()


class _Receiver(_Channel):
    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._posted: deque[_Message] = deque()
        self._invitation = b""

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
                self.fail(self._closed())
            return False
        found, total, length = header
        if found != tag or total != data.nbytes:
            self.fail(mismatch(found, total, tag, data.nbytes, self.link))
        data[:] = ring.payload()[:length]
        ring.consume()
        return True

    def _pump(self) -> None:
        """Empty published slots into what is posted."""
        ring = self.ring or self._connect()
        while ring is not None and self._posted:
            header = ring.peek()
            if header is None:
                # Asked again after the end was seen: the last slots may have been published in between.
                if self.gone() and ring.peek() is None:
                    raise self._closed()
                return
            message = self._posted[0]
            tag, total, count = header
            expect(tag, total, message.tag, message.length, self.link)
            message.move(ring.payload(), False, count)
            ring.consume()
            if message.done:
                self._posted.popleft()

    def _connect(self) -> Ring | None:
        if self.socket is None:
            self.socket = self.link.endpoint.accepted(self.link.key)
            if self.socket is None:
                return None
        more = self._read(_INVITATION.size - len(self._invitation))
        if more is None:
            return None
        if not more:
            raise self._closed()
        self._invitation += more
        if len(self._invitation) < _INVITATION.size:
            return None
        process, descriptor, slots, slot = _INVITATION.unpack(self._invitation)
        try:
            opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
            try:
                self.ring = Ring(opened, slots, slot)
            finally:
                os.close(opened)
            self.socket.send(b"\x01")
        except (OSError, ValueError) as error:
            self.socket.close()  # which tells the sender
            raise PeerError(
                f"the shared memory of {self.link.peer} cannot be opened ({error}); HETCCL_PATHS=tcp avoids it"
            ) from error
        return self.ring

    def close(self) -> None:
        super().close()
        self._posted.clear()


class Shm:
    """Works where both processes see each other in /proc and belong to one user."""

    name = "shm"

    def offers(self) -> str | None:
        if not (sys.platform.startswith("linux") and ORDERED):
            return None
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            spaces = " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "user"))
        except OSError:
            return None
        return f"{boot} {spaces} {os.getuid()}"

    def connects(self, mine: str, theirs: str, same_host: bool) -> bool:
        return same_host and mine == theirs

    def sender(self, link: Link) -> SendChannel:
        return _Sender(link)

    def receiver(self, link: Link) -> ReceiveChannel:
        return _Receiver(link)


transport = Shm()
