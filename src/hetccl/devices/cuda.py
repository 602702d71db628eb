"""CUDA, and HIP, whose entry points differ by name: loaded through ctypes from the driver that torch itself uses.

HIP's part has not run yet.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

_HIGH = -1
_PORTABLE_MAPPED = 3


@dataclass(frozen=True, slots=True)
class Names:
    """One driver's entry points, and what their calls end with where they take more than CUDA's."""

    runtime: str
    library: str
    register: str
    unregister: str
    address: str
    copy: str
    write: str
    wait: str
    copy_kind: tuple[int, ...] = ()
    wait_mask: tuple[int, ...] = ()


CUDA = Names(
    runtime="cuda",
    library="libcuda.so.1",
    register="cuMemHostRegister_v2",
    unregister="cuMemHostUnregister",
    address="cuMemHostGetDevicePointer_v2",
    copy="cuMemcpyAsync",
    write="cuStreamWriteValue32_v2",
    wait="cuStreamWaitValue32_v2",
)
HIP = Names(
    runtime="hip",
    library="libamdhip64.so",
    register="hipHostRegister",
    unregister="hipHostUnregister",
    address="hipHostGetDevicePointer",
    copy="hipMemcpyAsync",
    write="hipStreamWriteValue32",
    wait="hipStreamWaitValue32",
    copy_kind=(4,),  # hipMemcpyDefault
    wait_mask=(0xFFFFFFFF,),
)


class Driver:
    """A `Runtime` over one driver library."""

    def __init__(self, names: Names) -> None:
        """Raises OSError or AttributeError where the driver, or an entry point of it, is missing."""
        self.name, self._names = names.runtime, names
        self._bound = threading.local()
        library = ctypes.CDLL(names.library)
        self._register, self._unregister, self._address, self._copy, self._write, self._wait = (
            getattr(library, entry)
            for entry in (names.register, names.unregister, names.address, names.copy, names.write, names.wait)
        )

    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        return torch.cuda.Stream(device, priority=_HIGH)

    def current(self, device: torch.device) -> torch.cuda.Stream:
        return torch.cuda.current_stream(device)

    def using(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        self._bind(stream)
        return torch.cuda.stream(stream)

    def _bind(self, stream: torch.cuda.Stream) -> None:
        """The driver's entry points need a context, which a thread gets with its first call through torch."""
        if not hasattr(self._bound, "yes"):
            stream.query()
            self._bound.yes = True

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event: torch.cuda.Event = stream.record_event()
        return event

    def after(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def done(self, event: torch.cuda.Event) -> bool:
        return bool(event.query())

    def register(self, address: int, nbytes: int) -> int:
        self._bind(torch.cuda.current_stream())
        self._check(self._register(_pointer(address), ctypes.c_size_t(nbytes), _PORTABLE_MAPPED), "register")
        found = ctypes.c_void_p()
        self._check(self._address(ctypes.byref(found), _pointer(address), 0), "address")
        return found.value or address

    def unregister(self, address: int) -> None:
        self._check(self._unregister(_pointer(address)), "unregister")

    def copy(self, target: int, source: int, nbytes: int, stream: torch.cuda.Stream) -> None:
        kind = self._names.copy_kind
        self._check(
            self._copy(_pointer(target), _pointer(source), ctypes.c_size_t(nbytes), *kind, _handle(stream)), "copy"
        )

    def write(self, address: int, value: int, stream: torch.cuda.Stream) -> None:
        self._check(self._write(_handle(stream), _pointer(address), ctypes.c_uint32(value), 0), "write")

    def wait(self, address: int, value: int, stream: torch.cuda.Stream) -> None:
        mask = map(ctypes.c_uint32, self._names.wait_mask)
        self._check(self._wait(_handle(stream), _pointer(address), ctypes.c_uint32(value), 0, *mask), "wait")

    def _check(self, status: int, entry: str) -> None:
        if status:
            raise RuntimeError(f"{self.name}: {getattr(self._names, entry)} failed with error {status}")


_pointer: Callable[[int], ctypes.c_void_p] = ctypes.c_void_p


def _handle(stream: torch.cuda.Stream) -> ctypes.c_void_p:
    return ctypes.c_void_p(stream.cuda_stream)


def load() -> Driver | None:
    """The driver of this torch build; None where there is no such device."""
    if not torch.cuda.is_available():
        return None
    try:
        return Driver(HIP if torch.version.hip else CUDA)
    except (OSError, AttributeError):
        return None
