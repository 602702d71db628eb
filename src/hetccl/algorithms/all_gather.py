"""all_gather: direct exchange of shares, with relays of depth two where a share is too large for its cluster's links.

Bound: max_i max( (S-S_i)/B_i in, S_i/B_i out ); met.

1. every rank puts its own share into the output; vendor all_gather inside each cluster
2. cross: cluster i's borders send its share, cut over them, to each other cluster (relayed parts to their relay only)
3. cross: relays pass on
4. local: vendor all_gather of what arrived at the borders
"""

from __future__ import annotations

from ..plan.layouts import Borders, Shares
from ..plan.region import Region
from ..plan.spec import INPUT, OUTPUT, Spec
from ..plan.steps import Action, Copy, Local, Transfer
from ..topo.model import Topology
from .shares import relayed_parts


def stages(spec: Spec, topology: Topology, combining: tuple[str, ...], part: list[Region]) -> list[list[Action]]:
    """The stages of one chunk; `part` is its region in each cluster's share."""
    clusters = topology.clusters
    own: list[Action] = [Copy(part[c.index], Shares(INPUT, c.index), INPUT, OUTPUT) for c in clusters]
    inside: list[Action] = [
        Local("all_gather", c.index, part[c.index], Shares(INPUT, c.index), OUTPUT, OUTPUT) for c in clusters
    ]
    if len(clusters) == 1:
        return [own, inside]
    parts = list(relayed_parts(spec, topology, part))

    def carry(region: Region, source: int, target: int) -> Transfer:
        return Transfer(region, Borders(source), Borders(target), OUTPUT, OUTPUT)

    direct: list[Action] = [
        carry(region, owner, c.index)
        for owner, relay, region in parts
        for c in clusters
        if c.index != owner and (relay in (owner, c.index))
    ]
    passed_on: list[Action] = [
        carry(region, relay, c.index)
        for owner, relay, region in parts
        if relay != owner
        for c in clusters
        if c.index not in (owner, relay)
    ]
    spread: list[Action] = [
        Local("all_gather", c.index, region, Borders(c.index), OUTPUT, OUTPUT)
        for owner, _, region in parts
        for c in clusters
        if c.index != owner
    ]
    return [own, inside, direct, passed_on, spread]
