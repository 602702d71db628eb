"""Reductions: their names, identities, and how torch combines two partial results."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache

import torch


class Reduction(str, Enum):
    """The reductions of torch.distributed. AVG is carried out as SUM and one scale at the owner."""

    SUM = "sum"
    AVG = "avg"
    MAX = "max"
    MIN = "min"
    PROD = "prod"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    @property
    def carried(self) -> Reduction:
        """The reduction that libraries are asked for."""
        return Reduction.SUM if self is Reduction.AVG else self


_COMBINE: dict[Reduction, Callable[..., torch.Tensor]] = {
    Reduction.SUM: torch.add,
    Reduction.MAX: torch.maximum,
    Reduction.MIN: torch.minimum,
    Reduction.PROD: torch.mul,
    Reduction.BAND: torch.bitwise_and,
    Reduction.BOR: torch.bitwise_or,
    Reduction.BXOR: torch.bitwise_xor,
}


def combine(reduction: Reduction, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """out = left ∘ right, elementwise; out may be either of them."""
    _COMBINE[reduction.carried](left, right, out=out)


def identity(reduction: Reduction, dtype: torch.dtype) -> float | int:
    """The value e with e ∘ x = x in this dtype."""
    reduction = reduction.carried
    if reduction is Reduction.PROD:
        return 1
    if reduction is Reduction.BAND:
        return -1 if dtype.is_signed else torch.iinfo(dtype).max
    if reduction in (Reduction.MAX, Reduction.MIN):
        lowest = reduction is Reduction.MAX
        if dtype.is_floating_point:
            return float("-inf") if lowest else float("inf")
        limits = torch.iinfo(dtype)
        return limits.min if lowest else limits.max
    return 0


@cache
def combinable(reduction: Reduction, dtype: torch.dtype) -> bool:
    """Whether torch can combine two CPU tensors of this dtype with this reduction."""
    probe = torch.zeros(1, dtype=torch.uint8, device="cpu").new_empty(1, dtype=dtype)
    try:
        combine(reduction, probe, probe, probe)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


def average(tensor: torch.Tensor, count: int) -> None:
    """Divide a sum by the number of ranks, in place; integers round towards zero."""
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.div_(count)
    else:
        tensor.div_(count, rounding_mode="trunc")
