"""Run by every rank of a job in which something goes wrong; prints the error that it ends with, and when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

import hetccl

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
    if CASE == "stop":
        for step in range(100_000):
            if step == 20 and VICTIM == RANK:
                print(f"STOPPED {time.time()}", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)
            dist.all_reduce(torch.ones(50_000))
    if CASE == "pause":
        for step in range(40):
            if step == 20 and VICTIM == RANK:
                subprocess.Popen(["sh", "-c", f"sleep 1.5; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
            tensor = torch.ones(50_000)
            dist.all_reduce(tensor)
            assert (tensor == 4).all()
    if CASE == "impatient":
        dist.barrier()
        if VICTIM == RANK:
            time.sleep(1.5)
        tensor = torch.ones(5)
        work = dist.all_reduce(tensor, async_op=True)
        if VICTIM != RANK:
            with suppress(hetccl.TimeoutError):
                work.wait(timedelta(seconds=0.2))
                raise AssertionError("the wait should have expired")
        work.wait()
        assert (tensor == 4).all()
    if CASE == "refused":
        if VICTIM == RANK:
            with suppress(hetccl.ArgumentError):
                dist.all_gather([torch.empty(3) for _ in range(4)], torch.ones(4))
                raise AssertionError("the call should have been refused")
        outputs = [torch.empty(4) for _ in range(4)]
        dist.all_gather(outputs, torch.full((4,), float(RANK)))
        assert [output[0].item() for output in outputs] == [0, 1, 2, 3]
    if CASE == "silent":
        dist.all_reduce(torch.ones(3))
        print("NO ERROR", flush=True)
        sys.exit(0)  # without destroying the group
    if CASE == "dtypes":
        dist.all_reduce(torch.ones(4, dtype=torch.float32 if VICTIM != RANK else torch.int32))
        dist.barrier()
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


began = time.time()
if CASE == "settings" and VICTIM == RANK:
    os.environ[os.environ["SETTING"]] = os.environ["VALUE"]
try:
    dist.init_process_group("hetccl", timeout=timedelta(seconds=float(os.environ.get("DEADLINE", "20"))))
    act()
    print("NO ERROR", flush=True)
except Exception as error:
    print(f"RAISED {time.time()} {type(error).__name__}: {error}", flush=True)
print(f"TOOK {time.time() - began}", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
