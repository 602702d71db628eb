"""`tcp`: one or several sockets a channel, straight between the tensors' memory and the kernel.

A message is a header (magic, parts, tag, length) and its bytes on the channel's first socket. A message of at least
`STRIPE` bytes is cut into as many parts as the sender has streams; part i follows on socket i. The header says how
many, so only the sender is configured. The sockets after the first are dialled when the first such message is sent.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

from ..devices import runtime_of
from ..errors import DesyncError, PeerError
from .base import Data, Link, ReceiveChannel, SendChannel
from .channel import Channel, arrays, expect, size
from .endpoint import Dial
from .staging import staged_receiver, staged_sender

_HEADER = struct.Struct("!4sIQQ")  # magic, parts, tag, length
_MAGIC = b"hcm1"
_VECTORS = 64
"""Buffers per system call."""
STRIPE = 1 << 20
"""Bytes from which a message is striped: below, a second socket costs more system calls than it saves time."""
MOST_STREAMS = 64


def stream_key(key: str, index: int) -> str:
    return f"{key}#{index}" if index else key


def views(pieces: Sequence[Data]) -> list[memoryview]:
    return [array.data for array in arrays(pieces)]


def cut(buffers: Sequence[memoryview], length: int, parts: int) -> list[deque[memoryview]]:
    """The buffers, `length` bytes together, in order, as `parts` shares that differ by a byte at most."""
    if parts == 1:
        return [deque(buffers)]
    shares: list[deque[memoryview]] = [deque() for _ in range(parts)]
    index, left = 0, length // parts
    for whole in buffers:
        buffer = whole
        while len(buffer):
            while not left:
                index += 1
                left = (index + 1) * length // parts - index * length // parts
            shares[index].append(buffer[:left])
            left, buffer = left - len(shares[index][-1]), buffer[left:]
    return shares


class _Outflow:
    """One socket of a sender: what waits for it, and how much it was given and has sent since the start."""

    def __init__(self, link: Link, index: int) -> None:
        self._link, self._key = link, stream_key(link.key, index)
        self.buffers: deque[memoryview] = deque()
        self.queued = self.sent = 0
        self._dial: Dial | None = None
        self._socket: socket.socket | None = None

    def push(self) -> None:
        """Send what the kernel takes."""
        if self._socket is None:
            if self._dial is None:
                deadline = time.monotonic() + self._link.timeout
                self._dial = self._link.endpoint.dial(self._link.location, self._key, deadline)
            if not self._dial.test():
                return
            self._socket = self._dial.connection
        buffers = self.buffers
        while buffers:
            try:
                count = self._socket.sendmsg(itertools.islice(buffers, _VECTORS))
            except BlockingIOError:
                return
            except OSError as error:
                raise PeerError(f"the connection to {self._link.peer} failed: {error.strerror}") from error
            self.sent += count
            while count:
                first = buffers[0]
                if count < len(first):
                    buffers[0] = first[count:]
                    break
                count -= len(first)
                buffers.popleft()

    def close(self) -> None:
        if self._dial is not None:
            self._dial.close()
        if self._socket is not None:
            self._socket.close()
        self.buffers.clear()


class _Sending:
    """One message queued for sending; done when each socket that carries it has sent up to its end."""

    def __init__(self, channel: _Sender, ends: list[tuple[_Outflow, int]], keep: Sequence[Data]) -> None:
        self._channel, self._ends, self._keep = channel, ends, keep

    def test(self) -> bool:
        if not self._done():
            self._channel.pump()
        return self._done()

    def _done(self) -> bool:
        return all(flow.sent >= end for flow, end in self._ends)

    def describe(self) -> str:
        return f"{size(self._keep)} bytes to {self._channel.link.peer} over tcp"


class _Sender(Channel):
    def __init__(self, link: Link, streams: int) -> None:
        super().__init__(link)
        self._flows = [_Outflow(link, index) for index in range(streams)]

    def send(self, pieces: Sequence[Data], tag: int) -> _Sending:
        length = size(pieces)
        parts = len(self._flows) if length >= STRIPE else 1
        shares = cut(views(pieces), length, parts)
        shares[0].appendleft(memoryview(_HEADER.pack(_MAGIC, parts, tag, length)))
        ends = []
        for flow, share in zip(self._flows, shares, strict=False):
            flow.buffers.extend(share)
            flow.queued += sum(map(len, share))
            ends.append((flow, flow.queued))
        return _Sending(self, ends, pieces)

    def _pump(self) -> None:
        for flow in self._flows:
            if flow.buffers:
                flow.push()

    def close(self) -> None:
        super().close()
        for flow in self._flows:
            flow.close()


class _Receiving:
    """One message awaited; `shares` are what is still to fill of its parts, once its header has come."""

    def __init__(self, channel: _Receiver, pieces: Sequence[Data], tag: int) -> None:
        self.pieces, self.tag, self.length = pieces, tag, size(pieces)
        self.shares: list[deque[memoryview]] | None = None
        self.done = False
        self._channel = channel

    def test(self) -> bool:
        if not self.done:
            self._channel.pump()
        return self.done

    def describe(self) -> str:
        return f"{self.length} bytes from {self._channel.link.peer} over tcp"


class _Receiver(Channel):
    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._sockets: dict[int, socket.socket] = {}
        self._posted: deque[_Receiving] = deque()
        self._header = bytearray(_HEADER.size)
        self._filled = 0

    def receive(self, pieces: Sequence[Data], tag: int) -> _Receiving:
        posted = _Receiving(self, pieces, tag)
        self._posted.append(posted)
        return posted

    def poll(self) -> bool:
        if self._posted:
            return False
        self.pump()
        if not self._filled:
            self._read_header()
        return self._filled > 0

    def _pump(self) -> None:
        while self._posted:
            current = self._posted[0]
            if current.shares is None:
                if not self._read_header():
                    return
                current.shares = self._open(current)
            # All of them first: every part makes progress each time.
            filled = [self._fill(index, share) for index, share in enumerate(current.shares)]
            if not all(filled):
                return
            current.done = True
            self._posted.popleft()
            self._filled = 0

    def _read_header(self) -> bool:
        if self._filled < _HEADER.size:
            self._filled += self._read(0, memoryview(self._header)[self._filled :])
        return self._filled == _HEADER.size

    def _open(self, current: _Receiving) -> list[deque[memoryview]]:
        magic, parts, tag, length = _HEADER.unpack(self._header)
        if magic != _MAGIC or not 1 <= parts <= MOST_STREAMS:
            raise DesyncError(f"{self.link.peer} sent no message where one should begin: its hetccl is another version")
        expect(tag, length, current.tag, current.length, self.link)
        return cut(views(current.pieces), length, parts)

    def _fill(self, index: int, share: deque[memoryview]) -> bool:
        while share:
            count = self._read(index, share[0])
            if not count:
                return False
            if count == len(share[0]):
                share.popleft()
            else:
                share[0] = share[0][count:]
        return True

    def _read(self, index: int, view: memoryview) -> int:
        connection = self._sockets.get(index)
        if connection is None:
            connection = self.link.endpoint.accepted(stream_key(self.link.key, index))
            if connection is None:
                return 0
            self._sockets[index] = connection
        try:
            count = connection.recv_into(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PeerError(f"the connection from {self.link.peer} failed: {error.strerror}") from error
        if count == 0:
            raise PeerError(f"{self.link.peer} closed its connection")
        return count

    def close(self) -> None:
        super().close()
        for connection in self._sockets.values():
            connection.close()
        self._posted.clear()


class Tcp:
    """Works between any two hosts that reach each other's chosen interface."""

    name = "tcp"

    def __init__(self, streams: int = 1) -> None:
        """`streams`: sockets that a sender stripes large messages over, 1 to 64."""
        if not 1 <= streams <= MOST_STREAMS:
            raise ValueError(f"streams must be 1 to {MOST_STREAMS}, not {streams}")
        self._streams = streams

    def offers(self, device: str) -> str | None:
        return "socket" if device == "cpu" or runtime_of(device) else None

    def connects(self, mine: str, theirs: str, same_host: bool) -> bool:
        return mine == theirs

    def sender(self, link: Link) -> SendChannel:
        return staged_sender(_Sender(link, self._streams), link)

    def receiver(self, link: Link) -> ReceiveChannel:
        return staged_receiver(_Receiver(link), link)


transport = Tcp()
