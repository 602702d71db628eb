"""`tcp`: one socket a channel, straight between the tensors' memory and the kernel."""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import DesyncError, PeerError
from .base import Link, ReceiveChannel, SendChannel
from .endpoint import Dial

_HEADER = struct.Struct("!QQ")  # tag, length
_VECTORS = 64
"""Buffers per system call."""


class _Sending:
    """One message queued for sending; done when the channel has sent up to `end`."""

    def __init__(self, channel: _Sender, end: int, keep: Sequence[torch.Tensor]) -> None:
        self._channel, self._end, self._keep = channel, end, keep

    def test(self) -> bool:
        return self._channel.sent >= self._end or self._channel.pump() >= self._end

    def describe(self) -> str:
        return f"{size(self._keep)} bytes to {self._channel.link.peer} over tcp"


class _Sender:
    def __init__(self, link: Link) -> None:
        self.link, self.sent, self._queued = link, 0, 0
        self._buffers: deque[memoryview] = deque()
        self._dial: Dial | None = None
        self._socket: socket.socket | None = None

    def send(self, pieces: Sequence[torch.Tensor], tag: int) -> _Sending:
        length = size(pieces)
        self._buffers.append(memoryview(_HEADER.pack(tag, length)))
        self._buffers.extend(_view(piece) for piece in pieces if piece.numel())
        self._queued += _HEADER.size + length
        return _Sending(self, self._queued, pieces)

    def pump(self) -> int:
        """Send what the kernel takes; the bytes sent so far."""
        if self._socket is None:
            if self._dial is None:
                deadline = time.monotonic() + self.link.timeout
                self._dial = self.link.endpoint.dial(self.link.location, self.link.key, deadline)
            if not self._dial.test():
                return self.sent
            self._socket = self._dial.connection
            self._socket.setblocking(False)
        while self._buffers:
            try:
                count = self._socket.sendmsg([self._buffers[i] for i in range(min(_VECTORS, len(self._buffers)))])
            except BlockingIOError:
                break
            except OSError as error:
                raise PeerError(f"the connection to {self.link.peer} failed: {error.strerror}") from error
            self.sent += count
            while count:
                first = self._buffers[0]
                if count < len(first):
                    self._buffers[0] = first[count:]
                    break
                count -= len(first)
                self._buffers.popleft()
        return self.sent

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._buffers.clear()


class _Receiving:
    """One message awaited."""

    def __init__(self, channel: _Receiver, pieces: Sequence[torch.Tensor], tag: int) -> None:
        self.pieces, self.tag, self.length = pieces, tag, size(pieces)
        self.buffers = deque(_view(piece) for piece in pieces if piece.numel())
        self.done = False
        self._channel = channel

    def test(self) -> bool:
        if not self.done:
            self._channel.pump()
        return self.done

    def describe(self) -> str:
        return f"{self.length} bytes from {self._channel.link.peer} over tcp"


class _Receiver:
    def __init__(self, link: Link) -> None:
        self.link = link
        self._socket: socket.socket | None = None
        self._posted: deque[_Receiving] = deque()
        self._header = bytearray(_HEADER.size)
        self._filled = 0

    def receive(self, pieces: Sequence[torch.Tensor], tag: int) -> _Receiving:
        posted = _Receiving(self, pieces, tag)
        self._posted.append(posted)
        return posted

    def poll(self) -> bool:
        if self._posted or not self._connected():
            return False
        if self._filled < _HEADER.size:
            self._filled += self._read(memoryview(self._header)[self._filled :])
        return self._filled > 0

    def pump(self) -> None:
        """Receive what has come into what is posted."""
        if not self._connected():
            return
        while self._posted:
            current = self._posted[0]
            if self._filled < _HEADER.size:
                self._filled += self._read(memoryview(self._header)[self._filled :])
                if self._filled < _HEADER.size:
                    return
                check(self._header, current, self.link)
            while current.buffers:
                count = self._read(current.buffers[0])
                if not count:
                    return
                current.buffers[0] = current.buffers[0][count:]
                if not current.buffers[0]:
                    current.buffers.popleft()
            current.done = True
            self._posted.popleft()
            self._filled = 0

    def _connected(self) -> bool:
        if self._socket is None:
            self._socket = self.link.endpoint.accepted(self.link.key)
            if self._socket is None:
                return False
            self._socket.setblocking(False)
        return True

    def _read(self, view: memoryview) -> int:
        assert self._socket is not None
        try:
            count = self._socket.recv_into(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise PeerError(f"the connection from {self.link.peer} failed: {error.strerror}") from error
        if count == 0 and len(view):
            raise PeerError(f"{self.link.peer} closed its connection")
        return count

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._posted.clear()


def check(header: bytearray, wanted: _Receiving, link: Link) -> None:
    tag, length = _HEADER.unpack(header)
    expect(tag, length, wanted.tag, wanted.length, link)


def expect(tag: int, length: int, wanted_tag: int, wanted_length: int, link: Link) -> None:
    """Raise DesyncError where a message is not the one awaited."""
    if (tag, length) != (wanted_tag, wanted_length):
        raise DesyncError(
            f"{link.peer} sent a message of {length} bytes (tag {tag:016x}) where this rank awaits one of"
            f" {wanted_length} (tag {wanted_tag:016x}): the two ranks called different things"
        )


def _view(piece: torch.Tensor) -> memoryview:
    array: Any = piece.numpy()
    return memoryview(array)


def size(pieces: Sequence[torch.Tensor]) -> int:
    return sum(piece.numel() for piece in pieces)


class Tcp:
    """Works between any two hosts that reach each other's chosen interface."""

    name = "tcp"

    def offers(self) -> str | None:
        return "socket"

    def connects(self, mine: str, theirs: str, same_host: bool) -> bool:
        return mine == theirs

    def sender(self, link: Link) -> SendChannel:
        return _Sender(link)

    def receiver(self, link: Link) -> ReceiveChannel:
        return _Receiver(link)


transport = Tcp()
