"""Paths chosen per pair, alike on both sides; channels made at first use; bytes counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from transport_peers import SECRET, complete

from hetccl import transports
from hetccl.errors import ConfigurationError
from hetccl.transports.endpoint import Endpoint
from hetccl.transports.fabric import Fabric, Peer, choose
from hetccl.transports.shm import Shm

pytestmark = [pytest.mark.timeout(30), pytest.mark.filterwarnings("error")]


def test_paths_come_best_first_or_as_named() -> None:
    names = [path.name for path in transports.available(None)]
    assert names.index("shm") < names.index("tcp")
    assert [path.name for path in transports.available(["tcp"])] == ["tcp"]
    with pytest.raises(ConfigurationError, match=r"pigeon.*shm, .*tcp"):
        transports.available(["tcp", "pigeon"])


def offers(names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    found = ((path.name, path.offers("cpu")) for path in transports.available(names))
    return tuple((name, offer) for name, offer in found if offer is not None)


@pytest.mark.parametrize(
    ("hosts", "lower", "higher", "path"),
    [
        (("a", "a"), ["shm", "tcp"], ["shm", "tcp"], "shm"),
        (("a", "b"), ["shm", "tcp"], ["shm", "tcp"], "tcp"),
        (("a", "a"), ["shm", "tcp"], ["tcp"], "tcp"),
        (("a", "a"), ["shm"], ["tcp"], None),
    ],
)
def test_the_choice(hosts: tuple[str, str], lower: list[str], higher: list[str], path: str | None) -> None:
    one = Peer("", hosts[0], offers(lower), "rank 0")
    two = Peer("", hosts[1], offers(higher), "rank 1")
    found = choose(transports.available(None), one, two)
    assert (found and found.name) == path


def test_shm_needs_processes_that_see_each_other() -> None:
    mine = Shm().offers("cpu")
    if mine is None:
        pytest.skip("no shm on this machine")
    assert Shm().connects(mine, mine, True)
    assert not Shm().connects(mine, mine, False)
    assert not Shm().connects(mine, mine + "1", True)


class Pair:
    def __init__(self, names: Sequence[str]) -> None:
        self.endpoints = [Endpoint("127.0.0.1", SECRET) for _ in range(2)]
        peers = {
            rank: Peer(endpoint.location, "h", offers(names), f"rank {rank} (host h, mpi)")
            for rank, endpoint in enumerate(self.endpoints)
        }
        self.left, self.right = (
            Fabric(endpoint, transports.available(names), rank, "group", peers, 5)
            for rank, endpoint in enumerate(self.endpoints)
        )

    def close(self) -> None:
        for part in (self.left, self.right, *self.endpoints):
            part.close()


@pytest.fixture(params=["shm", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    made = Pair([request.param])
    yield made
    made.close()


def test_channels_are_made_once_and_bytes_counted(pair: Pair) -> None:
    assert pair.left.path_to(1) == pair.right.path_to(0)
    assert pair.left.sender(1, "a") is pair.left.sender(1, "a")
    assert pair.left.sender(1, "a") is not pair.left.sender(1, "b")
    data, room = torch.arange(200, dtype=torch.uint8), torch.zeros(200, dtype=torch.uint8)
    there = pair.left.sender(1, "a").send([data[:50], data[50:]], 1)
    back = pair.right.sender(0, "a").send([data[:3]], 2)
    come = pair.right.receiver(0, "a").receive([room], 1)
    returned = pair.left.receiver(1, "a").receive([torch.zeros(3, dtype=torch.uint8)], 2)
    complete([there, back, come, returned])
    assert torch.equal(room, data)
    assert (pair.left.sent, pair.left.received) == ({1: 200}, {1: 3})
    assert (pair.right.sent, pair.right.received) == ({0: 3}, {0: 200})


def test_errors_name_the_peer_in_full(pair: Pair) -> None:
    there = pair.left.sender(1, "a").send([torch.zeros(4, dtype=torch.uint8)], 1)
    wrong = pair.right.receiver(0, "a").receive([torch.zeros(5, dtype=torch.uint8)], 1)
    with pytest.raises(RuntimeError, match=r"rank 0 \(host h, mpi\) sent"):
        complete([there, wrong])
    assert "rank 0 (host h, mpi)" in wrong.describe()


def test_no_path_is_told_with_both_sides_offers() -> None:
    endpoint = Endpoint("127.0.0.1", SECRET)
    peers = {0: Peer(endpoint.location, "a", (("tcp", "socket"),), "rank 0"), 1: Peer("", "b", (), "rank 1 (host b)")}
    fabric = Fabric(endpoint, transports.available(None), 0, "group", peers, 5)
    with pytest.raises(ConfigurationError, match=r"rank 0 \(tcp\) and on rank 1 \(host b\) \(none\)"):
        fabric.path_to(1)
    endpoint.close()
