"""Collectives of a mixed job against Gloo with the same ranks, in the same run, alternating.

    torchrun --nproc-per-node 4 benchmarks/collectives.py --vendors gloo,mpi

Rank r uses the r-th vendor of the list, in turn. `time` is the median over rounds of the slowest rank's time for one
call, `cpu` the processor time of rank 0's process in it; algbw and busbw as nccl-tests define them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

ROUNDS = 7


def calls(name: str, nbytes: int, size: int, group: dist.ProcessGroup | None) -> Callable[[], object]:
    """The operation on float32 tensors of nbytes in all, as nccl-tests counts them."""
    whole = torch.ones(max(nbytes // 4, size))
    part = torch.ones(max(nbytes // 4 // size, 1))
    parts = torch.empty(part.numel() * size)
    match name:
        case "all_reduce":
            return lambda: dist.all_reduce(whole, group=group)
        case "broadcast":
            return lambda: dist.broadcast(whole, 0, group=group)
        case "all_gather":
            return lambda: dist.all_gather_into_tensor(parts, part, group=group)
        case "reduce_scatter":
            return lambda: dist.reduce_scatter_tensor(part, parts, group=group)
        case "all_to_all":
            return lambda: dist.all_to_all_single(torch.empty_like(parts), parts, group=group)
        case "barrier":
            return lambda: dist.barrier(group=group)
    raise SystemExit(f"there is no operation {name}")


BUS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
"""busbw over algbw."""


def measure(call: Callable[[], object], count: int) -> tuple[float, float]:
    """(seconds, processor seconds) of one call."""
    began, used = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    return (time.perf_counter() - began) / count, (time.process_time() - used) / count


def compare(name: str, nbytes: int, groups: dict[str, dist.ProcessGroup | None]) -> dict[str, tuple[float, float]]:
    """Medians by group; every group has its turn in each round."""
    size = dist.get_world_size()
    functions = {title: calls(name, nbytes, size, group) for title, group in groups.items()}
    times: dict[str, list[tuple[float, float]]] = {title: [] for title in groups}
    count = 30 if nbytes <= 1 << 16 else 5 if nbytes <= 1 << 22 else 2
    for _ in range(ROUNDS + 1):
        for title, call in functions.items():
            dist.barrier(groups["gloo"])
            times[title].append(measure(call, count))
    slowest = {}
    for title, taken in times.items():
        everyone = torch.tensor([seconds for seconds, _ in taken[1:]], dtype=torch.float64)
        dist.all_reduce(everyone, dist.ReduceOp.MAX, group=groups["gloo"])
        slowest[title] = everyone.median().item(), statistics.median(cpu for _, cpu in taken[1:])
    return slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vendors", default="gloo,mpi")
    parser.add_argument("--operations", default="all_reduce,all_gather,broadcast,barrier")
    parser.add_argument("--sizes", default="8,1024,65536,1048576,67108864", help="bytes")
    options = parser.parse_args()
    vendors, rank = options.vendors.split(","), int(os.environ["RANK"])
    os.environ["HETCCL_VENDOR"] = vendors[rank % len(vendors)]
    dist.init_process_group("hetccl")
    groups = {"hetccl": None, "gloo": dist.new_group(backend="gloo")}
    size = dist.get_world_size()
    table = Table(title=f"{size} ranks, vendors {options.vendors}, against Gloo")
    for column in ("operation", "bytes", "time us", "cpu us", "algbw GB/s", "busbw GB/s", "gloo us", "gloo/hetccl"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    for name in options.operations.split(","):
        for nbytes in [0] if name == "barrier" else map(int, options.sizes.split(",")):
            found = compare(name, nbytes, groups)
            (ours, cpu), (theirs, _) = found["hetccl"], found["gloo"]
            algbw = nbytes / ours / 1e9
            bus = algbw * BUS.get(name, lambda _: 1.0)(size)
            row = (f"{ours * 1e6:,.0f}", f"{cpu * 1e6:,.0f}", f"{algbw:.3f}", f"{bus:.3f}", f"{theirs * 1e6:,.0f}")
            table.add_row(name, f"{nbytes:,}", *row, f"{theirs / ours:.2f}")
    if rank == 0:
        Console(width=120).print(table)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
