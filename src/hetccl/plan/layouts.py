"""Layouts: how a region is spread over ranks.

A layout is two words of data in a plan ("cut over cluster 2's borders"), whatever the number of ranks; what it means
for a rank is worked out here. All of them answer in positions of a region.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..topo.model import Cluster, Topology
from .partition import cuts
from .region import Region
from .spec import INPUT, Operation, Spec


@dataclass(frozen=True, slots=True)
class Borders:
    """Cut over a cluster's combining group in proportion to the borders' bandwidth.

    With rotation t, slot j is held by member (j + t) mod h: the Latin square of the border combine.
    """

    cluster: int
    rotation: int = 0


@dataclass(frozen=True, slots=True)
class Shares:
    """Every rank holds what its own input or output tensor holds; of one cluster, or of all where None."""

    side: str
    cluster: int | None = None


@dataclass(frozen=True, slots=True)
class Single:
    """One rank holds all."""

    rank: int


@dataclass(frozen=True, slots=True)
class Everyone:
    """Each rank of a cluster (or of its combining group) holds all."""

    cluster: int
    group: bool = False


Layout = Borders | Shares | Single | Everyone


def combining_group(cluster: Cluster) -> tuple[int, ...]:
    """The members of the border communicator: the borders; one more rank where there is only one border."""
    borders = tuple(border.rank for border in cluster.borders)
    if len(borders) == 1 and cluster.size > 1:
        return (*borders, next(rank for rank in cluster.ranks if rank not in borders))
    return borders


def balanced(cluster: Cluster) -> bool:
    """Whether all borders are alike, so that rotated slots load each link the same."""
    return len(cluster.borders) > 1 and len({border.bandwidth for border in cluster.borders}) == 1


class Placement:
    """A layout of one region, made concrete: who holds which positions."""

    def __init__(self, layout: Layout, region: Region, topology: Topology, spec: Spec) -> None:
        self.layout, self.region, self._topology, self._spec = layout, region, topology, spec

    @cached_property
    def _edges(self) -> list[int]:
        """The slots of a Borders layout; a helper that is no border gets an empty one."""
        assert isinstance(self.layout, Borders)
        weights = [border.bandwidth for border in self._topology.clusters[self.layout.cluster].borders]
        return cuts(self.region.length, weights + [0] * (len(self.members()) - len(weights)))

    def held(self, rank: int) -> list[tuple[int, int]]:
        """The ranges of positions that this rank holds, ascending and not empty."""
        layout, region = self.layout, self.region
        match layout:
            case Single():
                found = [(0, region.length)] if rank == layout.rank else []
            case Everyone():
                found = [(0, region.length)] if rank in self.members() else []
            case Borders():
                group = self.members()
                if rank not in group:
                    return []
                slot = (group.index(rank) - layout.rotation) % len(group)
                found = [(self._edges[slot], self._edges[slot + 1])]
            case Shares():
                if layout.cluster is not None and self._topology.cluster_of(rank).index != layout.cluster:
                    return []
                received = self._spec.operation is Operation.ALL_TO_ALL and layout.side != INPUT
                intervals = (
                    self._spec.extent(layout.side, rank).intervals if received else (self._spec.share_bounds(rank),)
                )
                found = [(region.position(start), region.position(stop)) for start, stop in intervals]
        return [(start, stop) for start, stop in found if stop > start]

    def parts(self, members: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """The one range that each member holds, where a layout gives each at most one; (0, 0) where none."""
        if isinstance(self.layout, Borders):
            group, edges = self.members(), self._edges
            turned = {
                rank: (place - self.layout.rotation) % len(group) for place, rank in enumerate(group)
            }
            return tuple(
                (edges[turned[rank]], edges[turned[rank] + 1]) if rank in turned else (0, 0) for rank in members
            )
        return tuple((self.held(rank) or [(0, 0)])[0] for rank in members)

    def split(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Cut a range of positions by holder: (rank, start, stop), ascending."""
        layout = self.layout
        match layout:
            case Single():
                yield layout.rank, start, stop
            case Borders():
                group = self.members()
                while start < stop:
                    slot = bisect_right(self._edges, start) - 1
                    until = min(stop, self._edges[slot + 1])
                    yield group[(slot + layout.rotation) % len(group)], start, until
                    start = until
            case Shares():
                yield from self._split_shares(layout, start, stop)
            case Everyone():
                raise AssertionError("a transfer needs one holder an element")

    def _split_shares(self, layout: Shares, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        received = self._spec.operation is Operation.ALL_TO_ALL and layout.side != INPUT
        owner_of = self._spec.receiver if received else self._spec.share_owner
        position = start
        for begin, end in self.region.walk(start, stop):
            while begin < end:
                owner, edge = owner_of(begin)
                until = min(edge, end)
                yield owner, position, position + until - begin
                position += until - begin
                begin = until

    def members(self) -> tuple[int, ...]:
        """The ranks that may hold something."""
        layout = self.layout
        if isinstance(layout, Single):
            return (layout.rank,)
        if layout.cluster is None:
            return tuple(range(self._topology.size))
        cluster = self._topology.clusters[layout.cluster]
        if isinstance(layout, Borders) or (isinstance(layout, Everyone) and layout.group):
            return combining_group(cluster)
        return cluster.ranks


def coincide(first: Layout, second: Layout, region: Region, topology: Topology, spec: Spec) -> bool:
    """Whether two layouts, each with one range a rank, place a region alike, so that no data need move."""
    one, other = (Placement(layout, region, topology, spec) for layout in (first, second))
    ranks = tuple({*one.members(), *other.members()})
    return all(
        a == b or (a[0] == a[1] and b[0] == b[1])
        for a, b in zip(one.parts(ranks), other.parts(ranks), strict=True)
    )
