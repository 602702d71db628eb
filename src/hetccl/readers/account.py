"""`account`: a plan's bytes counted message by message, to prove that it is optimal.

`tally` finds the same from the steps alone, for a job of any size; tests hold the two against each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ..plan.layouts import Groups, Placement, layout_cluster, shared
from ..plan.lower import lower
from ..plan.plan import Plan
from ..plan.program import Receive, Send
from ..plan.spec import Spec
from ..plan.steps import Direct, Transfer
from ..topo.model import Topology


@dataclass(frozen=True, slots=True)
class Account:
    """Bytes between clusters. `sent` and `received` are per rank; `pairs` per (from, to) cluster."""

    sent: dict[int, int]
    received: dict[int, int]
    pairs: dict[tuple[int, int], int]

    @property
    def total(self) -> int:
        """All bytes that cross a border."""
        return sum(self.pairs.values())

    def egress(self, cluster: int) -> int:
        return sum(size for (source, _), size in self.pairs.items() if source == cluster)

    def ingress(self, cluster: int) -> int:
        return sum(size for (_, target), size in self.pairs.items() if target == cluster)

    def seconds(self, topology: Topology) -> Fraction:
        """The bandwidth term: the busiest border link's bytes over its bandwidth."""
        return max(
            (
                Fraction(max(self.sent.get(b.rank, 0), self.received.get(b.rank, 0)), b.bandwidth)
                for cluster in topology.clusters
                for b in cluster.borders
            ),
            default=Fraction(0),
        )


def account(plan: Plan, topology: Topology) -> Account:
    """Count what every rank's program sends and receives. Raises RuntimeError where the two sides differ."""
    sent: dict[int, int] = defaultdict(int)
    received: dict[int, int] = defaultdict(int)
    pairs: dict[tuple[int, int], int] = defaultdict(int)
    open_messages: dict[tuple[int, int, int], int] = defaultdict(int)
    for rank in range(topology.size):
        home = topology.cluster_of(rank).index
        for operation in lower(plan, topology, rank).operations:
            if not isinstance(operation, (Send, Receive)):
                continue
            size = operation.piece.length * plan.spec.itemsize
            away = topology.cluster_of(operation.peer).index
            if isinstance(operation, Send):
                open_messages[rank, operation.peer, operation.step] += size
            else:
                open_messages[operation.peer, rank, operation.step] -= size
            if away == home:
                continue  # a latency plan's messages inside a cluster cross no border
            if isinstance(operation, Send):
                sent[rank] += size
                pairs[home, away] += size
            else:
                received[rank] += size
    if any(open_messages.values()):
        raise RuntimeError("a message's two ends differ in size")
    return Account(dict(sent), dict(received), dict(pairs))


def tally(plan: Plan, topology: Topology) -> Account:
    """The bytes that `account` counts, from what each layout places where; no rank's program is lowered.

    Milliseconds for a thousand ranks.
    """
    sent: dict[int, int] = defaultdict(int)
    received: dict[int, int] = defaultdict(int)
    pairs: dict[tuple[int, int], int] = defaultdict(int)
    groups, spec = Groups(topology), plan.spec
    for action in (step.action for step in plan.steps if isinstance(step.action, (Transfer, Direct))):
        if isinstance(action, Direct):
            for giver, taker, length in direct_messages(action, topology, spec):
                one, other = topology.cluster_of(giver).index, topology.cluster_of(taker).index
                if one != other:
                    sent[giver] += length * spec.itemsize
                    received[taker] += length * spec.itemsize
                    pairs[one, other] += length * spec.itemsize
            continue
        source, target = (layout_cluster(at, topology) for at in (action.source_layout, action.target_layout))
        if source is None or target is None:
            _everyone_to_everyone(plan, topology, sent, received, pairs)
        elif source != target and action.region:
            pairs[source, target] += action.region.length * spec.itemsize
            for layout, side in ((action.source_layout, sent), (action.target_layout, received)):
                placed = Placement(layout, action.region, groups, spec)
                members = placed.members()
                for rank, (start, stop) in zip(members, placed.each_part(members), strict=True):
                    if stop > start:
                        side[rank] += (stop - start) * spec.itemsize
    return Account(dict(sent), dict(received), dict(pairs))


def direct_messages(action: Direct, topology: Topology, spec: Spec) -> Iterator[tuple[int, int, int]]:
    """(giver, taker, elements) of each message of a `Direct`."""
    groups = Groups(topology)
    gives, takes = (
        {rank: held for rank in placed.members() if (held := placed.held(rank))}
        for placed in (
            Placement(layout, action.region, groups, spec) for layout in (action.source_layout, action.target_layout)
        )
    )
    for giver, mine in gives.items():
        for taker, wanted in takes.items():
            length = sum(stop - start for start, stop in shared(mine, wanted))
            if giver != taker and length:
                yield giver, taker, length


def _everyone_to_everyone(
    plan: Plan,
    topology: Topology,
    sent: dict[int, int],
    received: dict[int, int],
    pairs: dict[tuple[int, int], int],
) -> None:
    """The direct all_to_all, one step for the whole job, whose blocks are equal unless there is one cluster."""
    if len(topology.clusters) == 1 or not plan.spec.length:
        return
    block = plan.spec.sizes[0] * plan.spec.itemsize
    for one in topology.clusters:
        for rank in one.ranks:
            sent[rank] = received[rank] = block * (topology.size - one.size)
        for other in topology.clusters:
            if one is not other:
                pairs[one.index, other.index] = block * one.size * other.size
