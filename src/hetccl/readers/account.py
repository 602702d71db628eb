"""`account`: a plan's bytes counted message by message, to prove that it is optimal."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

from ..plan.lower import lower
from ..plan.plan import Plan
from ..plan.program import Receive, Send
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
            if isinstance(operation, Send):
                size = operation.piece.length * plan.spec.itemsize
                sent[rank] += size
                pairs[home, topology.cluster_of(operation.peer).index] += size
                open_messages[rank, operation.peer, operation.step] += size
            elif isinstance(operation, Receive):
                size = operation.piece.length * plan.spec.itemsize
                received[rank] += size
                open_messages[operation.peer, rank, operation.step] -= size
    if any(open_messages.values()):
        raise RuntimeError("a message's two ends differ in size")
    return Account(dict(sent), dict(received), dict(pairs))
