"""CPU tensors as numpy arrays that share their memory.

Not by `tensor.numpy()`, which forbids ever after to resize the tensor's storage: FSDP frees parameters and gradients in
just that way, and would fail on every tensor that went through a collective.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch


class _Lent:
    """Speaks numpy's array interface for a tensor; the array keeps it, and so the memory."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": (tensor.numel(),),
            "typestr": _type(tensor.dtype),
            "version": 3,
        }


def array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A contiguous CPU tensor's elements, flat; writing to the array writes to the tensor."""
    return np.asarray(_Lent(tensor))


@cache
def _type(dtype: torch.dtype) -> str:
    return str(torch.empty(0, dtype=dtype).numpy().dtype.str)
