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
from ..plan.steps import Combine, Local, Transfer
from ..topo.model import Topology


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
    stages: tuple[tuple[float, float], ...]
    """Per stage of one chunk, where no stage overlaps another: (fixed seconds, seconds for its bytes)."""


def simulate(plan: Plan, topology: Topology, cost: Cost = DEFAULT) -> Timeline:
    """Time a plan. Cluster-level: the number of ranks does not matter to how long this takes."""
    free: dict[tuple[str, int], float] = defaultdict(float)
    done: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    stages: dict[int, dict[tuple[str, int], tuple[float, float]]] = defaultdict(dict)
    timed = []
    for number, step in enumerate(plan.steps):
        demands = _demands(step.action, plan, topology, cost)
        clusters = {cluster for _, cluster in demands}
        ready = max(
            (end for c in clusters for stage, end in done[step.chunk, c] if stage < step.stage), default=0.0
        )
        finish = begin = max([ready, *(free[resource] for resource in demands)])
        for resource, (fixed, variable) in demands.items():
            # A message's fixed cost is latency: it delays the arrival, not the next message.
            busy = variable + (fixed if resource[0] == "fabric" else 0.0)
            free[resource] = begin + busy
            finish = max(finish, begin + fixed + variable)
            before = stages[step.stage].get(resource, (0.0, 0.0))
            stages[step.stage][resource] = (before[0] + fixed, before[1] + variable)
        for cluster in clusters:
            done[step.chunk, cluster].append((step.stage, finish))
        timed.append(Timed(number, begin, finish))
    per_stage = tuple(
        max(stages[stage].values(), key=lambda pair: pair[0] + pair[1], default=(0.0, 0.0))
        for stage in sorted(stages)
    )
    return Timeline(max((t.end for t in timed), default=0.0), tuple(timed), per_stage)


def _demands(action: object, plan: Plan, topology: Topology, cost: Cost) -> dict[tuple[str, int], tuple[float, float]]:
    """Per resource: (fixed, variable) seconds."""
    size = getattr(action, "region").length * plan.spec.itemsize  # noqa: B009
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
        case _:
            layout: Layout = getattr(action, "layout")  # noqa: B009
            (index,) = _clusters(layout, topology)
            holders = len(topology.clusters[index].borders) if isinstance(layout, Borders) else 1
            passes = len(action.sources) if isinstance(action, Combine) else 1
            return {("fabric", index): (cost.touch, passes * size / holders / cost.memory)}


def _clusters(layout: Layout, topology: Topology) -> set[int]:
    match layout:
        case Single():
            return {topology.cluster_of(layout.rank).index}
        case Shares(cluster=None):
            return {cluster.index for cluster in topology.clusters}
        case Borders() | Everyone() | Shares():
            assert layout.cluster is not None
            return {layout.cluster}
