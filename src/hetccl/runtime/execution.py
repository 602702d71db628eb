"""`execute`: one rank's program run on the real libraries and paths.

Nothing here blocks. `advance` begins every operation whose inputs are ready and asks those in flight whether they are
done; the order of vendor calls and of messages per peer is the program's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from ..errors import HetcclError
from ..plan.plan import Plan
from ..plan.program import Call, Move, Op, Piece, Program, Receive, Reduce, Send, Set, lane_of
from ..plan.spec import INPUT, OUTPUT
from ..reduction import Reduction
from ..request import Request, Script
from ..transports.fabric import Fabric
from ..vendors.base import Communicator
from . import elementwise
from .memory import Memory, Pool

_MASK = (1 << 64) - 1
CHANNEL = "collective"
"""The channels of collectives, apart from those of point to point."""
_SMALL = 1 << 18
"""Bytes of scratch that a plan keeps for its next run."""


@dataclass(frozen=True)
class Bound:
    """A plan with this rank's program, and what the executor derives from it once."""

    plan: Plan
    program: Program

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Elements of this rank's input and output."""
        spec, rank = self.plan.spec, self.program.rank
        return {side: spec.extent(side, rank).length for side in (INPUT, OUTPUT)}

    @cached_property
    def lanes(self) -> tuple[tuple[int, ...], ...]:
        """Operations that must begin in order, lane by lane."""
        lanes: dict[object, list[int]] = defaultdict(list)
        for index, operation in enumerate(self.program.operations):
            lanes[lane_of(operation) or index].append(index)
        return tuple(tuple(lane) for lane in lanes.values())

    @cached_property
    def lane_of(self) -> tuple[int, ...]:
        where = {index: number for number, lane in enumerate(self.lanes) for index in lane}
        return tuple(where[index] for index in range(len(self.program.operations)))

    @cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """Who waits for each operation."""
        followers: list[list[int]] = [[] for _ in self.program.operations]
        for index, waits in enumerate(self.program.waits):
            for other in waits:
                followers[other].append(index)
        return tuple(tuple(f) for f in followers)

    def memory(self, dtype: torch.dtype, device: torch.device, pool: Pool) -> Memory:
        """Memory for a run: what an earlier one left, or new."""
        for place, spare in enumerate(self._spare):
            if spare.dtype is dtype and spare.device == device:
                return self._spare.pop(place)
        return Memory(self.program, dtype, device, pool)

    def keep(self, memory: Memory, tensors: Mapping[str, torch.Tensor]) -> None:
        """After a run: small scratch stays with its plan, since taking it costs more than what it would free."""
        if memory.nbytes <= _SMALL:
            memory.rest(tensors)
            self._spare.append(memory)
        else:
            memory.release()

    @cached_property
    def _spare(self) -> list[Memory]:
        return []


def message_tag(fingerprint: int, sequence: int, step: int) -> int:
    """What a message carries, so that one of another plan, operation or step is not taken for it."""
    return (fingerprint + sequence * 0x9E3779B97F4A7C15 + step * 0xC2B2AE3D27D4EB4F) & _MASK


class Means:
    """What a group's executions share: communicators by their members, the fabric, and scratch memory."""

    def __init__(
        self,
        communicators: Mapping[tuple[int, ...], Communicator],
        fabric: Fabric | None,
        device: torch.device = torch.device("cpu"),
    ) -> None:
        self.communicators, self.fabric, self.pool, self.device = communicators, fabric, Pool(), device


class Execution:
    """One run of a program. `advance` is called under the engine's lock until it returns True."""

    def __init__(
        self,
        means: Means,
        bound: Bound,
        tensors: Mapping[str, torch.Tensor],
        dtype: torch.dtype,
        sequence: int,
        channel: str = CHANNEL,
        device: torch.device | None = None,
    ) -> None:
        """`tensors` are this rank's flat, contiguous input and output; `channel` keeps messages apart."""
        self._means, self._bound, self._channel = means, bound, channel
        self._tensors, self._dtype = tensors, dtype
        self._device = device or next((t.device for t in tensors.values()), torch.device("cpu"))
        self._reduction = bound.plan.spec.reduction or Reduction.SUM
        self._sequence = sequence
        self._memory: Memory | None = None
        self._missing = [len(waits) for waits in bound.program.waits]
        self._next = [0] * len(bound.lanes)
        self._flying: dict[int, Request] = {}
        self._left = len(bound.program.operations)

    def advance(self) -> bool:
        """Make progress; True once all is done. Raises what went wrong."""
        if self._memory is None:
            self._memory = self._bound.memory(self._dtype, self._device, self._means.pool)
            self._memory.lend(self._tensors)
            self._begin(list(range(len(self._bound.lanes))))
        while self._flying:
            landed = [index for index, request in self._flying.items() if self._test(index, request)]
            if not landed:
                return False
            lanes: list[int] = []
            for index in landed:
                del self._flying[index]
                lanes += self._landed(index)
            if lanes:
                self._begin(sorted(lanes))
        if self._left:
            raise HetcclError("a program stopped before its end; this is a defect of hetccl")
        self._end()
        return True

    def _end(self) -> None:
        assert self._memory is not None
        self._bound.keep(self._memory, self._tensors)

    def describe(self) -> str:
        """The plan's step and what is awaited, for an error message."""
        if not self._flying:
            return "step 0: not begun"
        index, request = min(self._flying.items())
        operation = self._bound.program.operations[index]
        step = self._bound.plan.steps[operation.step]
        return (
            f"step {operation.step + 1} of {len(self._bound.plan.steps)} ({_kind(operation)}, chunk {step.chunk + 1}"
            f" of {self._bound.plan.chunks}): {request.describe()}"
        )

    def _landed(self, index: int) -> list[int]:
        """Note the end of an operation; the lanes that may go on."""
        self._left -= 1
        lanes = []
        for follower in self._bound.followers[index]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                lanes.append(self._bound.lane_of[follower])
        return lanes

    def _begin(self, todo: list[int]) -> None:
        """Begin all that may begin, in these lanes and in those that go on thereby."""
        lanes, missing = self._bound.lanes, self._missing
        for number in todo:  # which grows on the way
            lane = lanes[number]
            while self._next[number] < len(lane) and not missing[lane[self._next[number]]]:
                index = lane[self._next[number]]
                self._next[number] += 1
                request = self._start(index)
                if request is None or self._test(index, request):
                    todo += self._landed(index)
                    continue
                self._flying[index] = request

    def _test(self, index: int, request: Request) -> bool:
        return request.test()

    def _start(self, index: int) -> Request | None:
        """The operation's request; None where it is done."""
        operation, memory = self._bound.program.operations[index], self._memory
        assert memory is not None
        match operation:
            case Send() | Receive():
                fabric = self._means.fabric
                assert fabric is not None
                tag = message_tag(self._bound.plan.fingerprint, self._sequence, operation.step)
                pieces = memory.bytes(operation.piece)
                if isinstance(operation, Send):
                    return fabric.sender(operation.peer, self._channel).send(pieces, tag)
                return fabric.receiver(operation.peer, self._channel).receive(pieces, tag)
            case Call():
                return self._call(operation, memory)
            case Reduce() | Move() | Set():
                elementwise.run(operation, memory, self._reduction, self._bound.plan.spec.ranks)
        return None

    def _call(self, call: Call, memory: Memory) -> Request:
        communicator = self._means.communicators[call.members]
        match call.kind:
            case "barrier":
                return communicator.barrier()
            case "all_reduce":
                return self._written(
                    call.targets, lambda room: communicator.all_reduce(room[0], self._reduction), loaded=True
                )
            case "broadcast":
                return self._written(call.targets, lambda room: communicator.broadcast(room[0], call.root), loaded=True)
            case "reduce":
                source = memory.load(call.sources[0])
                return self._written(
                    call.targets,
                    lambda room: communicator.reduce(source, room[0], self._reduction, call.root),
                    keep=call.place == call.root,
                )
            case "all_gather":
                whole = call.targets[0]
                source = memory.load(call.sources[0])
                parts = [whole.part(start, stop) for start, stop in call.parts]
                own = parts[call.place]
                others = tuple(part for place, part in enumerate(parts) if place != call.place)

                def gather(room: list[torch.Tensor]) -> Request:
                    # Our own part holds its data already, unless it comes from another buffer.
                    mine = source if own == call.sources[0] else memory.room(own)
                    return communicator.all_gather([*room[: call.place], mine, *room[call.place :]], source)

                return self._written(others, gather)
            case "reduce_scatter":
                whole = memory.load(call.sources[0])  # type: ignore[assignment]
                sources = [whole[start:stop] for start, stop in call.parts]  # type: ignore[index]
                return self._written(
                    call.targets,
                    lambda room: communicator.reduce_scatter(room[0], sources, self._reduction),
                )
            case "exchange":
                sends = [(memory.load(piece), place) for piece, place in zip(call.sources, call.places[0], strict=True)]
                places = call.places[1]
                return self._written(
                    call.targets,
                    lambda room: communicator.exchange(sends, list(zip(room, places, strict=True))),
                )
        raise AssertionError(call.kind)

    def _written(
        self,
        pieces: tuple[Piece, ...],
        start: Callable[[list[torch.Tensor]], Request],
        loaded: bool = False,
        keep: bool = True,
    ) -> Request:
        """A vendor call that writes these pieces; where one is not contiguous, through a packed copy."""
        memory = self._memory
        assert memory is not None
        room = [memory.load(piece) if loaded else memory.room(piece) for piece in pieces]
        request = start(room)
        if not keep or all(len(piece.spans) <= 1 for piece in pieces):
            return request

        def finish() -> Generator[Request, None, None]:
            yield request
            for piece, data in zip(pieces, room, strict=True):
                memory.store(piece, data)

        return Script(finish())


def _kind(operation: Op) -> str:
    match operation:
        case Call():
            return f"vendor {operation.kind}"
        case Send():
            return f"send to rank {operation.peer}"
        case Receive():
            return f"receive from rank {operation.peer}"
        case Set():
            return operation.kind
    return type(operation).__name__.lower()
