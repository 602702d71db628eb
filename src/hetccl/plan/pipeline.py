"""Pipelining: the stages of several chunks interleaved in one order, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .steps import Action, Step


def wavefront(chunks: Sequence[Sequence[Sequence[Action]]]) -> tuple[Step, ...]:
    """Step order by wave: stage s of chunk c comes in wave s + c, older chunks first.

    Vendor calls begin in this order on all ranks, so two members of a communicator never wait for each other.
    """
    depth = max((len(stages) for stages in chunks), default=0)
    steps: list[Step] = []
    for wave in range(depth + len(chunks) - 1):
        for chunk, stages in enumerate(chunks):
            stage = wave - chunk
            if 0 <= stage < len(stages):
                steps.extend(Step(action, chunk, stage) for action in stages[stage])
    return tuple(steps)


def best_chunks(fixed: Sequence[float], variable: Sequence[float]) -> float:
    """C* = sqrt((Bt - β_R)·S / α_R), the seed of the search.

    `fixed` are the stages' α_s in seconds, `variable` their β_s·S; R is the stage that bounds the throughput. Only
    exactly rounded functions are used: the ranks of a mixed job run different Pythons and C libraries, in which `sum`
    (compensated since 3.12) and `pow` may differ in the last bit, and must still find the same number.
    """
    if not variable or max(variable) <= 0:
        return 1.0
    slowest = max(range(len(variable)), key=variable.__getitem__)
    alpha = max(fixed[slowest], 1e-9)
    return max(1.0, math.sqrt((math.fsum(variable) - variable[slowest]) / alpha))
