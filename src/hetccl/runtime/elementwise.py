"""What a rank does to its own memory in a program: combine, copy, fill, scale."""

from __future__ import annotations

from ..plan.program import Move, Reduce, Set
from ..reduction import Reduction, average, combine, identity
from .memory import Memory


def run(operation: Reduce | Move | Set, memory: Memory, reduction: Reduction, ranks: int) -> None:
    """Carry out one operation; `ranks` is what an average divides by."""
    match operation:
        case Reduce():
            _reduce(operation, memory, reduction)
        case Move():
            target = memory.room(operation.target)
            target.copy_(memory.load(operation.source))
            memory.store(operation.target, target)
        case Set(kind="fill"):
            for view in memory.views(operation.target):
                view.fill_(identity(reduction, view.dtype))
        case Set():
            for view in memory.views(operation.target):
                average(view, ranks)


def _reduce(operation: Reduce, memory: Memory, reduction: Reduction) -> None:
    """Fold in the order given. With three or more terms a scratch holds the sums, as the target may be a term."""
    first, *rest = [memory.load(source) for source in operation.sources]
    target = memory.room(operation.target)
    sums = target if len(rest) == 1 else memory.temporary(first.numel())
    for number, other in enumerate(rest, 1):
        out = target if number == len(rest) else sums
        combine(reduction, first, other, out)
        first = out
    memory.store(operation.target, target)
