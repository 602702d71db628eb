"""The contract of a path: FIFO channels between two ranks.

A transport is one file that exposes `transport`, a `Transport`, found through the entry point group
`hetccl.transports`. A channel carries messages in one direction, in order, between one pair of ranks, for one
purpose. Nothing blocks: `send` and `receive` queue a message and return a request; the requests' `test` moves the
bytes, and makes the connection first where there is none. Each message carries a 64-bit `tag`, computed alike on both
sides from the operation's sequence number, step and plan: a receiver that meets another tag or length raises
DesyncError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ..request import Request
from .endpoint import Endpoint

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Data = torch.Tensor | Bytes
"""A run of bytes: a flat contiguous uint8 tensor, or an array of CPU memory, which costs less to slice."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a channel needs to find its other end. The sender dials, the receiver accepts, by the same `key`."""

    endpoint: Endpoint
    location: str
    key: str
    peer: str
    """The other rank as errors name it."""
    timeout: float
    device: torch.device = field(default=torch.device("cpu"))
    """Where this side's data lies."""


MOST_IMMEDIATE = 1 << 16
"""Bytes that `put` and `take` can move at once."""


class SendChannel(Protocol):
    @property
    def immediate(self) -> bool:
        """Whether the channel has `put` (a receiving one: `take`), which need no request."""

    def put(self, data: Bytes, tag: int) -> bool:
        """Send one small message now; False where that can't be done yet."""

    def send(self, pieces: Sequence[Data], tag: int) -> Request:
        """Send the pieces, kept alive by the request, as one message.

        From a device, in the order of its current stream; the request is done once all is on streams, and its
        `settled` once it has come true.
        """

    def release(self) -> None:
        """Let streams go on that wait for the other side, after a fault."""

    def close(self) -> None: ...


class ReceiveChannel(Protocol):
    @property
    def immediate(self) -> bool: ...

    def take(self, data: Bytes, tag: int) -> bool:
        """Receive one small message now; False where it hasn't come."""

    def receive(self, pieces: Sequence[Data], tag: int) -> Request:
        """Fill the pieces with the next message, whose length must be theirs together."""

    def poll(self) -> bool:
        """Whether a message has begun to arrive that no posted receive takes (for receives from any source)."""

    def release(self) -> None: ...

    def close(self) -> None: ...


class Transport(Protocol):
    """One kind of path. `name` is what `HETCCL_PATHS` and `hetccl topo` call it."""

    name: str

    def offers(self, device: str) -> str | None:
        """What a rank with data on this type of device can offer (exchanged as text), or None where nothing."""

    def connects(self, mine: str, theirs: str, same_host: bool) -> bool:
        """Whether two offers fit together. Symmetric, so both sides choose alike."""

    def sender(self, link: Link) -> SendChannel: ...

    def receiver(self, link: Link) -> ReceiveChannel: ...
