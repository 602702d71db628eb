"""all_reduce: weighted owners, direct exchange.

Bound: max( max_i S/B_i , 2(k-1)S/ΣB ) seconds; met. Cluster i sends and receives S(1 + (k-2)w_i) bytes.

1. the tensor is cut into one slice a cluster, in proportion to the owner weights
2. local: vendor reduce_scatter of each slice onto the cluster's borders
3. cross: every cluster sends its partial of each slice to the slice's owner
4. the owner combines (see `combining`)
5. cross: the owner sends the result to every other cluster
6. local: vendor all_gather from the borders
"""

from __future__ import annotations

from ..plan.bounds import owner_weights
from ..plan.layouts import Borders, Everyone
from ..plan.partition import cuts
from ..plan.region import Region
from ..plan.spec import OUTPUT, Spec
from ..plan.steps import Action, Local, Scale, Transfer
from ..reduction import Reduction
from ..topo.model import Topology
from .combining import Owner, combine, together


def stages(spec: Spec, topology: Topology, combining: tuple[str, ...], part: Region) -> list[list[Action]]:
    """The stages of one chunk."""
    clusters = topology.clusters
    if len(clusters) == 1:
        everyone = Everyone(0)
        whole: list[list[Action]] = [[Local("all_reduce", 0, part, everyone, OUTPUT, OUTPUT)]]
        return [*whole, [Scale(part, everyone, OUTPUT)]] if spec.reduction is Reduction.AVG else whole
    edges = cuts(part.length, owner_weights(topology))
    slices = {c.index: part.slice(edges[c.index], edges[c.index + 1]) for c in clusters}
    slices = {index: region for index, region in slices.items() if region}
    reduce_first: list[Action] = [
        Local("reduce_scatter", cluster.index, region, Borders(cluster.index), OUTPUT, OUTPUT)
        for cluster in clusters
        for owner, region in slices.items()
        if owner != cluster.index
    ]
    owners = [
        combine(
            Owner(
                clusters[index],
                region,
                {c.index: OUTPUT for c in clusters if c.index != index},
                OUTPUT,
                OUTPUT,
                f"at{index}",
                scratch_free=True,
            ),
            combining[index],
            spec.reduction,
            everywhere=True,
        )
        for index, region in slices.items()
    ]
    return [
        reduce_first,
        *together(owner.stages for owner in owners),
        [
            Transfer(owner.region, Borders(owner.cluster.index), Borders(cluster.index), OUTPUT, OUTPUT)
            for owner in owners
            for cluster in clusters
            if cluster is not owner.cluster
        ],
        [
            Local("all_gather", cluster.index, owner.region, Borders(cluster.index), OUTPUT, OUTPUT)
            for cluster in clusters
            for owner in owners
            if not (cluster is owner.cluster and owner.gave_everywhere)
        ],
    ]
