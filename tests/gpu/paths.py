"""The path between a device and its neighbours on one host, against its physical limit and Gloo, in one run.

    python3 tests/gpu/paths.py

Two processes. `limit` is what one process's copy engine moves between pinned memory and the device in that direction.
"""

from __future__ import annotations

import os
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

SIZES = (1 << 20, 16 << 20, 256 << 20)
ROUNDS = 9


def limit(nbytes: int) -> tuple[float, float]:
    """Bytes per second (device to host, host to device) of pinned copies."""
    device, host = (torch.empty(nbytes, dtype=torch.uint8, device=d, pin_memory=d == "cpu") for d in ("cuda", "cpu"))
    rates = []
    for target, source in ((host, device), (device, host)):
        times = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        rates.append(nbytes / statistics.median(times))
    return rates[0], rates[1]


def ordered(kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()


def one_way(rank: int, tensor: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    """Seconds of one message 0 -> 1, seen by rank 1; median."""
    times = []
    for _ in range(ROUNDS):
        dist.barrier(group)
        began = time.perf_counter()
        if rank == 0:
            dist.send(tensor, 1, group)
        else:
            dist.recv(tensor, 0, group)
        ordered(tensor.device.type)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> float:
    times = []
    for _ in range(ROUNDS):
        dist.barrier(group)
        began = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        ordered(tensor.device.type)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def worker(rank: int, kinds: tuple[str, str], port: int, out: multiprocessing.Queue) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    kind = kinds[rank]
    os.environ["HETCCL_VENDOR"] = "nccl" if kind == "cuda" else "gloo"
    os.environ["HETCCL_CLUSTER"] = str(rank)
    torch.cuda.set_device(0)
    dist.init_process_group("hetccl", timeout=timedelta(seconds=60))
    gloo = dist.new_group(backend="gloo")
    for nbytes in SIZES:
        ours = torch.ones(nbytes // 4, device=kind)
        theirs = torch.ones(nbytes // 4, device=kind if "cuda" in kinds else "cpu")
        cpu = time.process_time()
        sent = one_way(rank, ours, None)
        cpu = (time.process_time() - cpu) / ROUNDS / sent
        reduced = all_reduce(ours, None)
        if nbytes == SIZES[-1]:
            gloo_sent, gloo_reduced = one_way(rank, theirs, gloo), all_reduce(theirs, gloo)
        else:
            gloo_sent = gloo_reduced = float("nan")
        out.put((rank, nbytes, sent, reduced, gloo_sent, gloo_reduced, cpu))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    out_limit, in_limit = limit(SIZES[-1])
    print(f"limit: device to host {out_limit / 1e9:.1f} GB/s, host to device {in_limit / 1e9:.1f} GB/s")
    heads = ("bytes", "send GB/s", "of limit", "all_reduce", "Gloo send", "all_reduce", "x send", "x all_reduce")
    print(f"{'pair':<14}" + "".join(f"{head:>14}" for head in heads) + "   cpu of 0, 1")
    context = multiprocessing.get_context("spawn")
    for number, kinds in enumerate((("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda"))):
        out = context.Queue()
        sides = [context.Process(target=worker, args=(rank, kinds, 29600 + number, out)) for rank in (0, 1)]
        for side in sides:
            side.start()
        rows: dict[int, dict[int, tuple[float, ...]]] = {}
        try:
            for _ in range(2 * len(SIZES)):
                rank, nbytes, *figures = out.get(timeout=120)
                rows.setdefault(nbytes, {})[rank] = figures
        except Exception as error:
            print(f"{kinds}: {type(error).__name__} {error}")
        for nbytes, both in rows.items():
            if len(both) < 2:
                continue
            sent = both[1][0]
            reduced, gloo_sent, gloo_reduced = (max(both[0][i], both[1][i]) for i in (1, 2, 3))
            rates = [nbytes / t / 1e9 for t in (sent, reduced, gloo_sent, gloo_reduced)]
            sent_of_limit = rates[0] * 1e9 / min(out_limit, in_limit)
            figures = (rates[0], sent_of_limit, *rates[1:], rates[0] / rates[2], rates[1] / rates[3])
            row = "".join(f"{figure:>14.2f}" for figure in figures)
            cpu = f"   {both[0][4]:.2f}, {both[1][4]:.2f}"
            print(f"{kinds[0] + ' -> ' + kinds[1]:<14}{nbytes:>14}{row}{cpu}", flush=True)
        for side in sides:
            side.join(10)
            if side.is_alive():
                side.kill()


if __name__ == "__main__":
    main()
