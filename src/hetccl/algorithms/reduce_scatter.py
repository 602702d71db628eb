"""reduce_scatter: each share's cluster owns it; the transpose of all_gather.

Bound: max_i max( S_i/B_i in, (S-S_i)/B_i out ); met. A cluster whose share is too large for its own links receives part
of it already combined by a relay.

1. local: vendor reduce_scatter of every other cluster's share onto the borders
2. cross: partials of relayed parts go to the relay, which combines them with its own
3. cross: partials of direct parts, and the relays' sums, go to the owner, which combines them (see `combining`)
4. local: the vendor moves each rank's share from the borders to it, where it isn't there already
"""

from __future__ import annotations

from ..plan.layouts import Borders, Shares, coincide
from ..plan.region import Region
from ..plan.spec import INPUT, OUTPUT, Spec
from ..plan.steps import Action, Local, Scale, Transfer
from ..reduction import Reduction
from ..topo.model import Topology
from .combining import Owner, combine, together
from .shares import relayed_parts


def stages(spec: Spec, topology: Topology, combining: tuple[str, ...], part: list[Region]) -> list[list[Action]]:
    """The stages of one chunk; `part` is its region in each cluster's share."""
    clusters = topology.clusters
    if len(clusters) == 1:
        shares = Shares(OUTPUT, 0)
        alone: list[list[Action]] = [[Local("reduce_scatter", 0, part[0], shares, INPUT, OUTPUT)]]
        return [*alone, [Scale(part[0], shares, OUTPUT)]] if spec.reduction is Reduction.AVG else alone
    partial = {c.index: INPUT if c.size == 1 else "partial" for c in clusters}
    first: list[Action] = []
    relays: list[Owner] = []
    finals: list[Owner] = []
    for owner, relay, region in relayed_parts(spec, topology, part):
        home = clusters[owner]
        others = [c.index for c in clusters if c.index not in (owner, relay)]
        for sender in others:
            if clusters[sender].size > 1:
                first.append(Local("reduce_scatter", sender, region, Borders(sender), INPUT, partial[sender]))
        senders = {sender: partial[sender] for sender in others}
        if relay != owner:
            at = Owner(clusters[relay], region, senders, INPUT, "relayed", f"relay{relay}.{owner}")
            relays.append(combine(at, combining[relay], None, everywhere=False))
            senders = {relay: "relayed"}
        direct = coincide(Borders(owner), Shares(OUTPUT, owner), region, topology, spec)
        result = OUTPUT if direct else "result"
        final = Owner(home, region, senders, INPUT, result, f"at{owner}.{relay}")
        finals.append(combine(final, combining[owner], spec.reduction, everywhere=False))
    return [
        first,
        *together(owner.stages for owner in relays),
        *together(owner.stages for owner in finals),
        [
            Transfer(o.region, Borders(o.cluster.index), Shares(OUTPUT, o.cluster.index), o.result, OUTPUT)
            for o in finals
            if o.result != OUTPUT
        ],
    ]
