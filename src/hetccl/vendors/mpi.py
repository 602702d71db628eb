"""MPI through mpi4py, started by torchrun (see `pmi`). MPICH here; the same adaptor serves Intel MPI (`impi`)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..arrays import array
from ..errors import ConfigurationError, PeerError
from ..reduction import Reduction
from ..request import Request, Script
from . import emulate, mpi_world
from .alone import Alone
from .base import Communicator, Library, Setup
from .emulate import Message
from .layout import as_bytes, gathered
from .meeting import within
from .skeleton import Skeleton, natives
from .turns import Phases

_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})
_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})
_REDUCES = natives(
    arithmetic=_INTEGERS | _UNSIGNED | {torch.float32, torch.float64},
    bitwise=_INTEGERS | _UNSIGNED,
    additive=_COMPLEX,
    multiplicative=_COMPLEX,
)
"""Measured with MPICH 5 and Intel MPI 2021, comparing bytes. MPI has no bfloat16, float16 or arithmetic of bools."""

_LARGEST = 1 << 30
"""Bytes of one message."""


@dataclass(frozen=True, slots=True)
class MpiVendor:
    """One MPI library. `locate` finds its shared object; `environment` says what it needs around it.

    `environment` gets the library's path and whether all ranks are on one host.
    """

    name: str
    package: str
    locate: Callable[[], Path | None]
    environment: Callable[[Path, bool], dict[str, str]] = field(default=lambda path, one_host: {})
    devices: tuple[str, ...] = ("cpu",)

    def library(self) -> Library:
        text = self._load().Get_library_version().strip("\0\n ")
        return Library(self.name, " ".join(text.splitlines()[0].split()))

    def supports(self, reduction: Reduction, dtype: torch.dtype) -> bool:
        return dtype in _REDUCES.get(reduction, ())

    def communicator(self, setup: Setup) -> Communicator:
        if len(setup.ranks) == 1:
            return Alone()
        module = self._load()
        path = Path(mpi_world.world.path)
        mpi_world.start(setup, lambda one_host: self.environment(path, one_host))
        places = [mpi_world.world.ranks.index(rank) for rank in setup.ranks]
        members = module.COMM_WORLD.Get_group().Incl(places)
        tag = zlib.crc32(setup.name.encode()) % 32768
        communicator = within(setup, "MPI_Comm_create_group", lambda: module.COMM_WORLD.Create_group(members, tag))
        communicator.Set_errhandler(module.ERRORS_RETURN)
        return MpiCommunicator(self, module, communicator, setup)

    def _load(self) -> Any:
        path = mpi_world.chosen(self.locate())
        if not path:
            raise ConfigurationError(
                f"the MPI library of the vendor {self.name!r} was not found; pip install"
                f" '{self.package}' mpi4py, or name its libmpi in HETCCL_MPI_LIBRARY"
            )
        return mpi_world.load(path)


class _Pending:
    """MPI requests as one request. Keeps its buffers alive, a list of counts as well as a tensor."""

    def __init__(self, requests: list[Any], what: str, keep: object) -> None:
        self._requests, self._what, self._keep = requests, what, keep

    def test(self) -> bool:
        try:
            self._requests = [request for request in self._requests if not request.Test()]
        except Exception as error:
            raise PeerError(f"{self._what} failed: {error}") from error
        if not self._requests:
            self._keep = None
        return not self._requests

    def describe(self) -> str:
        return self._what


class MpiCommunicator(Skeleton):
    """The contract of `Communicator` over an MPI communicator."""

    def __init__(self, vendor: MpiVendor, module: Any, communicator: Any, setup: Setup) -> None:
        super().__init__(vendor, setup)
        self._mpi, self._comm = module, communicator
        self._operations = {
            Reduction.SUM: module.SUM,
            Reduction.AVG: module.SUM,
            Reduction.MAX: module.MAX,
            Reduction.MIN: module.MIN,
            Reduction.PROD: module.PROD,
            Reduction.BAND: module.BAND,
            Reduction.BOR: module.BOR,
            Reduction.BXOR: module.BXOR,
        }

    def start_all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Request:
        data, operation = _numbers(tensor), self._operations[reduction]
        return self._begin("all_reduce", lambda: [self._comm.Iallreduce(self._mpi.IN_PLACE, data, operation)], data)

    def start_reduce(self, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int) -> Request:
        operation = self._operations[reduction]
        if self.index != root:
            data = _numbers(source)
            return self._begin("reduce", lambda: [self._comm.Ireduce(data, None, operation, root)], data)
        if target.data_ptr() != source.data_ptr():
            target.copy_(source)
        data = _numbers(target)
        return self._begin("reduce", lambda: [self._comm.Ireduce(self._mpi.IN_PLACE, data, operation, root)], data)

    def start_broadcast(self, tensor: torch.Tensor, root: int) -> Request:
        cuts = _cuts(tensor)
        return self._begin("broadcast", lambda: [self._comm.Ibcast(data, root) for data in cuts], cuts)

    def start_all_gather(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Request:
        # Not Iallgatherv: with large uneven counts Intel MPI 2021.19 blocks inside its Test for ever, and on both
        # libraries sends and receives are faster (3 ranks, 534 KB uneven: 420 us against 4.3 ms with MPICH 5).
        mine = targets[self.index]
        if mine.data_ptr() != source.data_ptr():
            mine.copy_(source)
        others = [place for place in range(self.size) if place != self.index]
        return self.start_exchange(
            [(source, place) for place in others if source.numel()],
            [(targets[place], place) for place in others if targets[place].numel()],
        )

    def start_reduce_scatter(
        self, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction
    ) -> Request:
        whole, counts = gathered(sources), [source.numel() for source in sources]
        operation = self._operations[reduction]
        # MPI forbids a target inside the sources.
        aliased = whole.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
        room = torch.empty_like(target) if aliased else target
        given, taken = _numbers(whole), _numbers(room)
        request = self._begin(
            "reduce_scatter",
            lambda: [self._comm.Ireduce_scatter(given, taken, counts, operation)],
            (given, taken, counts),
        )

        def phases() -> Phases:
            yield request
            target.copy_(room)

        return Script(phases()) if aliased else request

    def start_all_to_all(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request:
        # MPI's own would need the pieces side by side, and sends them one by one as well.
        return emulate.through_exchange(self, targets, sources)

    def start_exchange(self, sends: Sequence[Message], receives: Sequence[Message]) -> Request:
        coming = [(data, place) for tensor, place in receives for data in _cuts(tensor)]
        going = [(data, place) for tensor, place in sends for data in _cuts(tensor)]

        def start() -> list[Any]:
            requests = [self._comm.Irecv(data, place) for data, place in coming]
            return requests + [self._comm.Isend(data, place) for data, place in going]

        return self._begin("exchange", start, (coming, going))

    def start_barrier(self) -> Request:
        return self._begin("barrier", lambda: [self._comm.Ibarrier()], None)

    def _begin(self, name: str, start: Callable[[], list[Any]], keep: object) -> Request:
        what = self.what(name)
        try:
            return _Pending(start(), what, keep)
        except self._mpi.Exception as error:
            raise PeerError(f"{what} failed: {error}") from error

    def close(self, abandon: bool) -> None:
        # Freeing is collective: with a dead peer it could wait for ever, so the process keeps the communicator.
        mpi_world.world.abandoned |= abandon
        if not abandon and self._comm is not None:
            self._comm.Free()
        self._comm = None


def _cuts(tensor: torch.Tensor) -> list[Any]:
    """The tensor's bytes in messages that an int can count: Intel MPI's broadcast fails with more."""
    data = array(as_bytes(tensor))
    return [data[at : at + _LARGEST] for at in range(0, len(data), _LARGEST)]


def _numbers(tensor: torch.Tensor) -> Any:
    return array(tensor)


vendor = MpiVendor("mpi", "mpich", lambda: mpi_world.in_package("mpich", "libmpi.so.12"))
