"""The communicator of one rank: no library is needed to talk to oneself."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..reduction import Reduction
from ..request import Done, Request


class Alone:
    """The contract of `Communicator` for a single member."""

    size, index = 1, 0

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Request:
        return Done()

    def reduce(self, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int) -> Request:
        return _copied([target], [source])

    def broadcast(self, tensor: torch.Tensor, root: int) -> Request:
        return Done()

    def all_gather(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Request:
        return _copied(targets, [source])

    def reduce_scatter(self, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction) -> Request:
        return _copied([target], sources)

    def all_to_all(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request:
        return _copied(targets, sources)

    def exchange(
        self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]
    ) -> Request:
        return _copied([target for target, _ in receives], [source for source, _ in sends])

    def barrier(self) -> Request:
        return Done()

    def release(self) -> None:
        pass

    def close(self, abandon: bool) -> None:
        pass


def _copied(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request:
    for target, source in zip(targets, sources, strict=True):
        if target.data_ptr() != source.data_ptr():
            target.copy_(source)
    return Done()
