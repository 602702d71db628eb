"""What torch.distributed hands to the user for an asynchronous call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..completer import completer
from ..errors import TimeoutError
from .engine import Engine, Operation
from .streams import Streams


class Work(dist._Work):
    """A handle on one operation; see torch.distributed.Work for the meaning of the methods."""

    def __init__(
        self, engine: Engine, operation: Operation, result: list[Any], source: list[int] | None = None, rank: str = "",
        streams: Streams | None = None,
    ) -> None:  # fmt: skip
        """`source` holds the sender of a receive, once it is known; `rank` is this rank as errors name it.

        With `streams`, `wait` has the caller's current stream wait, and blocks only until all is on streams.
        """
        super().__init__()
        self._engine, self._operation, self._result = engine, operation, result
        self._source, self._rank = [] if source is None else source, rank
        self._streams = streams
        self._future: torch.futures.Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until done; raise what went wrong, or TimeoutError where `timeout` passes first."""
        seconds = timeout.total_seconds() if timeout else None
        if not self._engine.wait(self._operation, seconds, placed=self._streams is not None):
            operation = self._operation
            number = f" (operation {operation.sequence})" if operation.sequence else ""
            raise TimeoutError(
                f"Timed out after {seconds:g} s of wait(timeout) in {operation.task.describe()} in"
                f" {operation.title}{number} on {self._rank}; the operation goes on, so wait again"
            )
        if self._operation.error is not None:
            raise self._operation.error
        if self._streams is not None and self._operation.event is not None:
            runtime, device = self._streams.runtime, self._streams.device
            runtime.after(runtime.current(device), self._operation.event)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._operation.done:
            self._engine.look()
        return self._operation.done

    def is_success(self) -> bool:
        return self._operation.done and self._operation.error is None

    def exception(self) -> BaseException | None:
        return self._operation.error

    def _source_rank(self) -> int:
        return self._source[0] if self._source else -1

    source_rank = _source_rank

    def result(self) -> list[Any]:
        return self._result

    def _devices(self) -> list[int | str | torch.device]:
        return [self._streams.device] if self._streams is not None and self._streams.device.type != "cpu" else []

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result; its callbacks run on a thread of the library."""
        if self._future is None:
            future: torch.futures.Future[Any] = torch.futures.Future(devices=self._devices())
            self._future = future

            def fulfil() -> None:
                if self._operation.error is None:
                    future.set_result(self._result)
                else:
                    future.set_exception(self._operation.error)

            self._operation.then(lambda _: completer.submit(fulfil))
        return self._future
