"""all_to_all, equal and unequal.

Bound: max_i max(Σ_j V_ij, Σ_j V_ji)/B_i.

direct      every block goes straight from its sender to its receiver; meets the bound where each rank is a border and
            its traffic is in proportion to its link
rebalanced  1. the vendor moves what cluster i sends to j onto i's borders, in proportion to their links
            2. cross: borders to borders, one-to-one along the common refinement
            3. the vendor moves it on to the receivers
            meets the bound always, for two more passes inside the clusters. The plan lists every run of blocks, n^2
            of them where ranks interleave: seconds of planning for a thousand ranks, once a shape
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
            len(c.borders) == c.size and len({border.bandwidth for border in c.borders}) == 1 for c in topology.clusters
        )
    )


def _runs(ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of neighbours among ascending ranks: (first, last). What one rank sends to a run is one interval."""
    first = 0
    for place, rank in enumerate(ranks):
        if place + 1 == len(ranks) or ranks[place + 1] != rank + 1:
            yield ranks[first], rank
            first = place + 1


def stages(spec: Spec, topology: Topology) -> list[list[Action]]:
    """All stages; the blocks are the chunks."""
    if is_direct(spec, topology):
        return [[Transfer(interval(0, spec.length), Shares(INPUT), Shares(OUTPUT), INPUT, OUTPUT)]]
    outer: list[Action] = []
    cross: list[Action] = []
    inner: list[Action] = []
    runs = [list(_runs(cluster.ranks)) for cluster in topology.clusters]
    for one in topology.clusters:
        for other in topology.clusters:
            region = Region.of(
                (spec.block(p, first)[0], spec.block(p, last)[1])
                for p in one.ranks
                for first, last in runs[other.index]
            )
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
