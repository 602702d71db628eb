"""Device memory over a path that takes only CPU memory: through a pinned copy of each message.

The copy runs on the device's stream; the processor takes over when it is done, so that such a path needs the processor
for each message, and a receive is on the stream only once its data has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..devices import Runtime, runtime_of
from ..request import Request
from .base import Bytes, Data, Link, ReceiveChannel, SendChannel
from .channel import size


def staged_sender(channel: SendChannel, link: Link) -> SendChannel:
    """The channel as it is for CPU memory, else one that stages."""
    runtime = runtime_of(link.device.type)
    return channel if runtime is None else _Sender(channel, link.device, runtime)


def staged_receiver(channel: ReceiveChannel, link: Link) -> ReceiveChannel:
    runtime = runtime_of(link.device.type)
    return channel if runtime is None else _Receiver(channel, link.device, runtime)


class _Staged:
    immediate = False

    def __init__(self, channel: Any, device: torch.device, runtime: Runtime) -> None:
        self.channel, self.device, self.runtime = channel, device, runtime
        self._queue: list[_Sending | _Receiving] = []

    def enter(self, message: Any) -> Any:
        self._queue.append(message)
        return message

    def turn(self, message: object) -> bool:
        """Whether a message is the first that isn't handed over yet: copies may end in another order."""
        return self._queue[0] is message

    def leave(self) -> None:
        self._queue.pop(0)

    def release(self) -> None:
        self.channel.release()

    def close(self) -> None:
        self.channel.close()
        self._queue.clear()


class _Sender(_Staged):
    def put(self, data: Bytes, tag: int) -> bool:
        raise NotImplementedError

    def send(self, pieces: Sequence[Data], tag: int) -> Request:
        return self.enter(_Sending(self, pieces, tag))  # type: ignore[no-any-return]


class _Receiver(_Staged):
    def take(self, data: Bytes, tag: int) -> bool:
        raise NotImplementedError

    def receive(self, pieces: Sequence[Data], tag: int) -> Request:
        return self.enter(_Receiving(self, pieces, tag))  # type: ignore[no-any-return]

    def poll(self) -> bool:
        return not self._queue and bool(self.channel.poll())


class _Sending:
    """Done at once, as the copy is on the stream; settled once the message has left."""

    def __init__(self, channel: _Sender, pieces: Sequence[Data], tag: int) -> None:
        self._channel, self._pieces, self._tag = channel, pieces, tag
        self._stage = _pinned(size(pieces))
        _copy(pieces, self._stage, out=True)
        self._copied = channel.runtime.record(channel.runtime.current(channel.device))
        self._inner: Request | None = None

    def test(self) -> bool:
        return True

    def settled(self) -> bool:
        channel = self._channel
        if self._inner is None:
            if not (channel.turn(self) and channel.runtime.done(self._copied)):
                return False
            self._inner = channel.channel.send([self._stage], self._tag)
            channel.leave()
        return self._inner.test()

    def describe(self) -> str:
        return self._inner.describe() if self._inner else f"{len(self._stage)} bytes out of the device"


class _Receiving:
    """Done once the data has come and the copy is on the stream."""

    def __init__(self, channel: _Receiver, pieces: Sequence[Data], tag: int) -> None:
        self._channel, self._pieces = channel, pieces
        self._stage = _pinned(size(pieces))
        self._inner = channel.channel.receive([self._stage], tag)
        self._done = False
        self._stream = channel.runtime.current(channel.device)

    def test(self) -> bool:
        if not self._done and self._inner.test():
            self._channel._queue.remove(self)
            with self._channel.runtime.using(self._stream):
                _copy(self._pieces, self._stage, out=False)
            self._done = True
        return self._done

    def settled(self) -> bool:
        return self._done

    def describe(self) -> str:
        return str(self._inner.describe())


def _pinned(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=nbytes > 0 and torch.cuda.is_available())


def _copy(pieces: Sequence[Data], stage: torch.Tensor, out: bool) -> None:
    at = 0
    for piece in pieces:
        data = piece if isinstance(piece, torch.Tensor) else torch.from_numpy(piece)
        part = stage[at : at + piece.nbytes]
        if out:
            part.copy_(data, non_blocking=True)
        else:
            data.copy_(part, non_blocking=True)
        at += piece.nbytes
