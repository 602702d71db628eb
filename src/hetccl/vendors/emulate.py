"""Reductions that a library lacks, made from its movement of bytes and torch's elementwise operations.

reduce_scatter is an all_to_all and a fold in member order: as many bytes as a native one, and the same result on
whichever member asks. Any dtype that torch can combine works.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch

from ..plan.partition import chunked
from ..reduction import Reduction, combine
from ..request import Request, Script
from .base import Communicator


def reduce_scatter(
    communicator: Communicator, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction
) -> Request:
    """The contract's reduce_scatter."""

    def phases() -> Generator[Request, None, None]:
        mine = sources[communicator.index]
        inbox = [torch.empty_like(mine) for _ in range(communicator.size)]
        yield communicator.all_to_all(inbox, sources)
        total = inbox[0]
        for part in inbox[1:]:
            combine(reduction, total, part, total)
        target.copy_(total)

    return Script(phases())


def all_reduce(communicator: Communicator, tensor: torch.Tensor, reduction: Reduction) -> Request:
    """The contract's all_reduce: a reduce_scatter and an all_gather, in place."""

    def phases() -> Generator[Request, None, None]:
        edges = chunked(tensor.numel(), communicator.size)
        parts = [tensor[edges[i] : edges[i + 1]] for i in range(communicator.size)]
        mine = parts[communicator.index]
        yield reduce_scatter(communicator, mine, parts, reduction)
        yield communicator.all_gather(parts, mine)

    return Script(phases())


def reduce(
    communicator: Communicator, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int
) -> Request:
    """The contract's reduce: a reduce_scatter whose only piece is the root's."""
    nothing = source[:0]
    sources = [source if place == root else nothing for place in range(communicator.size)]
    return reduce_scatter(communicator, target if communicator.index == root else nothing.clone(), sources, reduction)


def through_exchange(
    communicator: Communicator, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]
) -> Request:
    """The contract's all_to_all, by point to point."""
    index = communicator.index
    targets[index].copy_(sources[index])
    others = [place for place in range(communicator.size) if place != index]
    return communicator.exchange(
        [(sources[place], place) for place in others if sources[place].numel()],
        [(targets[place], place) for place in others if targets[place].numel()],
    )
