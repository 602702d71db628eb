"""Tensors in CPU memory on a rank of a device: torch passes them for object collectives, and users for odd bits.

They travel as copies on the device. A wait for such a call holds up the processor, as the result must be in its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

METHODS = (
    "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base",
    "broadcast", "gather", "scatter", "allgather", "all_gather_single", "_allgather_base", "alltoall",
    "all_to_all_single", "alltoall_base", "send", "recv", "recv_anysource",
)  # fmt: skip


def hosted(kind: type[Any], device: torch.device) -> type[Any]:
    """The class of groups whose calls also take CPU tensors, by way of this device."""
    methods = {name: _method(getattr(kind, name), device) for name in METHODS}
    return type(kind.__name__, (kind,), methods)


def _method(method: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        moved = [_moved(argument, device, copies) for argument in arguments]
        work = method(self, *(moved if copies else arguments))
        return HostedWork(work, copies) if copies else work

    return call


def _moved(argument: Any, device: torch.device, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    if isinstance(argument, torch.Tensor):
        if argument.device.type == device.type:
            return argument
        copies.append((argument, argument.detach().to(device)))
        return copies[-1][1]
    if isinstance(argument, (list, tuple)) and not all(isinstance(entry, int) for entry in argument):
        return [_moved(entry, device, copies) for entry in argument]
    return argument


class HostedWork(dist._Work):
    """The device's work, and then the way back to CPU memory."""

    def __init__(self, work: Any, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._work, self._copies = work, copies
        self._originals = [original for original, _ in copies]

    def wait(self, timeout: timedelta | None = None) -> bool:
        done = self._work.wait(timeout) if timeout else self._work.wait()
        self._bring_back()
        return bool(done)

    def _bring_back(self) -> None:
        copies, self._copies = self._copies, []
        for original, copy in copies:
            original.detach().copy_(copy)

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def exception(self) -> Any:
        return self._work.exception()

    def _source_rank(self) -> int:
        return int(self._work._source_rank())

    source_rank = _source_rank

    def result(self) -> Any:
        return self._originals

    def get_future(self) -> Any:
        def back(future: Any) -> Any:
            future.wait()
            self._bring_back()
            return self._originals

        return self._work.get_future().then(back)
