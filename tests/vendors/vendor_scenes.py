"""One member of a scene that ends in an unusual way: run as `vendor_scenes.py scene vendor place size port`."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
from torch.distributed import PrefixStore, TCPStore

from hetccl import vendors
from hetccl.reduction import Reduction
from hetccl.request import Request
from hetccl.vendors.base import Communicator, Setup


def connect(name: str, vendor: str, ranks: tuple[int, ...], index: int, store: TCPStore) -> Communicator:
    setup = Setup(name, ranks, index, PrefixStore(name, store), timedelta(seconds=15), "127.0.0.1")
    return vendors.find(vendor).communicator(setup)


def finish(*requests: Request) -> None:
    end, left = time.monotonic() + 10, list(requests)
    while left:
        left = [request for request in left if not request.test()]
        assert time.monotonic() < end, [request.describe() for request in left]


def layout(communicator: Communicator) -> None:
    """The members' tensors lie differently: on member 0 side by side, on the others apart or reversed."""
    size, index = communicator.size, communicator.index

    def pieces(lengths: list[int]) -> list[torch.Tensor]:
        whole = list(torch.zeros(sum(lengths)).split(lengths))
        apart = [torch.zeros(length) for length in lengths]
        backwards = list(reversed(torch.zeros(sum(lengths)).split(lengths[::-1])))
        return (whole, apart, backwards)[index % 3]

    for lengths in ([4] * size, [0, 5, 2][:size], [70_000, 1, 33][:size]):
        targets = pieces(lengths)
        finish(communicator.all_gather(targets, torch.full((lengths[index],), index + 1.0)))
        assert all(bool((target == place + 1).all()) for place, target in enumerate(targets))
        sources, target = pieces(lengths), torch.zeros(lengths[index])
        for place, source in enumerate(sources):
            source.fill_(place + index)
        finish(communicator.reduce_scatter(target, sources, Reduction.SUM))
        assert bool((target == size * index + sum(range(size))).all())
        sources, targets = pieces([3] * size), pieces([3] * size)
        for source in sources:
            source.fill_(index)
        finish(communicator.all_to_all(targets, sources))
        assert all(bool((target == place).all()) for place, target in enumerate(targets))


def order(communicator: Communicator) -> None:
    """Calls of several phases in flight, asked for in another order by each member."""
    size, index = communicator.size, communicator.index
    first = torch.full((1000,), 1 + index, dtype=torch.int16).to(torch.bfloat16)
    tensors = [torch.full((1000,), scale * (1 + index), dtype=torch.int16) for scale in (1, 10, 100)]
    tensors = [first, *(tensor.to(torch.complex64) for tensor in tensors), *tensors]
    emulated = [torch.full((999,), index % 2 == 0), torch.full((999,), True)]
    requests = [communicator.all_reduce(tensor, Reduction.SUM) for tensor in tensors]
    requests += [communicator.all_reduce(tensor, Reduction.PROD) for tensor in emulated]
    shared = torch.full((500,), float(index))
    requests.append(communicator.broadcast(shared, 1))
    requests.append(communicator.barrier())
    turned = requests[index:] + requests[:index]
    finish(*(turned if index % 2 else reversed(turned)))
    total = sum(range(1, size + 1))
    for tensor, scale in zip(tensors, (1, 1, 10, 100, 1, 10, 100), strict=True):
        assert bool((tensor == scale * total).all()), (tensor.dtype, scale)
    assert not emulated[0].any()
    assert emulated[1].view(torch.uint8).eq(1).all()
    assert bool((shared == 1).all())


def main(scene: str, vendor: str, place: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
    ranks = tuple(range(size))
    communicator = connect("all", vendor, ranks, place, store)
    if scene == "agree":
        layout(communicator)
        order(communicator)
    if scene == "subset":
        if place != 1:
            part = connect("part", vendor, (0, 2), place // 2, store)
            tensor = torch.ones(5)
            finish(part.all_reduce(tensor, Reduction.SUM))
            assert bool((tensor == 2).all())
            part.close(False)
        if place == 0:
            connect("wider", vendor, (0, 7), 0, fake_partner(store))
    if scene == "killed":
        finish(communicator.barrier())
        if place == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        communicator.close(False)
    print("end of", scene)


def fake_partner(store: TCPStore) -> TCPStore:
    """Rank 7 seems to have come, so that the start goes on to where it must refuse."""
    PrefixStore("wider", store).set("the start/1", "127.0.0.1")
    return store


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
