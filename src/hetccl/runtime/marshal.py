"""Between users' tensors and flat buffers: checks, views, and copies back where a tensor is not one flat run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ..errors import UnsupportedError
from ..reduction import Reduction, combinable
from .call import Call
from .memory import adjacent, flat

_REDUCTIONS = {
    dist.ReduceOp.SUM: Reduction.SUM,
    dist.ReduceOp.AVG: Reduction.AVG,
    dist.ReduceOp.MAX: Reduction.MAX,
    dist.ReduceOp.MIN: Reduction.MIN,
    dist.ReduceOp.PRODUCT: Reduction.PROD,
    dist.ReduceOp.BAND: Reduction.BAND,
    dist.ReduceOp.BOR: Reduction.BOR,
    dist.ReduceOp.BXOR: Reduction.BXOR,
}
_LOGICAL = {Reduction.SUM: Reduction.MAX, Reduction.PROD: Reduction.MIN}
"""On booleans a sum is an or, a product an and; as bytes of 0 and 1 these are MAX and MIN."""


@dataclass(frozen=True, slots=True)
class Flat:
    """A flat contiguous tensor that stands for users' tensors, and how to bring results back to them."""

    data: torch.Tensor
    back: Callable[[], None] | None = None


def reading(tensors: Sequence[torch.Tensor]) -> Flat:
    """The tensors' elements in order; without a copy where they are one run in memory."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        return Flat(flat(tensors[0].detach()))
    run = adjacent(tensors) if tensors else None
    if run is not None:
        return Flat(run.detach())
    return Flat(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else torch.empty(0))


def writing(tensors: Sequence[torch.Tensor], filled: bool = False) -> Flat:
    """Room for the tensors' elements in order, with their present values where `filled`."""
    if len(tensors) == 1 and tensors[0].is_contiguous():
        return Flat(flat(tensors[0].detach()))
    run = adjacent(tensors)
    if run is not None:
        return Flat(run.detach())
    targets = [tensor.detach() for tensor in tensors]
    if filled:
        data = torch.cat([tensor.reshape(-1) for tensor in targets])
    else:
        data = targets[0].new_empty(sum(tensor.numel() for tensor in targets))

    def back() -> None:
        parts = data.split([tensor.numel() for tensor in targets])
        for tensor, part in zip(targets, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))

    return Flat(data, back)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Movement needs no dtype."""
    return tensor.view(torch.uint8)


def for_reduction(tensor: torch.Tensor, operation: Any, call: Call) -> tuple[torch.Tensor, Reduction]:
    """The view and reduction by which libraries can reduce this tensor. Raises UnsupportedError where nobody can."""
    reduction, dtype = reduction_of(operation), tensor.dtype
    if reduction is None:
        known = ", ".join(reduction.name for reduction in Reduction)
        raise call.refusal(f"this reduction is not supported; use one of {known}", UnsupportedError)
    if scale_of(operation) is not None and not (dtype.is_floating_point or dtype.is_complex):
        raise call.refusal(f"PREMUL_SUM scales, which {dtype} cannot hold; pass a floating dtype", UnsupportedError)
    if dtype is torch.bool and reduction is not Reduction.AVG:
        return tensor.view(torch.uint8), _LOGICAL.get(reduction, reduction)
    if dtype.is_complex and reduction in (Reduction.SUM, Reduction.AVG):
        return torch.view_as_real(tensor).view(-1), reduction
    if not combinable(reduction, dtype):
        raise call.refusal(
            f"{reduction.value} of {dtype} can be done by no library in the group; pass another dtype or reduction",
            UnsupportedError,
        )
    return tensor, reduction


def scale_of(operation: Any) -> float | torch.Tensor | None:
    """The factor of a PREMUL_SUM, None for all other reductions. torch shows it only in the pickled state."""
    if getattr(operation, "op", operation) != dist.ReduceOp.PREMUL_SUM:
        return None
    state = operation.__getstate__()
    return state[1] if isinstance(state, tuple) else None


def reduction_of(operation: Any) -> Reduction | None:
    """torch's ReduceOp as ours; a PREMUL_SUM is the sum of scaled inputs. None for what is not supported."""
    kind = getattr(operation, "op", operation)
    for theirs, ours in _REDUCTIONS.items():
        if kind == theirs or operation == theirs:
            return ours
    return Reduction.SUM if scale_of(operation) is not None else None


def check(tensors: Sequence[torch.Tensor], devices: Sequence[str], vendor: str, call: Call) -> None:
    """Raise ArgumentError for what cannot be sent: other devices, sparse tensors, mixed dtypes."""
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise call.refusal(f"the tensor is {tensor.layout}; pass a dense one (tensor.to_dense())")
        if tensor.is_conj() or tensor.is_neg():
            raise call.refusal(
                "the tensor is a lazy conjugate or negative; pass tensor.resolve_conj().resolve_neg(), which holds the"
                " numbers themselves"
            )
        if tensor.device.type not in devices:
            raise call.refusal(
                f"the tensor is on {tensor.device}, but this rank's vendor {vendor} takes {' or '.join(devices)};"
                " move it with tensor.to()"
            )
        if tensor.dtype is not tensors[0].dtype:
            raise call.refusal(f"the tensors mix {tensors[0].dtype} and {tensor.dtype}; pass one dtype")
