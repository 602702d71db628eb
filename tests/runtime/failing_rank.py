"""Run by every rank of a job in which something goes wrong; prints the error that it ends with, and when."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

RANK, CASE = int(os.environ["RANK"]), sys.argv[1]
VICTIM = int(os.environ.get("VICTIM", "1"))


def act() -> None:
    if CASE == "kill":
        for step in range(100_000):
            if step == 20 and VICTIM == RANK:
                print(f"KILLED {time.time()}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(50_000))
    if CASE == "absent":
        dist.all_reduce(torch.ones(3))
        if VICTIM == RANK:
            time.sleep(9)
            return
        dist.all_reduce(torch.ones(7))
    if CASE == "sizes":
        dist.all_reduce(torch.ones(4 if VICTIM != RANK else 5))
        dist.barrier()
    if CASE == "operations":
        if VICTIM == RANK:
            dist.all_gather([torch.empty(4) for _ in range(4)], torch.ones(4))
        else:
            dist.all_reduce(torch.ones(4))
        dist.barrier()
    if CASE == "reductions":
        dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if VICTIM == RANK else dist.ReduceOp.SUM)
        dist.barrier()
    if CASE == "roots":
        dist.broadcast(torch.ones(4), 1 if VICTIM == RANK else 0)
        dist.barrier()


dist.init_process_group("hetccl", timeout=timedelta(seconds=float(os.environ.get("DEADLINE", "20"))))
try:
    act()
    print("NO ERROR", flush=True)
except Exception as error:
    print(f"RAISED {time.time()} {type(error).__name__}: {error}", flush=True)
dist.destroy_process_group()
