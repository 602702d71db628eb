"""Three processes, the members of one communicator, that the contract tests of the vendors drive."""

from __future__ import annotations

import multiprocessing
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.distributed import PrefixStore, TCPStore

from hetccl import vendors
from hetccl.reduction import Reduction, combine
from hetccl.request import Request
from hetccl.vendors.base import Communicator, Setup

MEMBERS = 3
RANKS = (1, 4, 6)
"""The members' ranks in the job: not their places."""


def data(place: int, size: int, dtype: torch.dtype, purpose: int = 0) -> torch.Tensor:
    """What a member contributes: small whole numbers, whose sums and products every dtype holds exactly."""
    spread = torch.arange(size, dtype=torch.int32) * 7 + place * 5 + purpose * 3
    return (spread.remainder_(4) + 1).to(dtype)


def reduced(parts: list[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        combine(reduction, total, part, total)
    return total


def finish(request: Request, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not request.test():
        if time.monotonic() > end:
            raise AssertionError("stuck: " + request.describe())
        time.sleep(2e-5)  # three members share few cores: spinning would starve the others


def layout(sizes: list[int], dtype: torch.dtype, adjacent: bool) -> list[torch.Tensor]:
    """Room for pieces, in one storage or each in its own."""
    if adjacent:
        return list(torch.zeros(sum(sizes), dtype=dtype).split(sizes))
    return [torch.zeros(size, dtype=dtype) for size in sizes]


class Member:
    """One process's place in a communicator."""

    def __init__(self, vendor: str, place: int, port: int) -> None:
        self.vendor, self.place = vendors.find(vendor), place
        self.store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=30))
        self.communicator: Communicator | None = None

    def library(self) -> str:
        return self.vendor.library().version

    def connect(self, name: str, seconds: float) -> None:
        store = PrefixStore(name, self.store)
        setup = Setup(name, RANKS, self.place, store, timedelta(seconds=seconds), "127.0.0.1")
        self.communicator = self.vendor.communicator(setup)
        assert (self.communicator.size, self.communicator.index) == (MEMBERS, self.place)

    def close(self) -> None:
        assert self.communicator is not None
        self.communicator.close(False)

    def _finish(self, request: Request) -> None:
        finish(request)
        assert request.test(), "a request stays done"

    def all_reduce(self, size: int, dtype: torch.dtype, reduction: Reduction) -> bytes:
        c = self.communicator
        tensor = data(self.place, size, dtype)
        self._finish(c.all_reduce(tensor, reduction))
        same(tensor, reduced([data(place, size, dtype) for place in range(MEMBERS)], reduction))
        return tensor.view(torch.uint8).numpy().tobytes() if size < 1000 else b""

    def all_reduce_fractions(self, size: int, dtype: torch.dtype, reduction: Reduction) -> bytes:
        """Numbers whose sum depends on the order; the result's bytes."""
        torch.manual_seed(self.place)
        tensor = torch.randn(size).to(dtype)
        self._finish(self.communicator.all_reduce(tensor, reduction))
        return tensor.view(torch.uint8).numpy().tobytes()

    def reduce(self, size: int, dtype: torch.dtype, reduction: Reduction) -> None:
        for root, aliased in ((0, True), (2, False)):
            source = data(self.place, size, dtype)
            target = source if aliased else torch.zeros(size, dtype=dtype)
            self._finish(self.communicator.reduce(source, target, reduction, root))
            if self.place == root:
                same(target, reduced([data(place, size, dtype) for place in range(MEMBERS)], reduction))
            else:
                same(source, data(self.place, size, dtype))

    def broadcast(self, size: int, dtype: torch.dtype) -> None:
        for root in range(MEMBERS):
            tensor = data(self.place, size, dtype, root)
            self._finish(self.communicator.broadcast(tensor, root))
            same(tensor, data(root, size, dtype, root))

    def all_gather(self, sizes: list[int], dtype: torch.dtype) -> None:
        for adjacent in (True, False):
            for aliased in (True, False):
                targets = layout(sizes, dtype, adjacent)
                source = data(self.place, sizes[self.place], dtype)
                if aliased:
                    targets[self.place].copy_(source)
                    source = targets[self.place]
                self._finish(self.communicator.all_gather(targets, source))
                for place, target in enumerate(targets):
                    same(target, data(place, sizes[place], dtype))

    def reduce_scatter(self, sizes: list[int], dtype: torch.dtype, reduction: Reduction) -> None:
        for adjacent, aliased in ((True, True), (True, False), (False, sizes[0] == sizes[1])):
            sources = layout(sizes, dtype, adjacent)
            for purpose, source in enumerate(sources):
                source.copy_(data(self.place, len(source), dtype, purpose))
            target = sources[self.place] if aliased else torch.zeros(sizes[self.place], dtype=dtype)
            self._finish(self.communicator.reduce_scatter(target, sources, reduction))
            parts = [data(place, len(target), dtype, self.place) for place in range(MEMBERS)]
            same(target, reduced(parts, reduction))

    def all_to_all(self, sizes: list[int], dtype: torch.dtype) -> None:
        """Member i sends j as many numbers as sizes[(i + j) % 3]."""
        lengths = [sizes[(self.place + other) % MEMBERS] for other in range(MEMBERS)]
        sources = [data(self.place, length, dtype, other) for other, length in enumerate(lengths)]
        targets = [torch.zeros(length, dtype=dtype) for length in lengths]
        self._finish(self.communicator.all_to_all(targets, sources))
        for other, target in enumerate(targets):
            same(target, data(other, lengths[other], dtype, self.place))

    def exchange(self, sizes: list[int], dtype: torch.dtype) -> None:
        """To each other member, one message of each size, in order."""
        others = [place for place in range(MEMBERS) if place != self.place]
        sends = [(data(self.place, size, dtype, n), o) for o in others for n, size in enumerate(sizes)]
        receives = [(torch.zeros(size, dtype=dtype), other) for other in others for size in sizes]
        self._finish(self.communicator.exchange(sends, receives))
        for number, (target, other) in enumerate(receives):
            same(target, data(other, len(target), dtype, number % len(sizes)))

    def several(self) -> None:
        """Operations in flight together."""
        c, dtype = self.communicator, torch.float32
        first, second = data(self.place, 50000, dtype), data(self.place, 50000, dtype, 1)
        requests = [c.all_reduce(first, Reduction.SUM), c.broadcast(second, 2), c.barrier()]
        for request in reversed(requests):
            self._finish(request)
        same(first, reduced([data(place, 50000, dtype) for place in range(MEMBERS)], Reduction.SUM))
        same(second, data(2, 50000, dtype, 1))

    def barrier(self) -> tuple[float, float]:
        time.sleep(0.2 * self.place)
        began = time.monotonic()
        self._finish(self.communicator.barrier())
        return began, time.monotonic()


def same(left: torch.Tensor, right: torch.Tensor) -> None:
    assert left.dtype == right.dtype
    assert torch.equal(left, right), f"{left[:8].tolist()}… is not {right[:8].tolist()}…"


def serve(pipe: Connection, vendor: str, place: int, port: int) -> None:
    torch.set_num_threads(1)
    member = Member(vendor, place, port)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((None, getattr(member, name)(*arguments)))
        except Exception as error:
            pipe.send((type(error).__name__, f"place {place}: {error}"))


class Failed(Exception):
    """A call in a member raised; `kind` is the error's class name."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Members:
    """Some of the places of one communicator, as the test sees them."""

    def __init__(self, vendor: str, places: range = range(MEMBERS)) -> None:
        self.vendor = vendor
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = multiprocessing.get_context("spawn")
        self._members = []
        for place in places:
            mine, theirs = context.Pipe()
            arguments = (theirs, vendor, place, self.store.port)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._members.append((mine, process))

    def call(self, name: str, *arguments: object, seconds: float = 25) -> list[Any]:
        """Do the same on all; their results, or the first one's failure."""
        for pipe, _ in self._members:
            pipe.send((name, arguments))
        results, failure = [], None
        for pipe, _ in self._members:
            assert pipe.poll(seconds), "a member does not answer"
            kind, value = pipe.recv()
            failure = failure or (kind and Failed(kind, value))
            results.append(value)
        if failure:
            raise failure
        return results

    def end(self) -> list[int | None]:
        """The members' exit codes."""
        for pipe, _ in self._members:
            pipe.close()
        for _, process in self._members:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        return [process.exitcode for _, process in self._members]
