"""The process's MPI: one library, started once among the members of the first communicator, ended at a clean exit."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from ..config import Config
from ..errors import ConfigurationError
from . import pmi
from .base import Setup
from .meeting import meet, within

_LEAVE_SECONDS = 5.0
"""How long an exit waits for the other ranks'. One that died unseen would hold it for ever."""


@dataclass(slots=True)
class World:
    """What this process has loaded and started."""

    path: str = ""
    module: Any = None
    ranks: tuple[int, ...] = ()
    abandoned: bool = False


world = World()


def load(wanted: str) -> Any:
    """mpi4py's module on this library, not yet started. A process can have one MPI library only."""
    if world.module is None:
        os.environ["MPI4PY_LIBMPI"] = wanted
        try:
            import mpi4py
        except ImportError:
            raise ConfigurationError("the MPI vendors need mpi4py; pip install 'hetccl[mpi]'") from None
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise ConfigurationError(f"mpi4py cannot load {wanted}: {error}") from None
        world.module, world.path = MPI, wanted
    elif world.path != wanted:
        raise ConfigurationError(
            f"this process uses the MPI at {world.path} already and cannot load {wanted} beside it"
        )
    return world.module


def start(setup: Setup, environment: Callable[[bool], dict[str, str]]) -> None:
    """Start MPI among the members, unless it is. `environment` tells what the library needs, on one host or several.

    Raises within setup.timeout, also where a member dies on the way.
    """
    addresses = meet(setup, "the start", setup.address)
    if not world.ranks:
        if world.module.Is_initialized():
            raise ConfigurationError(
                "MPI was started already, by the script or another package; hetccl must start it: import"
                " mpi4py.MPI after init_process_group, or set mpi4py.rc.initialize = False before"
            )
        for name, value in environment(len(set(addresses)) == 1).items():
            os.environ.setdefault(name, value)
        pmi.join(setup)
        before = _shared_names()
        within(setup, "MPI_Init_thread", _initialize)
        world.module.COMM_WORLD.Set_errhandler(world.module.ERRORS_RETURN)
        world.ranks = setup.ranks
        _forget_names(before)
        atexit.register(_finalize)
    outside = [rank for rank in setup.ranks if rank not in world.ranks]
    if outside:
        raise ConfigurationError(
            f"MPI was started among ranks {_listed(world.ranks)} and cannot be joined by ranks {_listed(outside)}: MPI"
            " ranks started apart cannot be joined. Make the largest group first, or give them different"
            " HETCCL_CLUSTER labels"
        )


def _initialize() -> None:
    # Through ctypes, which lets other threads run: mpi4py's own call holds the interpreter, and with it the start-up
    # server that MPI_Init waits for.
    provided = ctypes.c_int()
    multiple = int(world.module.THREAD_MULTIPLE)
    status = ctypes.CDLL(world.path).MPI_Init_thread(None, None, multiple, ctypes.byref(provided))
    if status:
        raise ConfigurationError(f"MPI_Init_thread of {world.path} failed with error {status}")
    if provided.value < multiple:
        raise ConfigurationError(f"the MPI at {world.path} has no MPI_THREAD_MULTIPLE; use another build")


def _shared_names() -> set[Path]:
    """The files in /dev/shm that this process has mapped."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        paths = (line.partition("/dev/shm/")[2] for line in lines)
        return {Path("/dev/shm", path) for path in paths if path and not path.endswith("(deleted)")}
    return set()


def _forget_names(before: set[Path]) -> None:
    """Unlink the shared memory that MPI just mapped: a crash then leaves no file behind, and the mappings stay.

    Only what has come since `before`: others in the process, multiprocessing's locks among them, need their names.
    """
    for path in _shared_names() - before:
        with contextlib.suppress(OSError):
            path.unlink()


def _finalize() -> None:
    """At a clean exit only, and with all ranks: MPI_Finalize waits for them, and MPICH crashes if we exit meanwhile."""
    if not world.abandoned and _all_leave():
        thread = threading.Thread(target=ctypes.CDLL(world.path).MPI_Finalize, daemon=True)
        thread.start()
        thread.join(_LEAVE_SECONDS)
    pmi.leave()


def _all_leave() -> bool:
    """Whether all ranks are about to finalise, asked for a few seconds.

    Two barriers: whoever gave up during the first one never enters the second, so that a rank that comes after it has
    left, and finds the first complete, does not finalise alone.
    """
    end = time.monotonic() + _LEAVE_SECONDS
    try:
        for _ in range(2):
            barrier = world.module.COMM_WORLD.Ibarrier()
            while not barrier.Test():
                if time.monotonic() > end:
                    return False
                time.sleep(0.0002)
    except world.module.Exception:
        return False
    return True


def in_package(package: str, name: str) -> Path | None:
    """A file that an installed package brought."""
    try:
        found = [file for file in files(package) or () if file.name == name]
    except PackageNotFoundError:
        return None
    return Path(str(found[0].locate())).resolve() if found else None


def chosen(located: Path | None) -> str:
    """The library to load: HETCCL_MPI_LIBRARY, else the one located; empty where there is none."""
    path = Config.read().mpi_library or str(located or "")
    return path if path and Path(path).exists() else ""


def _listed(ranks: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, ranks))
