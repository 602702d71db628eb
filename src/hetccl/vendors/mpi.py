"""MPI through mpi4py, started by torchrun (see `pmi`): MPICH here; the same adaptor serves Intel MPI (`impi`)."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import torch

from ..config import Config
from ..errors import ConfigurationError, PeerError, TimeoutError
from ..reduction import Reduction
from ..request import Done, Request, Script, Together
from . import emulate, pmi
from .base import Communicator, Library, Setup

_NUMBERS = frozenset({torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})
_BITWISE = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})


@dataclass
class _World:
    """The process's MPI: one library, started once, among the members of the first communicator."""

    path: str = ""
    module: Any = None
    ranks: tuple[int, ...] = ()
    abandoned: bool = False


_world = _World()


@dataclass(frozen=True)
class MpiVendor:
    """One MPI library. `locate` finds its shared object; `environment` is what it needs around it."""

    name: str
    package: str
    locate: Callable[[], Path | None]
    environment: Callable[[Path], dict[str, str]] = field(default=lambda path: {})
    devices: tuple[str, ...] = ("cpu",)

    def library(self) -> Library:
        module = self._load()
        text = module.Get_library_version().strip("\0\n ")
        first = " ".join(text.splitlines()[0].split())
        return Library(self.name, first)

    def supports(self, reduction: Reduction, dtype: torch.dtype) -> bool:
        return dtype in (_BITWISE if reduction in (Reduction.BAND, Reduction.BOR, Reduction.BXOR) else _NUMBERS)

    def communicator(self, setup: Setup) -> Communicator:
        module = self._load()
        _meet(setup, "start")
        if not _world.ranks:
            pmi.join(setup)
            # Through ctypes, which lets other threads run: mpi4py's own call holds the interpreter, and with it the
            # start-up server that MPI_Init waits for.
            before = _mapped()
            ctypes.CDLL(_world.path).MPI_Init_thread(None, None, module.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
            _forget_names(_mapped() - before)
            _world.ranks = setup.ranks
            atexit.register(_finalize)
        if not set(setup.ranks) <= set(_world.ranks):
            raise ConfigurationError(
                f"MPI was started among ranks {_world.ranks} and cannot join ranks {setup.ranks} now; make the largest"
                " group first, or give the ranks different HETCCL_CLUSTER labels"
            )
        members = module.COMM_WORLD.Get_group().Incl([_world.ranks.index(rank) for rank in setup.ranks])
        tag = zlib.crc32(setup.name.encode()) % 32768
        communicator = module.COMM_WORLD.Create_group(members, tag)
        communicator.Set_errhandler(module.ERRORS_RETURN)
        return MpiCommunicator(self, module, communicator, setup)

    def _load(self) -> Any:
        """mpi4py on this library, not yet started."""
        wanted = Config.read().mpi_library or str(self.locate() or "")
        if not wanted or not Path(wanted).exists():
            raise ConfigurationError(
                f"the MPI library of the vendor {self.name!r} was not found; pip install '{self.package}' mpi4py, or"
                " name its libmpi in HETCCL_MPI_LIBRARY"
            )
        if _world.module is None:
            os.environ.setdefault("MPI4PY_LIBMPI", wanted)
            for name, value in self.environment(Path(wanted)).items():
                os.environ.setdefault(name, value)
            try:
                import mpi4py
            except ImportError:
                raise ConfigurationError(f"the vendor {self.name!r} needs mpi4py; pip install 'hetccl[mpi]'") from None
            mpi4py.rc.initialize = False
            mpi4py.rc.finalize = False
            try:
                from mpi4py import MPI
            except (ImportError, RuntimeError) as error:
                raise ConfigurationError(f"mpi4py cannot load {wanted}: {error}") from None
            _world.module, _world.path = MPI, wanted
        elif _world.path != wanted:
            raise ConfigurationError(
                f"this process uses the MPI at {_world.path} already and cannot load {wanted} beside it"
            )
        return _world.module


def _meet(setup: Setup, purpose: str) -> None:
    """Wait through the store until all members have come: MPI's own start would wait for ever."""
    keys = [f"{purpose}/{place}" for place in range(len(setup.ranks))]
    setup.store.set(keys[setup.index], "here")
    try:
        setup.store.wait(keys, setup.timeout)
    except RuntimeError:
        missing = [rank for rank, key in zip(setup.ranks, keys, strict=True) if not setup.store.check([key])]
        raise TimeoutError(
            f"Timed out after {setup.timeout.total_seconds():g} s while MPI was started: ranks {missing} never came"
        ) from None


def _mapped() -> set[str]:
    """Names in /dev/shm that this process has mapped."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    names = {line.partition("/dev/shm/")[2] for line in lines}
    return {name for name in names if name and not name.endswith("(deleted)")}


def _forget_names(names: set[str]) -> None:
    """Unlink the shared memory that MPI just mapped, so that a crash leaves no file behind; the mappings stay."""
    for name in names:
        with contextlib.suppress(OSError):
            Path("/dev/shm", name).unlink()


def _finalize() -> None:
    """At a clean exit only: finalising waits for all ranks, so a process that saw a fault must not."""
    if not _world.abandoned:
        ctypes.CDLL(_world.path).MPI_Finalize()
    pmi.leave()


class _Pending:
    """MPI requests as one request. Keeps its buffers alive."""

    def __init__(self, requests: list[Any], what: str, keep: object) -> None:
        self._requests, self._what, self._keep = requests, what, keep

    def test(self) -> bool:
        try:
            self._requests = [request for request in self._requests if not request.Test()]
        except Exception as error:
            raise PeerError(f"{self._what} failed: {error}") from error
        return not self._requests

    def describe(self) -> str:
        return self._what


class MpiCommunicator:
    """The contract of `Communicator` over an MPI communicator."""

    def __init__(self, vendor: MpiVendor, module: Any, communicator: Any, setup: Setup) -> None:
        self._vendor, self._mpi, self._comm = vendor, module, communicator
        self.size, self.index = len(setup.ranks), setup.index
        self._members = ", ".join(map(str, setup.ranks))
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

    def _start(self, name: str, requests: list[Any], *keep: object) -> Request:
        return _Pending(requests, f"{self._vendor.name} {name} among ranks {self._members}", keep)

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Request:
        if not tensor.numel():
            return Done()
        if not self._vendor.supports(reduction, tensor.dtype):
            return emulate.all_reduce(self, tensor, reduction)
        operation = self._operations[reduction]
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, tensor.numpy(), operation)
        return self._start("all_reduce", [request], tensor)

    def reduce(self, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int) -> Request:
        if not source.numel():
            return Done()
        if not self._vendor.supports(reduction, source.dtype):
            return emulate.reduce(self, source, target, reduction, root)
        operation = self._operations[reduction]
        if self.index != root:
            request = self._comm.Ireduce(source.numpy(), None, operation, root)
        else:
            if target.data_ptr() != source.data_ptr():
                target.copy_(source)
            request = self._comm.Ireduce(self._mpi.IN_PLACE, target.numpy(), operation, root)
        return self._start("reduce", [request], source, target)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Request:
        if not tensor.numel():
            return Done()
        return self._start("broadcast", [self._comm.Ibcast(_bytes(tensor), root)], tensor)

    def all_gather(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Request:
        mine = targets[self.index]
        if mine.data_ptr() != source.data_ptr():
            mine.copy_(source)
        filled = [target for target in targets if target.numel()]
        if not filled:
            return Done()
        if len({target.numel() for target in targets}) > 1:
            # Intel MPI's Iallgatherv does not end with large uneven counts.
            others = [place for place in range(self.size) if place != self.index]
            sends = [(mine, place) for place in others if mine.numel()]
            return self.exchange(sends, [(targets[place], place) for place in others if targets[place].numel()])
        if len({target.untyped_storage().data_ptr() for target in filled}) > 1:
            return Together([self.broadcast(target, root) for root, target in enumerate(targets)])
        first = min(filled, key=torch.Tensor.storage_offset)
        width = first.element_size()
        base = first.storage_offset()
        extent = max(target.storage_offset() + target.numel() for target in filled) - base
        whole = torch.as_strided(first, (extent,), (1,))
        counts = [target.numel() * width for target in targets]
        places = [(target.storage_offset() - base) * width if target.numel() else 0 for target in targets]
        request = self._comm.Iallgatherv(self._mpi.IN_PLACE, [_bytes(whole), counts, places, self._mpi.BYTE])
        return self._start("all_gather", [request], whole)

    def reduce_scatter(self, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction) -> Request:
        if not any(source.numel() for source in sources):
            return Done()
        if not self._vendor.supports(reduction, target.dtype):
            return emulate.reduce_scatter(self, target, sources, reduction)
        whole = _run(sources)
        if whole is None:
            return Together([self.reduce(source, target, reduction, root) for root, source in enumerate(sources)])

        def phases() -> Generator[Request, None, None]:
            aliased = target.numel() and target.data_ptr() == sources[self.index].data_ptr()
            room = torch.empty_like(target) if aliased else target
            counts = [source.numel() for source in sources]
            request = self._comm.Ireduce_scatter(whole.numpy(), room.numpy(), counts, self._operations[reduction])
            yield self._start("reduce_scatter", [request], whole, room)
            if aliased:
                target.copy_(room)

        return Script(phases())

    def all_to_all(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request:
        return emulate.through_exchange(self, targets, sources)

    def exchange(
        self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]
    ) -> Request:
        requests = [self._comm.Irecv(_bytes(tensor), place) for tensor, place in receives]
        requests += [self._comm.Isend(_bytes(tensor), place) for tensor, place in sends]
        return self._start("exchange", requests, [t for t, _ in sends], [t for t, _ in receives])

    def barrier(self) -> Request:
        return self._start("barrier", [self._comm.Ibarrier()])

    def close(self, abandon: bool) -> None:
        # Freeing is collective: with a dead peer it could wait for ever, so the process keeps the communicator.
        _world.abandoned |= abandon
        if not abandon:
            self._comm.Free()


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.view(torch.uint8).numpy()


def _run(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One view over tensors that follow each other in one storage."""
    filled = [tensor for tensor in tensors if tensor.numel()]
    at = filled[0].storage_offset()
    for tensor in filled:
        if tensor.storage_offset() != at or (
            tensor.untyped_storage().data_ptr() != filled[0].untyped_storage().data_ptr()
        ):
            return None
        at += tensor.numel()
    return torch.as_strided(filled[0], (at - filled[0].storage_offset(),), (1,))


def in_package(package: str, name: str) -> Path | None:
    """A file that an installed package brought."""
    try:
        found = [file for file in files(package) or () if file.name == name]
    except PackageNotFoundError:
        return None
    return Path(str(found[0].locate())).resolve() if found else None


vendor = MpiVendor("mpi", "mpich", lambda: in_package("mpich", "libmpi.so.12"))
