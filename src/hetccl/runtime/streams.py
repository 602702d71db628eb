"""Operations of a rank whose data lies on a device: put on streams as a whole, without waiting for them.

Each lane of a program (the vendor library, what goes to a peer, what comes from one, the rank's own work) has a stream;
an operation that needs another lane's result waits for its event on the stream. So a task is done with its operations,
and the engine goes on to the next, once they are on the streams; `event` marks their end, for the user's stream to
wait for, and `settled` tells the processor that it came.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from ..devices import Runtime
from ..plan.program import lane_of
from ..request import Request
from .execution import Bound, Execution, Means


class Streams:
    """A group's streams on this rank's device, by lane; and one on which each operation comes to its end."""

    def __init__(self, runtime: Runtime, device: torch.device) -> None:
        self.runtime, self.device = runtime, device
        self._lanes: dict[object, Any] = defaultdict(lambda: runtime.stream(device))

    def lane(self, name: object) -> Any:
        return self._lanes[name]

    def now(self) -> Any:
        """The caller's place in its current stream."""
        return self.runtime.record(self.runtime.current(self.device))


class _Ending:
    """What stream tasks share: where they begin, and how they end."""

    def __init__(self, streams: Streams) -> None:
        """Made by the caller: what its current stream holds now comes first."""
        self.streams = streams
        self.start = streams.now()
        self.event: Any = None
        self.finish: Callable[[], None] | None = None
        """Brings results to the user's tensors, on the closing stream."""
        self._used: dict[object, Any] = {}
        self._requests: list[Any] = []
        self._kept: list[Request] = []

    def on(self, name: object) -> AbstractContextManager[Any]:
        """Inside, torch and the paths work on the lane's stream."""
        runtime, stream = self.streams.runtime, self.streams.lane(name)
        if name not in self._used:
            self._used[name] = stream
            runtime.after(stream, self.start)
        return runtime.using(stream)

    def note(self, request: Request) -> None:
        """Keep a request until the end, and, if it has to, see it settle."""
        self._kept.append(request)
        if hasattr(request, "settled"):
            self._requests.append(request)

    def end(self) -> None:
        """All is on the streams: mark the end."""
        runtime, closing = self.streams.runtime, self.streams.lane("closing")
        runtime.after(closing, self.start)
        for stream in self._used.values():
            runtime.after(closing, runtime.record(stream))
        with runtime.using(closing):
            if self.finish is not None:
                self.finish()
            self.event = runtime.record(closing)

    def settle(self) -> None:
        """Let requests get on that need the processor after they are on streams: others may wait for what they send."""
        if self._requests:
            self._requests = [request for request in self._requests if not request.settled()]

    def settled(self) -> bool:
        """Whether all has come true. Raises what went wrong."""
        self.settle()
        return not self._requests and self.streams.runtime.done(self.event)


class StreamExecution(Execution):
    """One run of a program on streams."""

    def __init__(
        self,
        means: Means,
        bound: Bound,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        sequence: int,
        streams: Streams,
    ) -> None:
        super().__init__(means, bound, tensors, dtype, sequence, device=streams.device)
        self._ending = _Ending(streams)
        self._ends: dict[int, Any] = {}

    @property
    def event(self) -> Any:
        return self._ending.event

    def finally_do(self, finish: Callable[[], None] | None) -> None:
        self._ending.finish = finish

    def advance(self) -> bool:
        with self._ending.on(None):  # memory that torch gives on a stream may still be in use there, and only there
            self._ending.settle()
            return super().advance()

    def describe(self) -> str:
        return super().describe() if self.event is None else "the end of what is on the device's streams"

    def _start(self, index: int) -> Request | None:
        program, runtime = self._bound.program, self._ending.streams.runtime
        lane = lane_of(program.operations[index])
        with self._ending.on(lane):
            stream = runtime.current(self._ending.streams.device)
            for other in program.waits[index]:
                if lane_of(program.operations[other]) != lane:
                    runtime.after(stream, self._ends[other])
            request = super()._start(index)
        if request is not None:
            self._ending.note(request)
        return request

    def _test(self, index: int, request: Request) -> bool:
        with self._ending.on(lane_of(self._bound.program.operations[index])):
            return request.test()

    def _landed(self, index: int) -> list[int]:
        if self._bound.followers[index]:
            runtime = self._ending.streams.runtime
            with self._ending.on(lane_of(self._bound.program.operations[index])):
                self._ends[index] = runtime.record(runtime.current(self._ending.streams.device))
        return super()._landed(index)

    def _end(self) -> None:
        self._ending.end()

    def settled(self) -> bool:
        if not self._ending.settled():
            return False
        super()._end()
        return True


class StreamMessage:
    """A task: one message to or from a device."""

    def __init__(self, streams: Streams, lane: object, post: Callable[[], Request | None]) -> None:
        """`post` makes the request once that can be done, until then None."""
        self._ending, self._lane, self._post = _Ending(streams), lane, post
        self._request: Request | None = None

    @property
    def event(self) -> Any:
        return self._ending.event

    def finally_do(self, finish: Callable[[], None] | None) -> None:
        self._ending.finish = finish

    def advance(self) -> bool:
        with self._ending.on(self._lane):
            if self._request is None:
                self._request = self._post()
                if self._request is None:
                    return False
                self._ending.note(self._request)
            if not self._request.test():
                return False
        self._ending.end()
        return True

    def settled(self) -> bool:
        return self._ending.settled()

    def describe(self) -> str:
        return self._request.describe() if self._request is not None else "a message from any rank"
