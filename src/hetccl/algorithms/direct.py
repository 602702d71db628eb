"""Latency plans: one exchange between all ranks over the paths, and a combine wherever the result is wanted.

For small messages, where starting a vendor call costs more than the bytes. The bytes are not minimal: an all_reduce
sends S from every rank to every other, n_i·n_j·S between two clusters, so the planner takes one only while it predicts
a shorter time. Partial results are combined in rank order, so all replicas are bit-identical.

1. all ranks at once: what each holds goes straight to whoever wants it
2. whoever wants a reduction combines what came, in rank order
"""

from __future__ import annotations

from ..plan.layouts import Everyone, Layout, Shares, Single
from ..plan.region import interval
from ..plan.spec import INPUT, OUTPUT, Operation, Spec
from ..plan.steps import Action, Combine, Direct, Scale
from ..reduction import Reduction

MOST_RANKS = 64
"""Each rank sends to each other: above this the planner does not even ask what it would cost."""

_EVERYONE, _GIVEN, _WANTED = Everyone(None), Shares(INPUT), Shares(OUTPUT)


def stages(spec: Spec) -> list[list[Action]]:
    """All stages; there are no chunks."""
    root, everything = Single(spec.root), interval(0, spec.length)
    match spec.operation:
        case Operation.ALL_REDUCE:
            return _reduced(spec, OUTPUT, _EVERYONE)
        case Operation.REDUCE:
            return _reduced(spec, INPUT, root)
        case Operation.REDUCE_SCATTER:
            return _reduced(spec, INPUT, _WANTED)
        case Operation.BROADCAST:
            return [[Direct(everything, root, _EVERYONE, OUTPUT, OUTPUT)]]
        case Operation.ALL_GATHER:
            return [[Direct(everything, _GIVEN, _EVERYONE, INPUT, OUTPUT)]]
        case Operation.GATHER:
            return [[Direct(everything, _GIVEN, root, INPUT, OUTPUT)]]
        case Operation.SCATTER:
            return [[Direct(everything, root, _WANTED, INPUT, OUTPUT)]]
        case Operation.ALL_TO_ALL:
            return [[Direct(everything, _GIVEN, _WANTED, INPUT, OUTPUT)]]
        case Operation.BARRIER:
            return [[Direct(interval(0, 1), _EVERYONE, _EVERYONE, "token", "token", apart=True)]]
        case Operation.SEND:
            return [[Direct(everything, root, Single(spec.peer), INPUT, OUTPUT)]]
    raise AssertionError(spec.operation)


def _reduced(spec: Spec, source: str, wanted: Layout) -> list[list[Action]]:
    everything = interval(0, spec.length)
    partials = tuple(f"from{rank}" for rank in range(spec.ranks))
    found: list[list[Action]] = [
        [Direct(everything, _EVERYONE, wanted, source, "from", apart=True)],
        [Combine(everything, wanted, partials, OUTPUT)],
    ]
    return [*found, [Scale(everything, wanted, OUTPUT)]] if spec.reduction is Reduction.AVG else found
