"""Point-to-point calls: one message over the path between two ranks, apart from the collectives' messages.

All of them use our own paths, inside a cluster as well, since a receive from any source must see every sender; what a
rank sends to itself needs no path.
Messages of one pair and tag keep their order.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

import torch

from ..request import Request
from ..transports.fabric import Fabric
from .loopback import Loopback


class Mailbox:
    """Numbers the messages of each pair and tag, alike on both sides."""

    def __init__(self, fabric: Fabric, rank: int, size: int) -> None:
        self.fabric, self.rank, self.size = fabric, rank, size
        self._own = Loopback()
        self._numbers: dict[tuple[int, int, int], Iterator[int]] = defaultdict(itertools.count)

    def send(self, data: torch.Tensor, peer: int, tag: int) -> Request:
        if peer == self.rank:
            return self._own.send(data, tag)
        number = next(self._numbers[self.rank, peer, tag])
        return self.fabric.sender(peer, f"tag{tag}").send([data], number)

    def receive(self, data: torch.Tensor, peer: int, tag: int) -> Request:
        if peer == self.rank:
            return self._own.receive(data, tag)
        number = next(self._numbers[peer, self.rank, tag])
        return self.fabric.receiver(peer, f"tag{tag}").receive([data], number)

    def receive_any(self, data: torch.Tensor, peer: int | None, tag: int, source: list[int]) -> Request | None:
        """From `peer`, or, where it is None, from whoever has begun to send: None until somebody has."""
        if peer is None:
            peer = self.arrived(tag)
            if peer is None:
                return None
            source.append(peer)
        return self.receive(data, peer, tag)

    def arrived(self, tag: int) -> int | None:
        """A rank from which a message with this tag has begun to arrive."""
        for peer in range(self.size):
            if self._own.arrived(tag) if peer == self.rank else self.fabric.receiver(peer, f"tag{tag}").poll():
                return peer
        return None


class Message:
    """A task: one message to or from a known rank, posted when it is made."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def advance(self) -> bool:
        return self._request.test()

    def describe(self) -> str:
        return self._request.describe()


class AnySource:
    """A task: one message from whichever rank sends first; `source` tells which."""

    def __init__(self, mailbox: Mailbox, data: torch.Tensor, tag: int, source: list[int]) -> None:
        self._mailbox, self._data, self._tag, self._source = mailbox, data, tag, source
        self._request: Request | None = None

    def advance(self) -> bool:
        if self._request is None:
            peer = self._mailbox.arrived(self._tag)
            if peer is None:
                return False
            self._source.append(peer)
            self._request = self._mailbox.receive(self._data, peer, self._tag)
        return self._request.test()

    def describe(self) -> str:
        return self._request.describe() if self._request else f"a message with tag {self._tag} from any rank"
