"""Lowering: one rank's program out of a plan. The only place where layouts become messages and spans."""

from __future__ import annotations

from collections.abc import Callable

from ..topo.model import Topology
from .hazards import dependencies
from .layouts import Groups, Layout, Placement, shared
from .plan import Plan
from .program import Call, Move, Op, Piece, Program, Receive, Reduce, Send, Set
from .region import Region
from .spec import INPUT, OUTPUT
from .steps import Combine, Copy, Direct, Fill, Local, Scale, Transfer

_Draft = Callable[[], Op]
_Place = Callable[[], Piece]


def lower(plan: Plan, topology: Topology, rank: int) -> Program:
    """This rank's program. `topology` must be the one the plan was made for."""
    return _Lowering(plan, topology, rank).program()


class _Lowering:
    """Two passes: the first notes what is touched in each scratch buffer, the second knows the packed offsets."""

    def __init__(self, plan: Plan, topology: Topology, rank: int) -> None:
        self.plan, self.topology, self.rank = plan, topology, rank
        self.cluster = topology.cluster_of(rank)
        self.place = {member: place for place, member in enumerate(self.cluster.ranks)}
        self.groups = Groups(topology)
        self.drafts: list[_Draft] = []
        self.touches: dict[str, list[tuple[int, int]]] = {}
        self.extents = {side: plan.spec.extent(side, rank) for side in (INPUT, OUTPUT)}
        self.aliases: dict[str, str] = {}
        """This rank's own part of a `Direct` that keeps partial results apart: the buffer that it lies in."""

    def program(self) -> Program:
        for number, step in enumerate(self.plan.steps):
            action = step.action
            match action:
                case Local():
                    self._local(number, action)
                case Transfer():
                    self._transfer(number, action)
                case Direct():
                    self._direct(number, action)
                case _:
                    self._alone(number, action)
        scratch = {name: Region.of(touches) for name, touches in self.touches.items()}
        self.extents |= scratch
        operations = tuple(draft() for draft in self.drafts)
        return Program(
            self.rank,
            operations,
            dependencies(operations),
            {name: region.length for name, region in scratch.items()},
            self.extents,
        )

    def _place(self, buffer: str, region: Region) -> _Place:
        """A piece whose offsets are filled in when all of the buffer's uses are known."""
        buffer = self.aliases.get(buffer, buffer)
        if buffer not in (INPUT, OUTPUT):
            self.touches.setdefault(buffer, []).extend(region.intervals)
        return lambda: Piece(buffer, self.extents[buffer].spans(region))

    def _placement(self, layout: Layout, region: Region) -> Placement:
        return Placement(layout, region, self.groups, self.plan.spec)

    def _local(self, number: int, action: Local) -> None:
        cluster = self.topology.clusters[action.cluster]
        members = self.groups.of(action.cluster)[0] if action.group else cluster.ranks
        if self.rank not in members:
            return
        place = members.index(self.rank)
        if action.kind == "barrier":
            if len(members) > 1:
                self.drafts.append(lambda: Call(number, "barrier", members, place))
        elif not action.region:
            return
        elif len(members) == 1:
            self._copy(number, action.region, action.source, action.target)
        elif action.kind == "all_reduce":
            target = self._place(action.target, action.region)
            self.drafts.append(lambda: Call(number, "all_reduce", members, place, (), (target(),)))
        else:
            self._spread(number, action, members, place)

    def _spread(self, number: int, action: Local, members: tuple[int, ...], place: int) -> None:
        """A reduce_scatter or all_gather; rooted where only one member holds anything."""
        region = action.region
        parts = self._placement(action.layout, region).parts(members)
        gathers = action.kind == "all_gather"
        start, stop = parts[place]
        root = next((at for at, (first, last) in enumerate(parts) if last - first == region.length), None)
        if root is not None:
            # Only the root's target is used in a reduce; elsewhere it is the source, so no scratch is spent.
            target = self._place(action.target if gathers or place == root else action.source, region)
            if gathers:
                self.drafts.append(lambda: Call(number, "broadcast", members, place, (), (target(),), root=root))
                return
            source = self._place(action.source, region)
            self.drafts.append(lambda: Call(number, "reduce", members, place, (source(),), (target(),), root=root))
            return
        whole = self._place(action.target if gathers else action.source, region)
        mine = self._place(action.target, region.slice(start, stop))
        source, target = (mine, whole) if gathers else (whole, mine)
        self.drafts.append(lambda: Call(number, action.kind, members, place, (source(),), (target(),), parts))

    def _transfer(self, number: int, action: Transfer) -> None:
        region = action.region
        if not region:
            return
        source = self._placement(action.source_layout, region)
        target = self._placement(action.target_layout, region)
        outgoing = self._messages(source, target, region)
        incoming = self._messages(target, source, region)
        local_out, local_in = [], []
        for peer, part in outgoing.items():
            if peer == self.rank:
                self._copy(number, part, action.source, action.target)
            elif peer in self.place:
                local_out.append((peer, self._place(action.source, part)))
            else:
                place = self._place(action.source, part)
                self.drafts.append(_message(Send, number, peer, place))
        for peer, part in incoming.items():
            if peer == self.rank:
                continue
            place = self._place(action.target, part)
            if peer in self.place:
                local_in.append((peer, place))
            else:
                self.drafts.append(_message(Receive, number, peer, place))
        if local_out or local_in:
            members = self.cluster.ranks
            places = (
                tuple(self.place[peer] for peer, _ in local_out),
                tuple(self.place[peer] for peer, _ in local_in),
            )
            self.drafts.append(
                lambda: Call(
                    number,
                    "exchange",
                    members,
                    self.place[self.rank],
                    tuple(place() for _, place in local_out),
                    tuple(place() for _, place in local_in),
                    places=places,
                )
            )

    def _direct(self, number: int, action: Direct) -> None:
        region, rank = action.region, self.rank
        if action.apart:
            self.aliases[f"{action.target}{rank}"] = action.source
        source = self._placement(action.source_layout, region)
        target = self._placement(action.target_layout, region)

        def common(giver: int, taker: int) -> Region:
            ranges = shared(source.held(giver), target.held(taker))
            return Region.of(part for start, stop in ranges for part in region.walk(start, stop))

        if not action.apart:
            self._copy(number, common(rank, rank), action.source, action.target)
        # Each rank begins with its neighbour, so that not all knock at one door at once.
        others = [(rank + step) % self.topology.size for step in range(1, self.topology.size)]
        for peer in others:
            if part := common(rank, peer):
                self.drafts.append(_message(Send, number, peer, self._place(action.source, part)))
        for peer in others:
            if part := common(peer, rank):
                into = f"{action.target}{peer}" if action.apart else action.target
                self.drafts.append(_message(Receive, number, peer, self._place(into, part)))

    def _messages(self, mine: Placement, other: Placement, region: Region) -> dict[int, Region]:
        """What this rank holds in one layout, cut by who holds it in the other; by peer, in rank order."""
        parts: dict[int, list[tuple[int, int]]] = {}
        for start, stop in mine.held(self.rank):
            for peer, a, b in other.split(start, stop):
                parts.setdefault(peer, []).extend(region.walk(a, b))
        return {peer: Region.of(parts[peer]) for peer in sorted(parts)}

    def _copy(self, number: int, region: Region, source: str, target: str) -> None:
        if source != target and region:
            origin, destination = self._place(source, region), self._place(target, region)
            self.drafts.append(lambda: Move(number, origin(), destination()))

    def _alone(self, number: int, action: Combine | Fill | Scale | Copy) -> None:
        for start, stop in self._placement(action.layout, action.region).held(self.rank):
            part = action.region.slice(start, stop)
            match action:
                case Combine():
                    sources = [self._place(name, part) for name in action.sources]
                    self.drafts.append(_reduce(number, sources, self._place(action.target, part)))
                case Copy():
                    self._copy(number, part, action.source, action.target)
                case Fill() | Scale():
                    kind = "fill" if isinstance(action, Fill) else "scale"
                    self.drafts.append(_set(number, kind, self._place(action.target, part)))


# Drafts made in a loop bind their own values here.


def _message(kind: type[Send] | type[Receive], step: int, peer: int, place: _Place) -> _Draft:
    return lambda: kind(step, peer, place())


def _reduce(step: int, sources: list[_Place], target: _Place) -> _Draft:
    return lambda: Reduce(step, tuple(source() for source in sources), target())


def _set(step: int, kind: str, target: _Place) -> _Draft:
    return lambda: Set(step, kind, target())
