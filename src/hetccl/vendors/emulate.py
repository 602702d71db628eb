"""Reductions that a library lacks, made from its movement of bytes and torch's elementwise operations.

Any dtype that torch can combine works. Partial results are folded in member order, so the result does not depend on
timing, and every member of an all_reduce gets the bits of the one that folded them. For n members and S bytes each:

- reduce_scatter: one all_to_all, then n-1 folds; (n-1)/n·S bytes in and out of each member, the bound.
- all_reduce: reduce_scatter, then all_gather; 2(n-1)/n·S in and out of each member, the bound.
- reduce: reduce_scatter, then each piece to the root; 2(n-1)/n·S into the root, against (n-1)·S if all sent everything
  there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ..plan.partition import chunked
from ..reduction import Reduction, combine
from ..request import Request
from .turns import Phases

Message = tuple[torch.Tensor, int]


class Movement(Protocol):
    """The movement of bytes that every library has. Calls start at once, in the order made."""

    size: int
    index: int

    def start_all_gather(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Request: ...

    def start_all_to_all(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request: ...

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Request: ...


def reduce_scatter(
    movement: Movement, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction
) -> Phases:
    """The contract's reduce_scatter; leaves all sources but `target` as they were."""
    length = target.numel()
    inbox = torch.empty(length * movement.size, dtype=target.dtype, device=target.device)
    parts = [inbox[place * length : (place + 1) * length] for place in range(movement.size)]
    yield movement.start_all_to_all(parts, sources)
    if length:
        total = parts[0]
        for part in parts[1:-1]:
            combine(reduction, total, part, total)
        combine(reduction, total, parts[-1], target)


def all_reduce(movement: Movement, tensor: torch.Tensor, reduction: Reduction) -> Phases:
    """The contract's all_reduce, in place."""
    parts = _pieces(tensor, movement.size)
    mine = parts[movement.index]
    yield from reduce_scatter(movement, mine, parts, reduction)
    yield movement.start_all_gather(parts, mine)


def reduce(movement: Movement, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int) -> Phases:
    """The contract's reduce."""
    parts = _pieces(source, movement.size)
    at_root = movement.index == root
    mine = _pieces(target, movement.size)[root] if at_root else torch.empty_like(parts[movement.index])
    yield from reduce_scatter(movement, mine, parts, reduction)
    others = [place for place in range(movement.size) if place != root]
    if at_root:
        places = _pieces(target, movement.size)
        receives = [(places[place], place) for place in others if parts[place].numel()]
        yield movement.start_exchange([], receives)
    elif mine.numel():
        yield movement.start_exchange([(mine, root)], [])


def _pieces(tensor: torch.Tensor, count: int) -> list[torch.Tensor]:
    edges = chunked(tensor.numel(), count)
    return [tensor[edges[place] : edges[place + 1]] for place in range(count)]


def through_exchange(movement: Movement, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request:
    """The contract's all_to_all, by point to point: the members agree on it whatever the sizes and places are."""
    targets[movement.index].copy_(sources[movement.index])
    others = [place for place in range(movement.size) if place != movement.index]
    return movement.start_exchange(
        [(sources[place], place) for place in others if sources[place].numel()],
        [(targets[place], place) for place in others if targets[place].numel()],
    )
