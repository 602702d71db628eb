"""The data that a job's shape is made of. Everything here is plain, frozen and the same on every rank.

Ranks are group ranks, 0 … size-1. Bandwidths are integers, bytes per second in each direction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface of a host, as a rank sees it."""

    name: str
    address: str
    bandwidth: int


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of the job and what it said of itself when the group was made."""

    rank: int
    host: str
    vendor: str
    library: str = ""
    version: str = ""
    label: str = ""
    device: str = "cpu"
    torch: str = ""
    hetccl: str = ""
    interfaces: tuple[Interface, ...] = ()
    paths: tuple[tuple[str, str], ...] = ()
    """Paths that this rank can offer, in order of preference: name and the path's own words."""


@dataclass(frozen=True, slots=True)
class Border:
    """A rank through which its cluster talks to others, and the link that it uses."""

    rank: int
    link: str
    bandwidth: int


@dataclass(frozen=True)
class Cluster:
    """Ranks that one vendor library connects; `ranks` ascend, `borders` are in rank order."""

    index: int
    vendor: str
    ranks: tuple[int, ...]
    borders: tuple[Border, ...]
    label: str = ""
    fabric: int = 10**10
    """Bytes per second that one rank moves through the vendor library inside the cluster."""

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def bandwidth(self) -> int:
        """B_i: the sum of the border bandwidths, bytes per second in each direction."""
        return sum(border.bandwidth for border in self.borders)

    @property
    def name(self) -> str:
        return f"{self.vendor}/{self.label}" if self.label else self.vendor


@dataclass(frozen=True)
class Topology:
    """The job dissected into homogeneous clusters, in order of their lowest rank."""

    ranks: tuple[Rank, ...]
    clusters: tuple[Cluster, ...]
    _cluster_of: dict[int, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        for cluster in self.clusters:
            for rank in cluster.ranks:
                self._cluster_of[rank] = cluster.index

    @property
    def size(self) -> int:
        return len(self.ranks)

    def cluster_of(self, rank: int) -> Cluster:
        return self.clusters[self._cluster_of[rank]]

    @cached_property
    def digest(self) -> str:
        """A canonical hash of everything that a plan may depend on; equal on all ranks of a sound job."""
        text = json.dumps([asdict(cluster) for cluster in self.clusters], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def assemble(clusters: Iterable[tuple[str, Iterable[int], Iterable[int]]]) -> Topology:
    """A topology from (vendor, ranks, border bandwidths) a cluster; its first ranks are its borders.

    For tests, planning ahead and simulation: every cluster is one host of its own. Each cluster needs at least one
    border and at most one a rank; ranks must be 0 … n-1 in any distribution.
    """
    described = sorted(((vendor, tuple(sorted(r)), tuple(b)) for vendor, r, b in clusters), key=lambda c: c[1])
    ranks: dict[int, Rank] = {}
    built = []
    for index, (vendor, members, bandwidths) in enumerate(described):
        for rank in members:
            ranks[rank] = Rank(rank, host=f"host{index}", vendor=vendor, label=str(index))
        borders = tuple(
            Border(rank, f"host{index}/link{place}", bandwidth)
            for place, (rank, bandwidth) in enumerate(zip(members, bandwidths, strict=False))
        )
        built.append(Cluster(index, vendor, members, borders, label=str(index)))
    return Topology(tuple(ranks[rank] for rank in range(len(ranks))), tuple(built))
