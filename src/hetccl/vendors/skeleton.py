"""What the communicators of all libraries share: what needs no library, what is emulated, and whose turn it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Protocol

import torch

from ..errors import UnsupportedError
from ..reduction import Reduction, combinable
from ..request import Done, Request
from . import emulate
from .base import Setup
from .emulate import Message
from .turns import Turns


class Reducing(Protocol):
    """The part of a `Vendor` that its communicators ask."""

    @property
    def name(self) -> str: ...

    def supports(self, reduction: Reduction, dtype: torch.dtype) -> bool: ...


class Skeleton(ABC):
    """The contract of `Communicator`. A library adds the `start_…` calls.

    Those get only what it supports, never an all_reduce, reduce or broadcast of nothing, and no messages to itself or
    of no length. Which of its operations they use may depend on sizes, which all members know, but not on where the
    tensors lie (see `layout`).
    """

    def __init__(self, vendor: Reducing, setup: Setup) -> None:
        self.vendor = vendor
        self.size, self.index = len(setup.ranks), setup.index
        self.members = ", ".join(map(str, setup.ranks))
        self._turns = Turns()

    def what(self, operation: str) -> str:
        """An operation as errors name it."""
        return f"{self.vendor.name} {operation} among ranks {self.members}"

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Request:
        if not tensor.numel():
            return Done()
        what = self.what("all_reduce")
        if self._native(reduction, tensor.dtype):
            return self._turns.call(lambda: self.start_all_reduce(tensor, reduction), what)
        return self._turns.hold(lambda: emulate.all_reduce(self, tensor, reduction), what)

    def reduce(self, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int) -> Request:
        if not source.numel():
            return Done()
        what = self.what("reduce")
        if self._native(reduction, source.dtype):
            return self._turns.call(lambda: self.start_reduce(source, target, reduction, root), what)
        return self._turns.hold(lambda: emulate.reduce(self, source, target, reduction, root), what)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Request:
        if not tensor.numel():
            return Done()
        return self._turns.call(lambda: self.start_broadcast(tensor, root), self.what("broadcast"))

    def all_gather(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Request:
        if not any(target.numel() for target in targets):
            return Done()
        return self._turns.call(lambda: self.start_all_gather(targets, source), self.what("all_gather"))

    def reduce_scatter(self, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction) -> Request:
        if not any(source.numel() for source in sources):
            return Done()
        what = self.what("reduce_scatter")
        if self._native(reduction, target.dtype) and self.reduce_scatters:
            return self._turns.call(lambda: self.start_reduce_scatter(target, sources, reduction), what)
        return self._turns.hold(lambda: emulate.reduce_scatter(self, target, sources, reduction), what)

    def all_to_all(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request:
        return self._turns.call(lambda: self.start_all_to_all(targets, sources), self.what("all_to_all"))

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Request:
        own = deque(tensor for tensor, place in sends if place == self.index)
        for tensor, place in receives:
            if place == self.index:
                tensor.copy_(own.popleft())
        outgoing, incoming = (
            [(tensor, place) for tensor, place in messages if place != self.index and tensor.numel()]
            for messages in (sends, receives)
        )
        return self._turns.call(lambda: self.start_exchange(outgoing, incoming), self.what("exchange"))

    def barrier(self) -> Request:
        return self._turns.call(self.start_barrier, self.what("barrier"))

    def _native(self, reduction: Reduction, dtype: torch.dtype) -> bool:
        if self.vendor.supports(reduction, dtype):
            return True
        if not combinable(reduction, dtype):
            raise UnsupportedError(f"neither {self.vendor.name} nor torch can reduce {dtype} by {reduction.value}")
        return False

    reduce_scatters = True
    """Whether the library's reduce_scatter is worth using."""

    @abstractmethod
    def start_all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Request: ...

    @abstractmethod
    def start_reduce(self, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int) -> Request: ...

    @abstractmethod
    def start_broadcast(self, tensor: torch.Tensor, root: int) -> Request: ...

    @abstractmethod
    def start_all_gather(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Request: ...

    @abstractmethod
    def start_reduce_scatter(
        self, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction
    ) -> Request: ...

    @abstractmethod
    def start_all_to_all(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request: ...

    @abstractmethod
    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Request: ...

    @abstractmethod
    def start_barrier(self) -> Request: ...

    def release(self) -> None:
        """Nothing to do for a library without streams."""
        return

    @abstractmethod
    def close(self, abandon: bool) -> None: ...


def natives(
    arithmetic: frozenset[torch.dtype],
    bitwise: frozenset[torch.dtype],
    additive: frozenset[torch.dtype] = frozenset(),
    multiplicative: frozenset[torch.dtype] = frozenset(),
) -> dict[Reduction, frozenset[torch.dtype]]:
    """What a library reduces, as data: dtypes of all four arithmetic reductions, of the bitwise ones, and of some."""
    table: dict[Reduction, frozenset[torch.dtype]] = defaultdict(frozenset)
    for reduction in (Reduction.MAX, Reduction.MIN):
        table[reduction] = arithmetic
    for reduction in (Reduction.SUM, Reduction.AVG):
        table[reduction] = arithmetic | additive
    table[Reduction.PROD] = arithmetic | multiplicative
    for reduction in (Reduction.BAND, Reduction.BOR, Reduction.BXOR):
        table[reduction] = bitwise
    return dict(table)
