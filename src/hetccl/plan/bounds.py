"""Lower bounds on the bandwidth term of each collective, and the owner weights that meet them.

Model (design after the HetCCL paper, arXiv 2605.31000): a non-blocking core joins k clusters; cluster i sends at most
B_i and receives at most B_i bytes per second, B_i the sum of its borders' bandwidths. Times are exact fractions of
seconds.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm

from ..topo.model import Topology
from .spec import Operation, Spec


def lower_bound(spec: Spec, topology: Topology) -> Fraction:
    """Seconds below which no schedule without coding can carry this collective between clusters; 0 where k = 1."""
    clusters = topology.clusters
    if len(clusters) == 1 or spec.operation is Operation.BARRIER:
        return Fraction(0)
    bandwidth = [cluster.bandwidth for cluster in clusters]
    count, size = len(clusters), spec.nbytes
    match spec.operation:
        case Operation.ALL_REDUCE:
            slowest = Fraction(size, min(bandwidth))
            return max(slowest, Fraction(2 * (count - 1) * size, sum(bandwidth)))
        case Operation.BROADCAST | Operation.REDUCE:
            return Fraction(size, min(bandwidth))
        case Operation.ALL_GATHER | Operation.REDUCE_SCATTER:
            shares = cluster_shares(spec, topology)
            # Also a cluster that holds everything has others to send it to.
            return max(Fraction(max(size - share, share), b) for share, b in zip(shares, bandwidth, strict=True))
        case Operation.GATHER | Operation.SCATTER:
            shares = cluster_shares(spec, topology)
            root = topology.cluster_of(spec.root).index
            return max(
                Fraction(size - share if index == root else share, b)
                for index, (share, b) in enumerate(zip(shares, bandwidth, strict=True))
            )
        case Operation.ALL_TO_ALL:
            volume = cluster_volumes(spec, topology)
            return max(
                Fraction(
                    max(
                        sum(volume[i][j] for j in range(count) if j != i),
                        sum(volume[j][i] for j in range(count) if j != i),
                    ),
                    bandwidth[i],
                )
                for i in range(count)
            )
        case Operation.SEND:
            source, target = topology.cluster_of(spec.root), topology.cluster_of(spec.peer)
            if source is target:
                return Fraction(0)
            return Fraction(size, min(source.bandwidth, target.bandwidth))
    raise AssertionError(spec.operation)


def cross_bytes(spec: Spec, topology: Topology) -> int:
    """The fewest bytes that all clusters together must send to others; what the schedules here send."""
    clusters = topology.clusters
    others = len(clusters) - 1
    if others == 0 or spec.operation is Operation.BARRIER:
        return 0
    size = spec.nbytes
    match spec.operation:
        case Operation.ALL_REDUCE:
            return 2 * others * size
        case Operation.BROADCAST | Operation.REDUCE | Operation.ALL_GATHER | Operation.REDUCE_SCATTER:
            return others * size
        case Operation.GATHER | Operation.SCATTER:
            return size - cluster_shares(spec, topology)[topology.cluster_of(spec.root).index]
        case Operation.ALL_TO_ALL:
            volume = cluster_volumes(spec, topology)
            return sum(sum(row) for row in volume) - sum(volume[i][i] for i in range(len(clusters)))
        case _:
            return size if topology.cluster_of(spec.root) is not topology.cluster_of(spec.peer) else 0


def cluster_shares(spec: Spec, topology: Topology) -> list[int]:
    """S_i: bytes of the coordinate space that belong to each cluster's ranks."""
    sizes = spec.sizes
    if len(sizes) == 1:
        return [sizes[0] * cluster.size * spec.itemsize for cluster in topology.clusters]
    return [sum(sizes[rank] for rank in cluster.ranks) * spec.itemsize for cluster in topology.clusters]


def cluster_volumes(spec: Spec, topology: Topology) -> list[list[int]]:
    """V_ij: bytes that an all_to_all moves from cluster i to cluster j."""
    clusters = topology.clusters
    if len(spec.sizes) == 1:
        block = spec.sizes[0] * spec.itemsize
        return [[block * one.size * other.size for other in clusters] for one in clusters]
    volume = [[0] * len(clusters) for _ in clusters]
    home = [topology.cluster_of(rank).index for rank in range(spec.ranks)]
    for place, size in enumerate(spec.sizes):
        volume[home[place // spec.ranks]][home[place % spec.ranks]] += size * spec.itemsize
    return volume


def owner_weights(topology: Topology) -> list[int]:
    """Integer weights w_i of the clusters as owners of an all_reduce's slices.

    k > 2: w_i ∝ T·B_i/S - 1, the largest shares that keep each cluster's traffic S(1 + (k-2)w_i) within T·B_i; they
    add up to at least one by the definition of T, so in proportion they all stay below their limit. k = 2: any
    weights do; the bandwidths are taken.
    """
    bandwidth = [cluster.bandwidth for cluster in topology.clusters]
    count = len(bandwidth)
    if count <= 2:
        return bandwidth
    time = max(Fraction(1, min(bandwidth)), Fraction(2 * (count - 1), sum(bandwidth)))
    return [time.numerator * b - time.denominator for b in bandwidth]


def relays(spec: Spec, topology: Topology) -> list[list[int]]:
    """all_gather and reduce_scatter: weights by which each cluster's share is cut into parts.

    Row i: entry i is the part that cluster i exchanges with all others directly; entry c the part that goes through
    cluster c. A cluster relays where (k-1)·S_i exceeds T·B_i: each byte through a relay saves it k-2 bytes, and
    costs the relay, which has room, as much.
    """
    count = len(topology.clusters)
    shares = cluster_shares(spec, topology)
    bound = lower_bound(spec, topology)
    slack = [bound * c.bandwidth - (count - 1) * share for c, share in zip(topology.clusters, shares, strict=True)]
    rows = []
    for index, share in enumerate(shares):
        row = [Fraction(0)] * count
        missing = max(Fraction(0), -slack[index])
        for relay in range(count):
            if count > 2 and missing > 0 and relay != index and slack[relay] > 0:
                moved = min(missing, slack[relay])
                slack[relay] -= moved
                missing -= moved
                row[relay] = moved / (count - 2)
        row[index] = share - sum(row, Fraction(0))
        scale = lcm(*(entry.denominator for entry in row))
        rows.append([int(entry * scale) for entry in row])
    return rows
