"""send/recv, and barrier.

send     Bound: S/min(B_a, B_b) striped; from the one rank to the other directly, so S/min(β_a, β_b) where both
         are borders.
barrier  1. vendor barrier in each cluster  2. one token from each cluster's first border to each other's
         3. vendor barrier: its members leave when the border, which waits for the tokens, has come
"""

from __future__ import annotations

from ..plan.layouts import Everyone, Single
from ..plan.region import Region, interval
from ..plan.spec import INPUT, OUTPUT, Spec
from ..plan.steps import Action, Local, Transfer
from ..topo.model import Topology


def send(spec: Spec, topology: Topology, part: Region) -> list[list[Action]]:
    return [[Transfer(part, Single(spec.root), Single(spec.peer), INPUT, OUTPUT)]]


def barrier(topology: Topology) -> list[list[Action]]:
    token = interval(0, 1)
    meet: list[Action] = [
        Local("barrier", c.index, Region(()), Everyone(c.index), INPUT, OUTPUT) for c in topology.clusters
    ]
    if len(topology.clusters) == 1:
        return [meet]
    tokens: list[Action] = [
        Transfer(token, Single(a.borders[0].rank), Single(b.borders[0].rank), "token", f"token{a.index}")
        for a in topology.clusters
        for b in topology.clusters
        if a is not b
    ]
    return [meet, tokens, meet]
