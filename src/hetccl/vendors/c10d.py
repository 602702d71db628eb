"""Any vendor library that a torch build has registered as a c10d backend: NCCL, oneCCL, HCCL, Gloo, …"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..completer import completer
from ..errors import ConfigurationError, HetcclError, PeerError
from ..reduction import Reduction
from ..request import Request, Script, Together
from .alone import Alone
from .base import Communicator, Library, Setup
from .emulate import Message
from .layout import Room, as_bytes, gathered
from .meeting import meet
from .skeleton import Skeleton
from .turns import Phases
from .work import Placed, Polled, Waited

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

LONG = timedelta(days=1)
"""The engine keeps the deadlines; the library's own must not fire before them with a less telling message."""


@dataclass(frozen=True, slots=True)
class C10dVendor:
    """One c10d backend as a vendor: data, and a function that makes the backend."""

    name: str
    devices: tuple[str, ...]
    make: Callable[[Setup], Any]
    """Builds the c10d backend over the members. May raise ConfigurationError."""
    version: Callable[[], str]
    """May raise ImportError or ConfigurationError."""
    reduces: Mapping[Reduction, frozenset[torch.dtype]]
    """dtypes by reduction; see `skeleton.natives`."""
    reduce_scatters: bool = True
    """Whether the library's reduce_scatter is worth using, and ends without being waited for."""
    polls: bool = True
    """Whether point-to-point works tell that they are done without being waited for."""
    groups: bool = False
    """Whether calls must be grouped to run together, as NCCL's sends and receives must."""
    reduces_in_place: bool = False
    """Whether reduce writes to the caller's tensor on every rank."""
    averages: bool = False
    """Whether the library itself does AVG."""
    streams: bool = False
    """Whether a work's wait() only has the current stream wait."""
    aborts: bool = False
    """Whether abort() ends what waits for a peer. Gloo's does not: its destructor still joins the waiting threads."""

    def library(self) -> Library:
        try:
            return Library(self.name, self.version())
        except ImportError as error:
            raise ConfigurationError(f"the library of the vendor {self.name!r} is not installed: {error}") from error

    def supports(self, reduction: Reduction, dtype: torch.dtype) -> bool:
        return dtype in self.reduces.get(reduction, ())

    def communicator(self, setup: Setup) -> Communicator:
        return C10dCommunicator(self, setup) if len(setup.ranks) > 1 else Alone()


class C10dCommunicator(Skeleton):
    """The contract of `Communicator` over a c10d backend."""

    def __init__(self, vendor: C10dVendor, setup: Setup) -> None:
        super().__init__(vendor, setup)
        self._vendor = vendor
        self.reduce_scatters = vendor.reduce_scatters
        meet(setup, "the start")
        try:
            self.backend = vendor.make(setup)
        except HetcclError:
            raise
        except (RuntimeError, ValueError) as error:
            raise PeerError(f"{vendor.name} could not connect ranks {self.members}: {error}") from error

    def start_all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Request:
        options = dist.AllreduceOptions()
        options.reduceOp = _OPERATIONS[reduction]
        return self._begin("all_reduce", lambda: self.backend.allreduce([tensor], options), tensor)

    def start_reduce(self, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int) -> Request:
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = _OPERATIONS[reduction], root
        if self.index == root:
            data = target
            if data.data_ptr() != source.data_ptr():
                data.copy_(source)
        else:
            data = source.clone() if self._vendor.reduces_in_place else source
        return self._begin("reduce", lambda: self.backend.reduce([data], options), data)

    def start_broadcast(self, tensor: torch.Tensor, root: int) -> Request:
        return self._begin("broadcast", self._broadcast(as_bytes(tensor), root), tensor)

    def _broadcast(self, data: torch.Tensor, root: int) -> Callable[[], Any]:
        options = dist.BroadcastOptions()
        options.rootRank = root
        return lambda: self.backend.broadcast([data], options)

    def start_all_gather(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Request:
        if len({target.numel() for target in targets}) == 1:
            room, given = Room(targets), as_bytes(source)
            whole = as_bytes(room.whole)
            request = self._begin("all_gather", lambda: self.backend._allgather_base(whole, given), (whole, given))
            return self._settled(request, room)
        mine = targets[self.index]
        if mine.data_ptr() != source.data_ptr():
            mine.copy_(source)
        calls = [self._broadcast(as_bytes(target), root) for root, target in enumerate(targets) if target.numel()]
        return self._together("all_gather", calls, targets)

    def start_reduce_scatter(
        self, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction
    ) -> Request:
        if len({source.numel() for source in sources}) == 1:
            options = dist.ReduceScatterOptions()
            options.reduceOp = _OPERATIONS[reduction]
            whole = gathered(sources)
            return self._begin(
                "reduce_scatter",
                lambda: self.backend._reduce_scatter_base(target, whole, options),
                (target, whole),
            )
        requests = [
            self.start_reduce(source, target, reduction, root) for root, source in enumerate(sources) if source.numel()
        ]
        return Together(requests)

    def start_all_to_all(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request:
        room, whole = Room(targets), as_bytes(gathered(sources))
        output = as_bytes(room.whole)
        coming, going = ([t.numel() * t.element_size() for t in tensors] for tensors in (targets, sources))
        request = self._begin(
            "all_to_all",
            lambda: self.backend.alltoall_base(output, whole, coming, going, dist.AllToAllOptions()),
            (output, whole),
        )
        return self._settled(request, room)

    def _settled(self, request: Request, room: Room) -> Request:
        def phases() -> Phases:
            yield request
            room.settle()

        return Script(phases()) if room.packed else request

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Request:
        calls = [
            partial(call, [as_bytes(tensor)], place, 0)
            for call, messages in ((self.backend.recv, receives), (self.backend.send, sends))
            for tensor, place in messages
        ]
        return self._together("exchange", calls, (sends, receives), self._vendor.polls)

    def start_barrier(self) -> Request:
        if self._vendor.streams:  # c10d's own barrier would hold up the processor
            return self.start_all_reduce(torch.zeros(1, device=self._vendor.devices[0]), Reduction.SUM)
        return self._begin("barrier", lambda: self.backend.barrier(dist.BarrierOptions()), None)

    def _together(self, name: str, calls: Sequence[Callable[[], Any]], keep: object, polls: bool = True) -> Request:
        """Several calls as one request, grouped where the library needs that."""
        if not (self._vendor.groups and calls):
            return Together([self._begin(name, call, keep, polls) for call in calls])

        def grouped() -> Any:
            self.backend._start_coalescing()
            for call in calls:
                call()
            return self.backend._end_coalescing()

        return self._begin(name, grouped, keep)

    def _begin(self, name: str, work: Callable[[], Any], keep: object, polls: bool = True) -> Request:
        what = self.what(name)
        try:
            if self._vendor.streams:
                return Placed(work(), what, keep)
            return Polled(work(), what, keep) if polls else Waited(work(), what, keep)
        except (RuntimeError, ValueError) as error:
            raise PeerError(f"{what} failed: {error}") from error

    def release(self) -> None:
        backend = self.backend
        if self._vendor.aborts and backend is not None:
            completer.submit(lambda: _abort(backend))

    def close(self, abandon: bool) -> None:
        backend, self.backend = self.backend, None
        if not abandon or backend is None:
            return
        # The destructor may join threads that wait for a dead or stuck peer: without an abort it must never run.
        if not self._vendor.aborts or not _aborted(backend):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(backend))


def _abort(backend: Any) -> None:
    _aborted(backend)


def _aborted(backend: Any) -> bool:
    with contextlib.suppress(Exception):
        backend.abort()
        return True
    return False


def registered(backend: str) -> Callable[[Setup], Any]:
    """Make a backend that a vendor's torch build registered under this name."""

    def make(setup: Setup) -> Any:
        plugin = dist.Backend._plugins.get(backend.upper())
        if plugin is None:
            raise ConfigurationError(
                f"this torch build has no backend {backend!r}; install the vendor's torch, or set HETCCL_VENDOR"
            )
        creator: Any = plugin.creator_fn
        if plugin.extended_api:
            options: Any = vars(distributed_c10d)["_DistributedBackendOptions"]()
            options.store, options.group_rank, options.group_size = setup.store, setup.index, len(setup.ranks)
            options.timeout, options.group_id = setup.timeout, setup.name
            options.global_ranks_in_group = list(setup.ranks)
            return creator(options, None)
        return creator(setup.store, setup.index, len(setup.ranks), setup.timeout)

    return make
