"""Paths between two processes of this host: latency of 8 bytes one way, and bandwidth, beside memcpy and Gloo.

python benchmarks/paths.py

Latency is half a round trip, the median of many; bandwidth is one way: messages of one size one after another,
until the receiver has the last. Both processes spin, each on its own core. What arrives is compared.

memcpy is numpy's copy, which `shm` uses, between two buffers of that size on one core. It is a yardstick and no bound:
a path copies twice, but on two cores at once and through a ring that stays in the cache.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from rich.console import Console
from rich.table import Table

from hetccl import transports
from hetccl.request import Request
from hetccl.transports.base import Link
from hetccl.transports.endpoint import Endpoint
from hetccl.transports.tcp import Tcp

SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
ROUNDS, VOLUME, REPEATS = 1000, 256 << 20, 3
Measured = tuple[float, list[float]]
"""Microseconds for 8 bytes, and GB/s at each of `SIZES`."""


def wait(request: Request) -> None:
    while not request.test():
        pass


def pattern(size: int) -> torch.Tensor:
    """Bytes that are not all alike."""
    return torch.arange(size, dtype=torch.int32).remainder_(251).to(torch.uint8)


def measure(
    send: Callable[[torch.Tensor, int], Any], receive: Callable[[torch.Tensor, int], Any], rank: int
) -> Measured:
    """The two figures over any means of sending: `send` and `receive` block until done."""
    small = torch.zeros(8, dtype=torch.uint8)
    trips = []
    for number in range(ROUNDS):
        start = time.perf_counter()
        for step in (send, receive) if rank == 0 else (receive, send):
            step(small, number)
        trips.append((time.perf_counter() - start) / 2 * 1e6)
    rates = []
    for size in SIZES:
        expected, count = pattern(size), max(4, min(512, VOLUME // size))
        data = expected.clone() if rank == 0 else torch.full_like(expected, 255)
        best = 0.0
        for repeat in range(REPEATS + 1):
            start = time.perf_counter()
            for number in range(count):
                (send if rank == 0 else receive)(data, number)
            # The receiver's word that it has everything.
            (receive if rank == 0 else send)(small, count)
            if repeat:  # the first warms memory and buffers
                best = max(best, size * count / (time.perf_counter() - start) / 1e9)
        assert torch.equal(data, expected)
        rates.append(best)
    return statistics.median(trips[ROUNDS // 10 :]), rates


def over_path(name: str, rank: int, store: dist.Store) -> Measured:
    base, _, streams = name.partition("*")
    path = Tcp(int(streams)) if streams else transports.available([base])[0]
    endpoint = Endpoint("127.0.0.1", b"benchmark" * 4)
    store.set(f"{name}/{rank}", endpoint.location)
    other = 1 - rank
    location = store.get(f"{name}/{other}").decode()
    sender = path.sender(Link(endpoint, location, f"{name}/{rank}", f"rank {other}", 30))
    receiver = path.receiver(Link(endpoint, location, f"{name}/{other}", f"rank {other}", 30))
    try:
        return measure(
            lambda data, tag: wait(sender.send([data], tag)),
            lambda data, tag: wait(receiver.receive([data], tag)),
            rank,
        )
    finally:
        store.add(f"{name}/done", 1)
        while store.add(f"{name}/done", 0) < 2:
            time.sleep(0.01)
        sender.close()
        receiver.close()
        endpoint.close()


def over_gloo(rank: int) -> Measured:
    return measure(lambda data, _: dist.send(data, 1 - rank), lambda data, _: dist.recv(data, 1 - rank), rank)


def memcpy() -> Measured:
    rates = []
    for size in SIZES:
        source, target = pattern(size).numpy(), np.ones(size, np.uint8)
        count, best = max(4, min(512, VOLUME // size)), 0.0
        for _ in range(REPEATS):
            start = time.perf_counter()
            for _ in range(count):
                np.copyto(target, source)
            best = max(best, size * count / (time.perf_counter() - start) / 1e9)
        rates.append(best)
    return float("nan"), rates


def work(rank: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[rank]})
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    measured = {"memcpy": memcpy()} if rank == 0 else {}
    dist.barrier()
    for name in ("shm", "tcp", "tcp*2"):
        measured[name] = over_path(name, rank, store)
    measured["gloo"] = over_gloo(rank)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        results.put(measured)


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    results = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(work, (port, results), 2)
    table = Table("path", "8 B µs", *(f"{size >> 10} KiB" for size in SIZES), title="one way, GB/s")
    for name, (latency, rates) in results.get().items():
        table.add_row(name, "" if latency != latency else f"{latency:.1f}", *(f"{rate:.2f}" for rate in rates))
    Console().print(table)


if __name__ == "__main__":
    main()
