"""all_to_all, equal and unequal.

Bound: max_i max(Σ_j V_ij, Σ_j V_ji)/B_i.

direct      every block goes straight from its sender to its receiver; meets the bound where each rank is a border and
            its traffic is in proportion to its link
rebalanced  1. the vendor moves what cluster i sends to j onto i's borders, in proportion to their links
            2. cross: borders to borders, one-to-one along the common refinement
            3. the vendor moves it on to the receivers
            meets the bound always, for two more passes inside the clusters
"""

from __future__ import annotations

from ..plan.layouts import Borders, Shares
from ..plan.region import Region, interval
from ..plan.spec import INPUT, OUTPUT, Spec
from ..plan.steps import Action, Transfer
from ..topo.model import Topology


def is_direct(spec: Spec, topology: Topology) -> bool:
    """Whether the direct form is taken: every rank is a border, and its links alike, and the blocks equal."""
    return len(topology.clusters) == 1 or (
        len(spec.sizes) == 1
        and all(
            len(c.borders) == c.size and len({border.bandwidth for border in c.borders}) == 1
            for c in topology.clusters
        )
    )


def stages(spec: Spec, topology: Topology) -> list[list[Action]]:
    """All stages; the blocks are the chunks."""
    if is_direct(spec, topology):
        return [[Transfer(interval(0, spec.length), Shares(INPUT), Shares(OUTPUT), INPUT, OUTPUT)]]
    outer: list[Action] = []
    cross: list[Action] = []
    inner: list[Action] = []
    for one in topology.clusters:
        for other in topology.clusters:
            region = Region.of(spec.block(p, q) for p in one.ranks for q in other.ranks)
            if not region:
                continue
            given, wanted = Shares(INPUT, one.index), Shares(OUTPUT, other.index)
            if one is other:
                inner.append(Transfer(region, given, wanted, INPUT, OUTPUT))
                continue
            outer.append(Transfer(region, given, Borders(one.index), INPUT, "outer"))
            cross.append(Transfer(region, Borders(one.index), Borders(other.index), "outer", "inner"))
            inner.append(Transfer(region, Borders(other.index), wanted, "inner", OUTPUT))
    return [outer, cross, inner]
