"""Gloo: CPUs, over sockets; part of every torch build."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..errors import ConfigurationError
from .base import Setup
from .c10d import LONG, C10dVendor
from .skeleton import natives


def _make(setup: Setup) -> Any:
    if not dist.is_gloo_available():
        raise ConfigurationError("this torch build has no Gloo; set HETCCL_VENDOR to another adaptor")
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    # The device's address is ours to choose: what the host name resolves to is often 127.0.1.1.
    options._devices = [gloo.create_device(hostname=setup.address)]
    options._timeout = setup.timeout
    backend = gloo(setup.store, setup.index, len(setup.ranks), options)
    backend._set_default_timeout(LONG)
    return backend


_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

# Measured with torch 2.13, comparing bytes. It refuses int16, uint16/32/64 and float8 altogether, bitwise reductions of
# floats, and all but sums of complex numbers. A sum of bools leaves 2 in a byte, so of those only the bitwise ones are
# left to it.
vendor = C10dVendor(
    name="gloo",
    devices=("cpu",),
    make=_make,
    version=lambda: torch.__version__,
    reduces=natives(
        arithmetic=_INTEGERS | _FLOATS,
        bitwise=_INTEGERS | {torch.bool},
        additive=frozenset({torch.complex64, torch.complex128}),
    ),
    reduce_scatters=False,  # it only makes progress inside wait(), which would block the engine
    polls=False,
    reduces_in_place=True,
)
