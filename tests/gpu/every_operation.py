"""tests/runtime/every_operation.py with the tensors of ranks under NCCL on the GPU."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import torch

vendors = os.environ["TEST_VENDOR"].split(",")
rank = int(os.environ["RANK"])
if vendors[rank % len(vendors)] == "nccl":
    os.environ["NCCL_HOSTID"] = f"host{rank}"  # else NCCL refuses two ranks on one GPU
    torch.cuda.set_device(0)
    torch.set_default_device("cuda")
runpy.run_path(str(Path(__file__).parent.parent / "runtime" / "every_operation.py"), run_name="__main__")
