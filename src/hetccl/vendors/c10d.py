"""Any vendor library that a torch build has registered as a c10d backend: NCCL, RCCL, oneCCL, HCCL, …, Gloo."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..completer import completer
from ..errors import ConfigurationError, PeerError
from ..reduction import Reduction
from ..request import Done, Request, Together
from . import emulate
from .base import Communicator, Library, Setup

_OPERATIONS: dict[Reduction, Any] = {
    Reduction.SUM: dist.ReduceOp.SUM,
    Reduction.AVG: dist.ReduceOp.SUM,
    Reduction.MAX: dist.ReduceOp.MAX,
    Reduction.MIN: dist.ReduceOp.MIN,
    Reduction.PROD: dist.ReduceOp.PRODUCT,
    Reduction.BAND: dist.ReduceOp.BAND,
    Reduction.BOR: dist.ReduceOp.BOR,
    Reduction.BXOR: dist.ReduceOp.BXOR,
}


@dataclass(frozen=True)
class C10dVendor:
    """One c10d backend as a vendor: data, and a function that makes the backend."""

    name: str
    devices: tuple[str, ...]
    make: Callable[[Setup], Any]
    """Builds the c10d backend over the members."""
    version: Callable[[], str]
    arithmetic: frozenset[torch.dtype]
    """dtypes that the library adds, multiplies and compares."""
    bitwise: frozenset[torch.dtype] = field(default_factory=frozenset)
    native_reduce_scatter: bool = True
    polls: bool = True
    """Whether point-to-point works tell that they are done without being waited for."""
    in_place_reduce: bool = False
    """The backend's reduce works in the caller's tensor on all ranks."""

    def library(self) -> Library:
        return Library(self.name, self.version())

    def supports(self, reduction: Reduction, dtype: torch.dtype) -> bool:
        if reduction in (Reduction.BAND, Reduction.BOR, Reduction.BXOR):
            return dtype in self.bitwise
        return dtype in self.arithmetic

    def communicator(self, setup: Setup) -> Communicator:
        return C10dCommunicator(self, setup)


class _Pending:
    """A c10d work as a request. Keeps its tensors alive."""

    def __init__(self, work: Any, what: str, keep: object) -> None:
        self._work, self._what, self._keep = work, what, keep
        self._done = work is None

    def test(self) -> bool:
        if self._done:
            return True
        if not self._work.is_completed():
            return False
        try:
            self._work.wait()
        except Exception as error:
            raise PeerError(f"{self._what} failed: {error}") from error
        self._done, self._keep = True, None
        return True

    def describe(self) -> str:
        return self._what


class _Waited:
    """A c10d work that only ends inside wait(): it is waited for on a thread of its own."""

    def __init__(self, work: Any, what: str, keep: object) -> None:
        self._what, self._keep = what, keep
        self._error: Exception | None = None
        self._ended = threading.Event()
        completer.submit(lambda: self._wait(work))

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except Exception as error:
            self._error = error
        self._ended.set()

    def test(self) -> bool:
        if not self._ended.is_set():
            return False
        if self._error is not None:
            raise PeerError(f"{self._what} failed: {self._error}") from self._error
        return True

    def describe(self) -> str:
        return self._what


class C10dCommunicator:
    """The contract of `Communicator` over a c10d backend."""

    def __init__(self, vendor: C10dVendor, setup: Setup) -> None:
        self._vendor = vendor
        self.size, self.index = len(setup.ranks), setup.index
        self._members = ", ".join(map(str, setup.ranks))
        try:
            self._backend = vendor.make(setup)
        except (RuntimeError, ValueError) as error:
            raise PeerError(f"{vendor.name} could not connect ranks {self._members}: {error}") from error

    def _start(self, name: str, work: Callable[[], Any], keep: object, polls: bool = True) -> Request:
        what = f"{self._vendor.name} {name} among ranks {self._members}"
        try:
            return _Pending(work(), what, keep) if polls else _Waited(work(), what, keep)
        except (RuntimeError, ValueError) as error:
            raise PeerError(f"{what} failed: {error}") from error

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Request:
        if not tensor.numel():
            return Done()
        if not self._vendor.supports(reduction, tensor.dtype):
            return emulate.all_reduce(self, tensor, reduction)
        options = dist.AllreduceOptions()
        options.reduceOp = _OPERATIONS[reduction]
        return self._start("all_reduce", lambda: self._backend.allreduce([tensor], options), tensor)

    def reduce(self, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int) -> Request:
        if not source.numel():
            return Done()
        if not self._vendor.supports(reduction, source.dtype):
            return emulate.reduce(self, source, target, reduction, root)
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = _OPERATIONS[reduction], root
        if self.index == root:
            work = target
            if work.data_ptr() != source.data_ptr():
                work.copy_(source)
        else:
            work = source.clone() if self._vendor.in_place_reduce else source
        return self._start("reduce", lambda: self._backend.reduce([work], options), work)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Request:
        if not tensor.numel():
            return Done()
        options = dist.BroadcastOptions()
        options.rootRank = root
        data = tensor.view(torch.uint8)
        return self._start("broadcast", lambda: self._backend.broadcast([data], options), data)

    def all_gather(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Request:
        lengths = {target.numel() for target in targets}
        if lengths == {0}:
            return Done()
        mine = targets[self.index]
        if len(lengths) == 1 and self._adjacent(targets):
            whole = torch.as_strided(targets[0], (sum(t.numel() for t in targets),), (1,)).view(torch.uint8)
            given = source.view(torch.uint8)
            return self._start("all_gather", lambda: self._backend._allgather_base(whole, given), (whole, given))
        if mine.data_ptr() != source.data_ptr():
            mine.copy_(source)
        return Together([self.broadcast(target, root) for root, target in enumerate(targets)])

    def _adjacent(self, tensors: Sequence[torch.Tensor]) -> bool:
        first = tensors[0]
        storage, step = first.untyped_storage().data_ptr(), first.numel()
        return all(
            t.untyped_storage().data_ptr() == storage and t.storage_offset() == first.storage_offset() + place * step
            for place, t in enumerate(tensors)
        )

    def reduce_scatter(self, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction) -> Request:
        lengths = {source.numel() for source in sources}
        if lengths == {0}:
            return Done()
        if not self._vendor.supports(reduction, target.dtype):
            return emulate.reduce_scatter(self, target, sources, reduction)
        if self._vendor.native_reduce_scatter and len(lengths) == 1 and self._adjacent(sources):
            options = dist.ReduceScatterOptions()
            options.reduceOp = _OPERATIONS[reduction]
            whole = torch.as_strided(sources[0], (sum(s.numel() for s in sources),), (1,))
            return self._start(
                "reduce_scatter", lambda: self._backend._reduce_scatter_base(target, whole, options), (target, whole)
            )
        return Together([self.reduce(source, target, reduction, root) for root, source in enumerate(sources)])

    def all_to_all(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request:
        return emulate.through_exchange(self, targets, sources)

    def exchange(
        self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]
    ) -> Request:
        polls = self._vendor.polls
        requests = []
        for verb, messages in (("recv", receives), ("send", sends)):
            for tensor, place in messages:
                data = tensor.view(torch.uint8)
                call = getattr(self._backend, verb)
                what = f"{verb} with place {place}"
                requests.append(self._start(what, partial(call, [data], place, 0), data, polls))
        return Together(requests)

    def barrier(self) -> Request:
        return self._start("barrier", lambda: self._backend.barrier(dist.BarrierOptions()), None)

    def close(self, abandon: bool) -> None:
        if abandon:
            # The backend's destructor joins threads that may wait for a dead peer: it must never run.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._backend))
        self._backend = None


def registered(backend: str) -> Callable[[Setup], Any]:
    """Make a backend that a vendor's torch build registered under this name."""

    def make(setup: Setup) -> Any:
        plugin = dist.Backend._plugins.get(backend.upper())
        if plugin is None:
            raise ConfigurationError(
                f"this torch build has no backend {backend!r}; install the vendor's torch, or set HETCCL_VENDOR"
            )
        if plugin.extended_api:
            options = dist.distributed_c10d._DistributedBackendOptions()
            options.store, options.group_rank, options.group_size = setup.store, setup.index, len(setup.ranks)
            options.timeout, options.group_id = setup.timeout, setup.name
            options.global_ranks_in_group = list(setup.ranks)
            return plugin.creator_fn(options, None)
        return plugin.creator_fn(setup.store, setup.index, len(setup.ranks), setup.timeout)

    return make


LONG = timedelta(days=1)
"""The engine keeps the deadlines; the library's own must not fire before them with a less telling message."""
