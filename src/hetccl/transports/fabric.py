"""All paths of one rank in one group: chosen per pair, connected at first use, counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..errors import ConfigurationError
from ..request import Request
from .base import Bytes, Data, Link, ReceiveChannel, SendChannel, Transport
from .channel import size
from .endpoint import Endpoint

_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Peer:
    """Another rank as discovery found it; `title` is how errors name it."""

    location: str
    host: str
    offers: tuple[tuple[str, str], ...]
    title: str


def choose(transports: Sequence[Transport], lower: Peer, higher: Peer) -> Transport | None:
    """The first path in order of preference that works for both; both sides choose alike."""
    theirs = dict(higher.offers)
    for name, offer in lower.offers:
        for transport in transports:
            both = transport.name == name and name in theirs
            if both and transport.connects(offer, theirs[name], lower.host == higher.host):
                return transport
    return None


class _CountedSender:
    """A channel whose payload bytes are counted."""

    def __init__(self, channel: SendChannel, peer: int, counts: dict[int, int]) -> None:
        self._channel, self._peer, self._counts = channel, peer, counts
        self.immediate = channel.immediate

    def put(self, data: Bytes, tag: int) -> bool:
        if not self._channel.put(data, tag):
            return False
        self._counts[self._peer] += data.nbytes
        return True

    def send(self, pieces: Sequence[Data], tag: int) -> Request:
        self._counts[self._peer] += size(pieces)
        return self._channel.send(pieces, tag)

    def release(self) -> None:
        self._channel.release()

    def close(self) -> None:
        self._channel.close()


class _CountedReceiver:
    """The same for receiving."""

    def __init__(self, channel: ReceiveChannel, peer: int, counts: dict[int, int]) -> None:
        self._channel, self._peer, self._counts = channel, peer, counts
        self.immediate = channel.immediate

    def take(self, data: Bytes, tag: int) -> bool:
        if not self._channel.take(data, tag):
            return False
        self._counts[self._peer] += data.nbytes
        return True

    def receive(self, pieces: Sequence[Data], tag: int) -> Request:
        self._counts[self._peer] += size(pieces)
        return self._channel.receive(pieces, tag)

    def poll(self) -> bool:
        return self._channel.poll()

    def release(self) -> None:
        self._channel.release()

    def close(self) -> None:
        self._channel.close()


class Fabric:
    """Channels to every peer, made when first asked for. Used under the engine's lock or before it runs."""

    def __init__(
        self,
        endpoint: Endpoint,
        transports: Sequence[Transport],
        me: int,
        group: str,
        peers: Mapping[int, Peer],
        timeout: float,
        device: torch.device = _HOST,
    ) -> None:
        """`device` is where this rank's data lies."""
        self._device = device
        self._endpoint, self._transports, self._me, self._group = endpoint, transports, me, group
        self._peers, self._timeout = peers, timeout
        self.sent: dict[int, int] = defaultdict(int)
        self.received: dict[int, int] = defaultdict(int)
        self._senders: dict[tuple[int, str], SendChannel] = {}
        self._receivers: dict[tuple[int, str], ReceiveChannel] = {}

    def path_to(self, peer: int) -> str:
        """The name of the path to a peer. Raises ConfigurationError where there is none."""
        return self._transport(peer).name

    def _transport(self, peer: int) -> Transport:
        """The path to a peer. Raises ConfigurationError where there is none."""
        lower, higher = sorted((self._me, peer))
        found = choose(self._transports, self._peers[lower], self._peers[higher])
        if found is None:
            mine, theirs = (
                ", ".join(name for name, _ in self._peers[rank].offers) or "none" for rank in (self._me, peer)
            )
            raise ConfigurationError(
                f"no path works both on rank {self._me} ({mine}) and on {self._peers[peer].title} ({theirs});"
                " allow tcp in HETCCL_PATHS"
            )
        return found

    def sender(self, peer: int, name: str) -> SendChannel:
        channel = self._senders.get((peer, name))
        if channel is None:
            path = self._transport(peer)
            channel = _CountedSender(path.sender(self._link(self._me, peer, peer, name)), peer, self.sent)
            self._senders[peer, name] = channel
        return channel

    def receiver(self, peer: int, name: str) -> ReceiveChannel:
        channel = self._receivers.get((peer, name))
        if channel is None:
            path = self._transport(peer)
            channel = _CountedReceiver(path.receiver(self._link(peer, self._me, peer, name)), peer, self.received)
            self._receivers[peer, name] = channel
        return channel

    def _link(self, source: int, target: int, peer: int, name: str) -> Link:
        key = f"{self._group}/{source}>{target}/{name}"
        return Link(
            self._endpoint, self._peers[peer].location, key, self._peers[peer].title, self._timeout, self._device
        )

    def release(self) -> None:
        """After a fault: let streams go on that wait for a peer. May be called from any thread."""
        for sender in list(self._senders.values()):
            sender.release()
        for receiver in list(self._receivers.values()):
            receiver.release()

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()
        for receiver in self._receivers.values():
            receiver.close()
        self._senders.clear()
        self._receivers.clear()
