"""From a call to an operation in the engine: the spec, the plan, the task, the handle."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from ..errors import DesyncError
from ..plan.spec import INPUT, OUTPUT, Operation, Spec
from ..reduction import Reduction
from .call import Call
from .engine import Operation as Started
from .engine import Task
from .exchange import Compiled, Exchange, compiled
from .execution import Execution
from .group import Group
from .marshal import as_bytes
from .messages import AnySource, Mailbox, Message
from .streams import StreamExecution, StreamMessage
from .work import Work


class Caller:
    """Issues operations of one group. Collectives get sequence numbers, which all ranks count alike."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._last = 0
        self._compiled: dict[Spec, Compiled | None] = {}
        self._mailbox = Mailbox(group.fabric, group.rank, group.size)

    def title(self, name: str, tensors: Sequence[torch.Tensor], detail: str = "") -> str:
        """The call in words, as errors and the comparison between ranks show it; alike on all ranks."""
        return _title(name, tuple((t.dtype, t.shape) for t in tensors[:4]), len(tensors), detail)

    def call(self, title: str, awaited: bool = False, numbered: bool = True) -> Call:
        """The call as errors name it, with the number that it gets unless it is refused."""
        return Call(title, self.group.titles[self.group.rank], self._last + 1 if numbered else 0, awaited)

    def collective(
        self,
        spec: Spec,
        call: Call,
        source: torch.Tensor | None,
        target: torch.Tensor | None,
        result: list[Any],
        finish: Callable[[], None] | None = None,
    ) -> Work:
        """Run a planned collective on this rank's flat input and output."""
        task = self.task(spec, source, target, call)
        self.announce(call, self.group.bind(spec).plan.digest)
        return self.submit(task, call, result, finish, blocks=source is None and target is None)

    def announce(self, call: Call, plan: str) -> None:
        """Take the call's number, and have it compared with the other ranks'.

        This comes after everything that may refuse the call, so that a rank which refused one is not shifted against
        the others. Shapes may differ where the number of elements does not: the plan and the dtype are what must agree.
        """
        self._last = call.sequence
        self.group.control.record(call.sequence, _fingerprint(call.title, plan), call.title)

    def uneven_all_to_all(
        self, call: Call, source: torch.Tensor, target: torch.Tensor, sizes: list[int], wanted: list[int],
        result: list[Any], finish: Callable[[], None] | None,
    ) -> Work:  # fmt: skip
        """Exchange what everyone sends to everyone, then plan with it. `sizes` and `wanted` in elements of bytes."""
        task = _AllToAll(self, call, source, target, sizes, wanted)
        self.announce(call, "uneven")
        return self.submit(task, call, result, finish)

    def send(self, call: Call, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        """Messages of one pair and tag keep their order."""
        data = as_bytes(tensor)
        if self.group.streams is not None:
            task = StreamMessage(self.group.streams, ("send", peer), lambda: self._mailbox.send(data, peer, tag))
            return self.submit(task, call, [tensor])
        return self.submit(Message(self._mailbox.send(data, peer, tag)), call, [tensor])

    def receive(
        self, call: Call, tensor: torch.Tensor, peer: int | None, tag: int, finish: Callable[[], None] | None
    ) -> Work:
        """From `peer`, or from whoever sends first where it is None."""
        data, source = as_bytes(tensor), [] if peer is None else [peer]
        task: Task
        if self.group.streams is not None:
            task = StreamMessage(
                self.group.streams, ("receive", peer), lambda: self._mailbox.receive_any(data, peer, tag, source)
            )
        elif peer is None:
            task = AnySource(self._mailbox, data, tag, source)
        else:
            task = Message(self._mailbox.receive(data, peer, tag))
        return self.submit(task, call, [tensor], finish, source)

    def task(self, spec: Spec, source: torch.Tensor | None, target: torch.Tensor | None, call: Call) -> Task:
        """What runs the spec's plan. Raises ArgumentError where the tensors do not fit it."""
        bound = self.group.bind(spec)
        tensors = {}
        for side, tensor in ((INPUT, source), (OUTPUT, target)):
            expected = bound.lengths[side]
            if tensor is not None and expected:
                if tensor.numel() != expected:
                    raise call.refusal(f"the {side} has {tensor.numel()} elements; pass {expected}")
                tensors[side] = tensor
        dtype = next((t.dtype for t in tensors.values()), torch.uint8)
        if self.group.streams is not None:
            return StreamExecution(self.group.means, bound, tensors, dtype, call.sequence, self.group.streams)
        if spec not in self._compiled:
            device = next((t.device for t in tensors.values()), torch.device("cpu"))
            self._compiled[spec] = compiled(bound, self.group.means, dtype, device)
        fast = self._compiled[spec]
        if fast is not None:
            return Exchange(fast, tensors, call.sequence)
        return Execution(self.group.means, bound, tensors, dtype, call.sequence)

    def submit(
        self,
        task: Task,
        call: Call,
        result: list[Any],
        finish: Callable[[], None] | None = None,
        source: list[int] | None = None,
        blocks: bool = False,
    ) -> Work:
        """Have the engine run the task of a call. `blocks`: to wait for it means to be held up, also on a device."""
        if hasattr(task, "finally_do"):  # on streams, where the engine's end of a task is no end of its data
            task.finally_do(finish)
            finish = None
        started = Started(task, call.title, call.sequence, self.group.timeout, finish)
        self.group.engine.submit(started, call.awaited)
        return Work(self.group.engine, started, result, source, call.rank, None if blocks else self.group.streams)


@lru_cache(maxsize=4096)
def _title(name: str, tensors: tuple[tuple[torch.dtype, torch.Size], ...], count: int, detail: str) -> str:
    shapes = ", ".join(f"{str(dtype).removeprefix('torch.')}{list(shape)}" for dtype, shape in tensors)
    more = f", … {count} tensors" if count > len(tensors) else ""
    return f"{name}({shapes}{more}{detail})"


@lru_cache(maxsize=4096)
def _fingerprint(title: str, plan: str) -> int:
    name, _, rest = title.partition("(")
    dtype = rest.partition("[")[0]
    return zlib.crc32(f"{name} {dtype} {plan}".encode())


class _AllToAll:
    """An all_to_all of uneven blocks: first everyone's sizes, then the blocks."""

    def __init__(
        self, caller: Caller, call: Call, source: torch.Tensor, target: torch.Tensor,
        sizes: list[int], wanted: list[int],
    ) -> None:  # fmt: skip
        self._caller, self._call = caller, call
        self._source, self._target, self._wanted = source, target, wanted
        ranks = caller.group.size
        device = caller.group.means.device
        self._matrix = torch.empty(ranks * ranks, dtype=torch.int64, device=device)
        spec = Spec(Operation.ALL_GATHER, ranks, (8 * ranks,))
        row = torch.tensor(sizes, dtype=torch.int64, device=device)
        self._sizes: Task | None = caller.task(spec, as_bytes(row), as_bytes(self._matrix), call)
        self._blocks: Task | None = None
        self._finish: Callable[[], None] | None = None
        self._placed = False
        if caller.group.streams is not None:
            self.finally_do, self.settled = self._keep, self._settled

    @property
    def event(self) -> Any:
        return getattr(self._blocks, "event", None)

    def _keep(self, finish: Callable[[], None] | None) -> None:
        self._finish = finish

    def _settled(self) -> bool:
        return bool(self._blocks.settled())  # type: ignore[union-attr]

    def advance(self) -> bool:
        if self._blocks is None:
            assert self._sizes is not None
            if not self._placed and not self._sizes.advance():
                return False
            self._placed = True
            if hasattr(self._sizes, "settled") and not self._sizes.settled():
                return False
            group = self._caller.group
            sizes = tuple(self._matrix.tolist())
            coming = list(sizes[group.rank :: group.size])
            if coming != self._wanted:
                other = next(r for r in range(group.size) if coming[r] != self._wanted[r])
                raise DesyncError(
                    f"{group.titles[other]} sends {coming[other]} bytes to rank {group.rank}, which"
                    f" expects {self._wanted[other]}; make its output split what the sender's input split is"
                )
            spec = Spec(Operation.ALL_TO_ALL, group.size, sizes)
            self._blocks = self._caller.task(spec, self._source, self._target, self._call)
            if hasattr(self._blocks, "finally_do"):
                self._blocks.finally_do(self._finish)
        return self._blocks.advance()

    def describe(self) -> str:
        if self._blocks is not None:
            return self._blocks.describe()
        return f"the exchange of sizes, {self._sizes.describe()}" if self._sizes else ""


@lru_cache(maxsize=4096)
def _reducing_spec(
    operation: Operation, ranks: int, sizes: tuple[int, ...], dtype: torch.dtype, reduction: Reduction, root: int
) -> Spec:
    return Spec(operation, ranks, sizes, str(dtype).removeprefix("torch."), dtype.itemsize, reduction, root)


def reducing_spec(
    operation: Operation, ranks: int, sizes: tuple[int, ...], data: torch.Tensor, reduction: Reduction, root: int = 0
) -> Spec:
    """A spec of a reducing collective, in elements of the data's dtype."""
    return _reducing_spec(operation, ranks, sizes, data.dtype, reduction, root)


@lru_cache(maxsize=4096)
def moving_spec(operation: Operation, ranks: int, sizes: tuple[int, ...], root: int = 0) -> Spec:
    """A spec of a collective that only moves data, in bytes."""
    return Spec(operation, ranks, sizes, root=root)
