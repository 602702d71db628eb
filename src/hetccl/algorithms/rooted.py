"""broadcast, reduce, gather and scatter.

broadcast, reduce  Bound: S/min_i B_i; met. The root's cluster exchanges a different (k-1)-th with each other cluster,
                   and those exchange it among themselves, so no link carries more than S.
gather, scatter    Bound: max( (S-S_r)/B_r , max_{i≠r} S_i/B_i ); met. Shares are rebalanced onto the borders by the
                   vendor's point to point, cross once, and go to or come from the root.
"""

from __future__ import annotations

from ..plan.layouts import Borders, Layout, Shares, Single, coincide
from ..plan.partition import chunked
from ..plan.region import Region
from ..plan.spec import INPUT, OUTPUT, Spec
from ..plan.steps import Action, Local, Scale, Transfer
from ..reduction import Reduction
from ..topo.model import Topology
from .combining import Owner, combine, together


def _first_hops(spec: Spec, topology: Topology, part: Region) -> tuple[int, dict[int, Region]]:
    """The root's cluster, and the slice that it exchanges with each other cluster."""
    home = topology.cluster_of(spec.root).index
    others = [c.index for c in topology.clusters if c.index != home]
    if not others:
        return home, {}
    edges = chunked(part.length, len(others))
    slices = {other: part.slice(edges[place], edges[place + 1]) for place, other in enumerate(others)}
    return home, {other: region for other, region in slices.items() if region}


def broadcast(spec: Spec, topology: Topology, combining: tuple[str, ...], part: Region) -> list[list[Action]]:
    """1. vendor broadcast in the root's cluster  2. slices to the others  3. passed on  4. vendor all_gather."""
    home, slices = _first_hops(spec, topology, part)
    clusters = [c.index for c in topology.clusters if c.index != home]
    return [
        [Local("all_gather", home, part, Single(spec.root), OUTPUT, OUTPUT)],
        [Transfer(region, Borders(home), Borders(via), OUTPUT, OUTPUT) for via, region in slices.items()],
        [
            Transfer(region, Borders(via), Borders(other), OUTPUT, OUTPUT)
            for via, region in slices.items()
            for other in clusters
            if other != via
        ],
        [
            Local("all_gather", other, region, Borders(other), OUTPUT, OUTPUT)
            for region in slices.values()
            for other in clusters
        ],
    ]


def reduce(spec: Spec, topology: Topology, combining: tuple[str, ...], part: Region) -> list[list[Action]]:
    """The transpose of broadcast: slices are combined at each other cluster, then at the root's, then moved to it."""
    home, slices = _first_hops(spec, topology, part)
    clusters, root = topology.clusters, Single(spec.root)
    if not slices:
        alone: list[list[Action]] = [[Local("reduce_scatter", home, part, root, INPUT, OUTPUT)]]
        return [*alone, [Scale(part, root, OUTPUT)]] if spec.reduction is Reduction.AVG else alone
    partial = {c.index: INPUT if c.size == 1 else "partial" for c in clusters}
    first: list[Action] = []
    middles: list[Owner] = []
    finals: list[Owner] = []
    for via, region in slices.items():
        senders = {c.index: partial[c.index] for c in clusters if c.index not in (home, via)}
        reducing = senders if senders else {via: partial[via]}
        first += [
            Local("reduce_scatter", sender, region, Borders(sender), INPUT, partial[sender])
            for sender in reducing
            if clusters[sender].size > 1
        ]
        if senders:
            middle = Owner(clusters[via], region, senders, INPUT, "middle", f"via{via}")
            middles.append(combine(middle, combining[via], None, everywhere=False))
        arriving = {via: "middle" if senders else partial[via]}
        result = OUTPUT if coincide(Borders(home), root, region, topology, spec) else "result"
        final = Owner(clusters[home], region, arriving, INPUT, result, f"root{via}")
        finals.append(combine(final, combining[home], spec.reduction, everywhere=False))
    return [
        first,
        *together(owner.stages for owner in middles),
        *together(owner.stages for owner in finals),
        [Transfer(o.region, Borders(home), root, o.result, OUTPUT) for o in finals if o.result != OUTPUT],
    ]


def gather(spec: Spec, topology: Topology, combining: tuple[str, ...], part: list[Region]) -> list[list[Action]]:
    """1. shares onto the borders  2. to the root's cluster's borders  3. to the root."""
    return _collect(spec, topology, part, inward=True)


def scatter(spec: Spec, topology: Topology, combining: tuple[str, ...], part: list[Region]) -> list[list[Action]]:
    """The transpose of gather."""
    stages = _collect(spec, topology, part, inward=False)
    return [stages[2], stages[1], stages[0], stages[3]]


def _collect(spec: Spec, topology: Topology, part: list[Region], inward: bool) -> list[list[Action]]:
    """Stages outer, cross, inner, own; each transfer turned round where the data flows outward."""
    home, root = topology.cluster_of(spec.root).index, Single(spec.root)
    side, far, near = (INPUT, INPUT, OUTPUT) if inward else (OUTPUT, OUTPUT, INPUT)
    outer: list[Action] = []
    cross: list[Action] = []
    inner: list[Action] = []

    def carry(region: Region, outward: Layout, homeward: Layout, at_far: str, at_near: str) -> Transfer:
        if inward:
            return Transfer(region, outward, homeward, at_far, at_near)
        return Transfer(region, homeward, outward, at_near, at_far)

    for cluster in topology.clusters:
        region, shares = part[cluster.index], Shares(side, cluster.index)
        if cluster.index == home or not region:
            continue
        at_border, at_home = far, near
        if not coincide(shares, Borders(cluster.index), region, topology, spec):
            at_border = "outer"
            outer.append(carry(region, shares, Borders(cluster.index), far, at_border))
        if not coincide(Borders(home), root, region, topology, spec):
            at_home = "inner"
            inner.append(carry(region, Borders(home), root, at_home, near))
        cross.append(carry(region, Borders(cluster.index), Borders(home), at_border, at_home))
    own: list[Action] = [carry(part[home], Shares(side, home), root, far, near)]
    return [outer, cross, inner, own]
