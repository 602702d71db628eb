"""`simulate`: a plan timed on the model.

Resources serve one step at a time: the fabric of each cluster, what each cluster sends, and what it receives. A step
begins when the earlier stages of its chunk are done in the clusters it touches, and its resources are free.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ..plan.cost import DEFAULT, Cost
from ..plan.layouts import Borders, Everyone, Layout, Shares, Single
from ..plan.plan import Plan
from ..plan.steps import Action, Combine, Direct, Local, Transfer
from ..topo.model import Topology
from .account import direct_messages

Resource = tuple[str, int]
Demands = dict[Resource, tuple[float, float]]
"""Per resource (fabric, out or in, of one cluster): (fixed seconds, seconds for its bytes)."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One step on the clock, in seconds."""

    step: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The predicted run of a plan."""

    seconds: float
    steps: tuple[Timed, ...]


def simulate(plan: Plan, topology: Topology, cost: Cost = DEFAULT) -> Timeline:
    """Time a plan. Cluster-level: the number of ranks does not matter to how long this takes."""
    clock = _Clock()
    timed = []
    for number, step in enumerate(plan.steps):
        begin, end = clock.run(step.chunk, step.stage, _demands(step.action, plan, topology, cost), 1)
        timed.append(Timed(number, begin, end))
    return Timeline(clock.now, tuple(timed))


class Forecast:
    """What a plan of one chunk would take in any number of chunks, without building those plans.

    All chunks are taken to be alike, which they are but for one element in each cut.
    """

    def __init__(self, single: Plan, topology: Topology, cost: Cost = DEFAULT) -> None:
        depth = max((step.stage for step in single.steps), default=-1) + 1
        self._stages: list[list[Demands]] = [[] for _ in range(depth)]
        for step in single.steps:
            self._stages[step.stage].append(_demands(step.action, single, topology, cost))

    def stages(self) -> list[tuple[float, float]]:
        """Per stage, where no stage overlaps another, on its busiest resource: (fixed seconds, seconds for bytes)."""
        found = []
        for stage in self._stages:
            total: Demands = {}
            for demands in stage:
                for resource, (fixed, variable) in demands.items():
                    before = total.get(resource, (0.0, 0.0))
                    total[resource] = (before[0] + fixed, before[1] + variable)
            found.append(max(total.values(), key=lambda pair: pair[0] + pair[1], default=(0.0, 0.0)))
        return found

    def seconds(self, chunks: int) -> float:
        """The predicted run with this many chunks, in the order of `pipeline.wavefront`."""
        clock = _Clock()
        for wave in range(len(self._stages) + chunks - 1):
            for chunk in range(max(0, wave - len(self._stages) + 1), min(chunks, wave + 1)):
                for demands in self._stages[wave - chunk]:
                    clock.run(chunk, wave - chunk, demands, chunks)
        return clock.now


class _Clock:
    """When each resource is free, and when the stages of each chunk were done in each cluster."""

    def __init__(self) -> None:
        self.now = 0.0
        self._free: dict[Resource, float] = {}
        self._done: dict[tuple[int, int], tuple[int, float, float]] = {}
        """Per chunk and cluster: the latest stage, when those before it were done, and when its own steps are."""

    def run(self, chunk: int, stage: int, demands: Demands, divisor: int) -> tuple[float, float]:
        """Put one step on the clock, its bytes divided by `divisor`; stages of a chunk come in order."""
        begin = 0.0
        for resource in demands:
            latest, before, within = self._done.get((chunk, resource[1]), (stage, 0.0, 0.0))
            begin = max(begin, before if latest >= stage else within, self._free.get(resource, 0.0))
        finish = begin
        for resource, (fixed, variable) in demands.items():
            variable /= divisor
            # A message's fixed cost is latency: it delays the arrival, not the next message.
            self._free[resource] = begin + variable + (fixed if resource[0] == "fabric" else 0.0)
            finish = max(finish, begin + fixed + variable)
        for _, cluster in demands:
            latest, before, within = self._done.get((chunk, cluster), (stage, 0.0, 0.0))
            if latest < stage:
                latest, before = stage, within
            self._done[chunk, cluster] = (latest, before, max(within, finish))
        self.now = max(self.now, finish)
        return begin, finish


def _demands(action: Action, plan: Plan, topology: Topology, cost: Cost) -> Demands:
    size = action.region.length * plan.spec.itemsize
    match action:
        case Local():
            cluster = topology.clusters[action.cluster]
            moved = size * (cluster.size - 1) / cluster.size * (2 if action.kind == "all_reduce" else 1)
            fixed = cost.call if cluster.size > 1 else 0.0
            return {("fabric", cluster.index): (fixed, moved / cluster.fabric)}
        case Transfer():
            sources = _clusters(action.source_layout, topology)
            targets = _clusters(action.target_layout, topology)
            if sources == targets and len(sources) == 1:
                (index,) = sources
                return {("fabric", index): (cost.call, size / topology.clusters[index].fabric)}
            if len(sources) > 1:  # the direct all_to_all: each cluster's own part of the whole
                parts = [size * c.size * (topology.size - c.size) // topology.size**2 for c in topology.clusters]
            else:
                parts = [size] * len(topology.clusters)
            bandwidth = [cluster.bandwidth for cluster in topology.clusters]
            return {("out", i): (cost.message, parts[i] / bandwidth[i]) for i in sources} | {
                ("in", i): (cost.message, parts[i] / bandwidth[i]) for i in targets
            }
        case Direct():
            return _direct_demands(action, plan, topology, cost)
        case _:
            indices = _clusters(action.layout, topology)
            if len(indices) > 1:  # every rank combines or scales for itself
                each = len(action.sources) if isinstance(action, Combine) else 1
                return {("fabric", i): (cost.touch, each * size / cost.memory) for i in indices}
            (index,) = indices
            holders = len(topology.clusters[index].borders) if isinstance(action.layout, Borders) else 1
            passes = len(action.sources) if isinstance(action, Combine) else 1
            return {("fabric", index): (cost.touch, passes * size / holders / cost.memory)}


def _direct_demands(action: Direct, plan: Plan, topology: Topology, cost: Cost) -> Demands:
    """The busiest rank's messages as fixed cost; bytes over the borders and, inside a cluster, over its fabric."""
    messages: dict[int, int] = defaultdict(int)
    loads: dict[Resource, float] = defaultdict(float)
    for giver, taker, length in direct_messages(action, topology, plan.spec):
        one, other = topology.cluster_of(giver), topology.cluster_of(taker)
        size = length * plan.spec.itemsize
        messages[giver] += 1
        messages[taker] += 1
        if one is other:
            loads["fabric", one.index] += size / one.size / one.fabric
        else:
            loads["out", one.index] += size / one.bandwidth
            loads["in", other.index] += size / other.bandwidth
    fixed = cost.message + cost.post * max(messages.values(), default=0)
    return {resource: (fixed, variable) for resource, variable in loads.items()}


def _clusters(layout: Layout, topology: Topology) -> set[int]:
    match layout:
        case Single():
            return {topology.cluster_of(layout.rank).index}
        case Shares(cluster=None) | Everyone(cluster=None):
            return {cluster.index for cluster in topology.clusters}
        case Borders() | Everyone() | Shares():
            assert layout.cluster is not None
            return {layout.cluster}
