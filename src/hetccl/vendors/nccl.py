"""NCCL on NVIDIA's torch builds and RCCL on AMD's: the same c10d backend name. Not run yet (docs/vendors.md)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..errors import ConfigurationError
from .base import Setup
from .c10d import LONG, C10dVendor
from .skeleton import natives


def _make(setup: Setup) -> Any:
    if not dist.is_nccl_available():
        raise ConfigurationError("this torch build has no NCCL; set HETCCL_VENDOR to another adaptor")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = LONG
    return dist.ProcessGroupNCCL(setup.store, setup.index, len(setup.ranks), options)


def _version() -> str:
    if not dist.is_nccl_available():
        raise ConfigurationError("this torch build has no NCCL; set HETCCL_VENDOR to another adaptor")
    module: Any = torch.cuda.nccl
    return ".".join(map(str, module.version()))


_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

vendor = C10dVendor(
    name="nccl",
    devices=("cuda",),
    make=_make,
    version=_version,
    reduces=natives(arithmetic=_INTEGERS | _FLOATS, bitwise=frozenset()),
    groups=True,
    streams=True,
    averages=True,
    aborts=True,
)
