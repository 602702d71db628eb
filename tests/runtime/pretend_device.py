"""A device runtime of the tests' own, in CPU memory, whose streams are threads."""

from __future__ import annotations

import ctypes
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_local = threading.local()


class Stream:
    """Does what it is given in order, on a thread of its own."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self._work.get()()

    def put(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def drain(self) -> None:
        done = threading.Event()
        self.put(done.set)
        done.wait()


class Host:
    """The stream of a thread that uses none: torch's operations on it are done when they return."""

    def put(self, work: Callable[[], None]) -> None:
        work()

    def drain(self) -> None:
        pass


HOST = Host()


class PretendDevice:
    name = "pretend"

    def device(self) -> torch.device:
        return torch.device("cpu")

    def stream(self, device: torch.device) -> Stream:
        return Stream()

    def current(self, device: torch.device) -> Stream | Host:
        return getattr(_local, "stream", HOST)

    @contextmanager
    def using(self, stream: Stream) -> Iterator[None]:
        before = self.current(self.device())
        _local.stream = stream
        try:
            yield
        finally:
            _local.stream = before

    def record(self, stream: Stream | Host) -> threading.Event:
        event = threading.Event()
        stream.put(event.set)
        return event

    def after(self, stream: Stream | Host, event: threading.Event) -> None:
        stream.put(lambda: event.wait() and None)

    def done(self, event: threading.Event) -> bool:
        return event.is_set()

    def register(self, address: int, nbytes: int) -> int:
        return address

    def unregister(self, address: int) -> None:
        pass

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        stream.put(lambda: ctypes.memmove(target, source, nbytes) and None)

    def write(self, address: int, value: int, stream: Stream) -> None:
        stream.put(lambda: setattr(ctypes.c_uint32.from_address(address), "value", value))

    def wait(self, address: int, value: int, stream: Stream) -> None:
        word = ctypes.c_uint32.from_address(address)

        def wait() -> None:
            while (word.value - value) % (1 << 32) >= 1 << 31:
                time.sleep(0)

        stream.put(wait)


def install() -> None:
    """Have this rank take its CPU for such a device. torch's own operations drain their stream first."""
    runtime = PretendDevice()
    from hetccl.runtime import group, streams
    from hetccl.transports import hostmap, shm, staging, tcp

    for module in (group, hostmap, staging, tcp):
        module.runtime_of = lambda kind: runtime
    shm.reach = lambda: None

    class Draining(streams.StreamExecution):
        def _start(self, index: int):
            operation = self._bound.program.operations[index]
            if type(operation).__name__ in ("Reduce", "Move", "Set", "Call"):
                lane = streams.lane_of(operation)
                for other in self._bound.program.waits[index]:
                    self._ends[other].wait()
                runtime_stream = self._ending.streams.lane(lane)
                self._ending.start.wait()
                runtime_stream.drain()
            return super()._start(index)

        def _end(self) -> None:
            for name in list(self._ending._used):
                self._ending.streams.lane(name).drain()
            super()._end()

    from hetccl.runtime import caller

    caller.StreamExecution = Draining
