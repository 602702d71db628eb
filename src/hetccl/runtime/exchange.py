"""A faster executor for latency plans: one exchange of small messages, then this rank's own work.

It does what `Execution` does with such a program, several times as fast: what can be looked up is looked up once, and
messages go into and out of the channels without requests. Where a path cannot do that, or a message is not one run of
bytes, `compiled` says None and `Execution` serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..plan.program import Move, Receive, Reduce, Send, Set
from ..reduction import Reduction
from ..transports.base import MOST_IMMEDIATE, ReceiveChannel, SendChannel
from . import elementwise
from .execution import CHANNEL, Bound, Means, message_tag
from .memory import Memory


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a message: bytes first to last of a buffer, through a channel."""

    peer: int
    channel: Any
    buffer: str
    first: int
    last: int
    step: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program as this executor runs it: copies, sends, receives, and the rest, in this order."""

    bound: Bound
    memory: Memory
    copies: tuple[Move, ...]
    sends: tuple[_End, ...]
    receives: tuple[_End, ...]
    rest: tuple[Reduce | Set, ...]


def compiled(bound: Bound, means: Means, dtype: torch.dtype, device: torch.device) -> Compiled | None:
    """The program for this executor, if it can run it. Its memory serves one run at a time."""
    fabric, width = means.fabric, dtype.itemsize
    if bound.plan.algorithm != "direct" or fabric is None or device.type != "cpu":
        return None
    copies: list[Move] = []
    ends: dict[type, list[_End]] = {Send: [], Receive: []}
    rest: list[Reduce | Set] = []
    for operation in bound.program.operations:
        match operation:
            case Move():
                copies.append(operation)
            case Send() | Receive():
                sends = isinstance(operation, Send)
                spans = operation.piece.spans
                if len(spans) != 1 or spans[0][1] * width > MOST_IMMEDIATE:
                    return None
                ((offset, length),) = spans
                found: SendChannel | ReceiveChannel = (fabric.sender if sends else fabric.receiver)(
                    operation.peer, CHANNEL
                )
                if not found.immediate:
                    return None
                first, last = width * offset, width * (offset + length)
                ends[type(operation)].append(
                    _End(operation.peer, found, operation.piece.buffer, first, last, operation.step)
                )
            case Reduce() | Set():
                rest.append(operation)
            case _:
                return None
    memory = Memory(bound.program, dtype, device, means.pool)
    return Compiled(bound, memory, tuple(copies), tuple(ends[Send]), tuple(ends[Receive]), tuple(rest))


class Exchange:
    """One run; a task of the engine."""

    def __init__(self, program: Compiled, tensors: Mapping[str, torch.Tensor], sequence: int) -> None:
        self._program, self._tensors = program, tensors
        self._fingerprint, self._sequence = program.bound.plan.fingerprint, sequence
        self._begun = False
        self._sends, self._receives = program.sends, program.receives

    def advance(self) -> bool:
        """Make progress; True once all is done."""
        program, memory = self._program, self._program.memory
        if not self._begun:
            memory.lend(self._tensors)
            self._begun = True
            for copy in program.copies:
                self._run(copy)
        if self._sends:
            self._sends = tuple(end for end in self._sends if not end.channel.put(*self._message(end)))
        if self._receives:
            self._receives = tuple(end for end in self._receives if not end.channel.take(*self._message(end)))
        if self._sends or self._receives:
            return False
        for operation in program.rest:
            self._run(operation)
        memory.rest(self._tensors)
        return True

    def _message(self, end: _End) -> tuple[Any, int]:
        return self._program.memory.raw(end.buffer)[end.first : end.last], message_tag(
            self._fingerprint, self._sequence, end.step
        )

    def _run(self, operation: Move | Reduce | Set) -> None:
        spec = self._program.bound.plan.spec
        elementwise.run(operation, self._program.memory, spec.reduction or Reduction.SUM, spec.ranks)

    def describe(self) -> str:
        """What is awaited, for an error message."""
        ways = [("receive from", self._receives), ("send to", self._sends)]
        way, ends = next((pair for pair in ways if pair[1]), ("", ()))
        if not self._begun or not ends:
            return "step 0: not begun"
        steps = len(self._program.bound.plan.steps)
        peers = ", ".join(str(end.peer) for end in ends)
        return f"step {ends[0].step + 1} of {steps} (direct exchange): {way} rank {peers}"
