"""Groups of one vendor: calls go straight to the vendor library, as torch's own backend for it makes them.

No plan, no copies, no thread of ours: what is added is the comparison of the ranks' calls, which stays off the critical
path, and errors that name who failed. What the library lacks (a dtype, a reduction, uneven sizes) takes the way of
mixed groups. A library that torch has no backend for (MPI) takes that way always.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import HetcclError, PeerError, TimeoutError
from ..reduction import Reduction
from ..runtime.call import Call
from ..runtime.group import Group
from ..runtime.marshal import reduction_of
from ..vendors.c10d import C10dVendor
from .base import Tensors
from .group import ProcessGroup
from .reductions import name_of

_SLICE = timedelta(milliseconds=100)
"""How often a wait looks whether a peer died, of which the library itself may not know."""


class NativeGroup(ProcessGroup):
    """A process group whose ranks all belong to one vendor library with a c10d backend."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        assert isinstance(group.vendor, C10dVendor)
        self._backend, self._vendor = group.backend, group.vendor

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        if len(tensors) == 1 and self._reduces(tensors, opts):
            call = self._call("all_reduce", tensors, opts, _reduction(opts))
            return self._go(call, lambda: self._backend.allreduce(tensors, *_given(opts)))
        return super().allreduce(tensors, opts)

    def reduce(self, tensors: Tensors, opts: Any) -> Any:
        if not self._vendor.reduces_in_place and self._reduces(tensors, opts):  # the other ranks' input must stay
            call = self._rooted("reduce", tensors, opts, _reduction(opts))
            return self._go(call, lambda: self._backend.reduce(tensors, opts))
        return super().reduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any) -> Any:
        if self._moves(tensors):
            call = self._rooted("broadcast", tensors, opts)
            return self._go(call, lambda: self._backend.broadcast(tensors, opts))
        return super().broadcast(tensors, opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Any:
        tensors = [*outputs[0], *inputs]
        alike = len({tensor.numel() for tensor in tensors}) == 1
        if len(outputs[0]) == self.size() and self._moves(tensors) and alike:
            call = self._call("all_gather", outputs[0], opts)
            return self._go(call, lambda: self._backend.allgather(outputs, inputs, *_given(opts)))
        return super().allgather(outputs, inputs, opts)

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        if output.numel() == source.numel() * self.size() and self._moves([output, source]):
            call = self._call("all_gather_into_tensor", [output], opts)
            return self._go(call, lambda: self._backend._allgather_base(output, source, *_given(opts)))
        return super().all_gather_single(output, source, opts)

    _allgather_base = all_gather_single

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        fits = source.numel() == output.numel() * self.size()
        if fits and self._vendor.reduce_scatters and self._reduces([output, source], opts):
            call = self._call("reduce_scatter_tensor", [source], opts, _reduction(opts))
            return self._go(call, lambda: self._backend._reduce_scatter_base(output, source, *_given(opts)))
        return super().reduce_scatter_single(output, source, opts)

    _reduce_scatter_base = reduce_scatter_single

    def barrier(self, opts: Any = None) -> Any:
        call = self._call("barrier", [], opts)
        return self._go(call, lambda: self._backend.barrier(opts or dist.BarrierOptions()))

    def _moves(self, tensors: Tensors) -> bool:
        """Whether the library takes these tensors as they are."""
        first = tensors[0]
        return self._vendor.supports(Reduction.SUM, first.dtype) and all(
            t.is_contiguous() and t.dtype is first.dtype and t.device.type in self._vendor.devices for t in tensors
        )

    def _reduces(self, tensors: Tensors, opts: Any) -> bool:
        reduction = reduction_of(opts.reduceOp if opts is not None else dist.ReduceOp.SUM)
        if reduction is None or (reduction is Reduction.AVG and not self._vendor.averages):
            return False
        return self._moves(tensors) and self._vendor.supports(reduction, tensors[0].dtype)

    def _go(self, call: Call, start: Callable[[], Any]) -> Any:
        """Begin now, or, while a call that took the other way is in flight, in its turn."""
        engine = self.group.engine
        self._caller.announce(call, "native")
        if not engine.quiet():
            return self._note(self._caller.submit(_Turn(start, call), call, []))
        if engine.fault is not None:
            raise engine.about(call.title)
        return self._note(NativeWork(self.group, call, _started(start, call)))


class NativeWork(dist._Work):
    """The library's own work, with our deadline and our errors."""

    def __init__(self, group: Group, call: Call, work: Any) -> None:
        super().__init__()
        self._group, self._call, self._work = group, call, work
        self._deadline = time.monotonic() + group.timeout
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait as the library does: its stream's order on a device, the end of the operation on a CPU."""
        if self._group.streams is not None:
            self._work.wait()
            return True
        limit = None if timeout is None else time.monotonic() + timeout.total_seconds()
        while True:
            ended = self._work.is_completed()  # asked before: a work may end just after the slice has passed
            try:
                self._work.wait(_SLICE)
                return True
            except RuntimeError as error:
                if ended or "timed out" not in str(error).lower():
                    raise self._failed(PeerError(f"{self._call.title} failed: {error}")) from error
            if self._group.engine.fault is not None:
                raise self._group.engine.about(self._call.title)
            now = time.monotonic()
            if limit is not None and now >= limit:
                raise TimeoutError(f"Timed out in wait(timeout) for {self._call.title}; the operation goes on.")
            if now >= self._deadline:
                raise self._failed(TimeoutError(f"Timed out after {self._group.timeout:g} s in the vendor library"))

    def _failed(self, error: HetcclError) -> BaseException:
        """Tell the group, and learn from it who is to blame."""
        engine = self._group.engine
        engine.fail(engine.explain(self._call.title, self._call.sequence, error))
        self._error = engine.about(self._call.title)
        return self._error

    def synchronize(self) -> None:
        self._work.synchronize()

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._work.result()

    def get_future(self) -> Any:
        return self._work.get_future()


class _Turn:
    """A task of the engine: a native call that waits for its place in the order of calls."""

    def __init__(self, start: Callable[[], Any], call: Call) -> None:
        self._start, self._call = start, call
        self._work: Any = None

    def advance(self) -> bool:
        if self._work is None:
            self._work = _started(self._start, self._call)
        if not self._work.is_completed():
            return False
        self._work.wait()
        return True

    def describe(self) -> str:
        return "the vendor library" if self._work is not None else "the turn of this call"


def _started(start: Callable[[], Any], call: Call) -> Any:
    try:
        return start()
    except (RuntimeError, ValueError) as error:
        raise call.refusal(f"the vendor library refused it: {error}") from error


def _given(opts: Any) -> tuple[Any, ...]:
    return () if opts is None else (opts,)


def _reduction(opts: Any) -> str:
    return f", {name_of(opts.reduceOp if opts is not None else dist.ReduceOp.SUM)}"
