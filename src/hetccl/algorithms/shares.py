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
    chunks = []
    for place in range(count):
        regions = []
        for cluster in topology.clusters:
            parts: list[tuple[int, int]] = []
            for rank in cluster.ranks:
                start, stop = spec.share_bounds(rank)
                length = stop - start
                parts.append((start + length * place // count, start + length * (place + 1) // count))
            regions.append(Region.of(parts))
        chunks.append(regions)
    return chunks


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
