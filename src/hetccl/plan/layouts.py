"""Layouts: how a region is spread over ranks.

A layout is two words of data in a plan ("cut over cluster 2's borders"), whatever the number of ranks; what it means
for a rank is worked out here. All of them answer in positions of a region.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
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
    """Each rank of a cluster (or of its combining group) holds all; of the whole job where None."""

    cluster: int | None
    group: bool = False


Layout = Borders | Shares | Single | Everyone


def combining_group(cluster: Cluster) -> tuple[int, ...]:
    """The members of the border communicator: the borders; one more rank where there is only one border."""
    borders = tuple(border.rank for border in cluster.borders)
    if len(borders) == 1 and cluster.size > 1:
        return (*borders, next(rank for rank in cluster.ranks if rank not in borders))
    return borders


def layout_cluster(layout: Layout, topology: Topology) -> int | None:
    """The one cluster that a layout places data in; None where it is all of them."""
    return topology.cluster_of(layout.rank).index if isinstance(layout, Single) else layout.cluster


def balanced(cluster: Cluster) -> bool:
    """Whether all borders are alike, so that rotated slots load each link the same."""
    return len(cluster.borders) > 1 and len({border.bandwidth for border in cluster.borders}) == 1


class Groups:
    """The combining groups of one topology, each worked out once and only where it is asked for."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._found: dict[int, tuple[tuple[int, ...], dict[int, int], list[int]]] = {}

    def of(self, cluster: int) -> tuple[tuple[int, ...], dict[int, int], list[int]]:
        """The members, the place of each, and their weights; a helper that is no border weighs nothing."""
        if cluster not in self._found:
            inside = self.topology.clusters[cluster]
            members = combining_group(inside)
            weights = [border.bandwidth for border in inside.borders]
            places = {rank: place for place, rank in enumerate(members)}
            self._found[cluster] = members, places, weights + [0] * (len(members) - len(weights))
        return self._found[cluster]


class Placement:
    """A layout of one region, made concrete: who holds which positions."""

    def __init__(self, layout: Layout, region: Region, groups: Groups, spec: Spec) -> None:
        self.layout, self.region, self._groups, self._spec = layout, region, groups, spec
        self._topology = groups.topology

    @cached_property
    def _edges(self) -> list[int]:
        """The slots of a Borders layout; a helper that is no border gets an empty one."""
        assert isinstance(self.layout, Borders)
        return cuts(self.region.length, self._groups.of(self.layout.cluster)[2])

    @cached_property
    def _inside(self) -> Container[int]:
        """The members, for quick tests."""
        ranks = self.members()
        return range(len(ranks)) if len(ranks) == self._topology.size else frozenset(ranks)

    @property
    def _received(self) -> bool:
        """Whether a rank holds one block of each sender's input, and not one interval."""
        layout = self.layout
        return isinstance(layout, Shares) and self._spec.operation is Operation.ALL_TO_ALL and layout.side != INPUT

    def held(self, rank: int) -> list[tuple[int, int]]:
        """The ranges of positions that this rank holds, ascending and not empty."""
        layout, region = self.layout, self.region
        match layout:
            case Single():
                found = [(0, region.length)] if rank == layout.rank else []
            case Everyone():
                found = [(0, region.length)] if rank in self.members() else []
            case Borders():
                group, places, _ = self._groups.of(layout.cluster)
                if rank not in places:
                    return []
                slot = (places[rank] - layout.rotation) % len(group)
                found = [(self._edges[slot], self._edges[slot + 1])]
            case Shares():
                if layout.cluster is not None and self._topology.cluster_of(rank).index != layout.cluster:
                    return []
                intervals = (
                    self._spec.extent(layout.side, rank).intervals
                    if self._received
                    else (self._spec.share_bounds(rank),)
                )
                found = [(region.position(start), region.position(stop)) for start, stop in intervals]
        return [(start, stop) for start, stop in found if stop > start]

    def parts(self, members: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """The one range that each member holds, where a layout gives each at most one; (0, 0) where none."""
        return tuple(self.each_part(members))

    def each_part(self, members: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """`parts`, worked out one after the other."""
        layout = self.layout
        if isinstance(layout, Borders):
            edges, (group, places, _) = self._edges, self._groups.of(layout.cluster)
            for rank in members:
                if rank in places:
                    slot = (places[rank] - layout.rotation) % len(group)
                    yield edges[slot], edges[slot + 1]
                else:
                    yield 0, 0
        elif isinstance(layout, Shares) and not self._received:
            position, inside = self.region.position, self._inside
            for rank in members:
                start, stop = self._spec.share_bounds(rank)
                yield (position(start), position(stop)) if rank in inside else (0, 0)
        else:
            for rank in members:
                yield (self.held(rank) or [(0, 0)])[0]

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
        owner_of = self._spec.receiver if self._received else self._spec.share_owner
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
        if isinstance(layout, Borders) or (isinstance(layout, Everyone) and layout.group):
            return self._groups.of(layout.cluster)[0]
        return self._topology.clusters[layout.cluster].ranks


def coincide(first: Layout, second: Layout, region: Region, topology: Topology, spec: Spec) -> bool:
    """Whether two layouts, each with one range a rank, place a region alike, so that no data need move."""
    groups = Groups(topology)
    one, other = (Placement(layout, region, groups, spec) for layout in (first, second))
    ranks = tuple({*one.members(), *other.members()})
    return all(
        a == b or (a[0] == a[1] and b[0] == b[1])
        for a, b in zip(one.each_part(ranks), other.each_part(ranks), strict=True)
    )


def shared(mine: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The positions that two ascending lists of ranges have in common."""
    return [(max(a, c), min(b, d)) for a, b in mine for c, d in other if max(a, c) < min(b, d)]
