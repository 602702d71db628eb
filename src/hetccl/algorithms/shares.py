"""What all_gather and reduce_scatter have in common: shares, their chunks, and relays."""

from __future__ import annotations

from collections.abc import Iterator

from ..plan.bounds import relays
from ..plan.partition import cuts
from ..plan.region import Region
from ..plan.spec import Spec
from ..topo.model import Topology


def share_chunks(spec: Spec, topology: Topology, count: int) -> list[list[Region]]:
    """Per chunk, per cluster: the same fraction of every rank's share, so that equal shares stay aligned."""
    shares = [[spec.share_bounds(rank) for rank in cluster.ranks] for cluster in topology.clusters]
    return [
        [
            Region.of(
                (start + (stop - start) * place // count, start + (stop - start) * (place + 1) // count)
                for start, stop in bounds
            )
            for bounds in shares
        ]
        for place in range(count)
    ]


def relayed_parts(spec: Spec, topology: Topology, part: list[Region]) -> Iterator[tuple[int, int, Region]]:
    """(cluster whose share it is, cluster that relays it or the same where none does, region); none is empty."""
    for owner, weights in enumerate(relays(spec, topology)):
        if not any(weights):
            continue
        edges = cuts(part[owner].length, weights)
        for relay in range(len(weights)):
            region = part[owner].slice(edges[relay], edges[relay + 1])
            if region:
                yield owner, relay, region
