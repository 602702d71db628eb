"""The planner: a spec and a topology in, a plan out; cached, and the same on every rank."""

from __future__ import annotations

from functools import lru_cache

from ..algorithms import all_gather, all_reduce, all_to_all, combining, direct, pairwise, reduce_scatter, rooted
from ..algorithms.shares import share_chunks
from ..readers.simulate import Forecast, simulate
from ..topo.model import Topology
from .partition import chunked
from .pipeline import best_chunks, wavefront
from .plan import Plan
from .region import Region, interval
from .spec import Operation, Spec
from .steps import Action

SMALLEST_CHUNK = 256 * 1024
"""Bytes: below this a chunk's fixed costs outweigh what overlap can win."""
MOST_CHUNKS = 64
MOST_DIRECT = 1 << 20
"""Bytes: above this the planner does not ask what a latency plan would cost."""

_WHOLE = {
    Operation.ALL_REDUCE: all_reduce.stages,
    Operation.BROADCAST: rooted.broadcast,
    Operation.REDUCE: rooted.reduce,
}
_SHARED = {
    Operation.ALL_GATHER: all_gather.stages,
    Operation.REDUCE_SCATTER: reduce_scatter.stages,
    Operation.GATHER: rooted.gather,
    Operation.SCATTER: rooted.scatter,
}


class Planner:
    """Plans for one topology and one configuration."""

    def __init__(self, topology: Topology, combine: str = "auto", chunks: int = 0, algorithm: str = "auto") -> None:
        """`combine` is auto, border, fill or add; `chunks` 0 takes the number from the cost model.

        `algorithm` is bandwidth (the fewest bytes), latency (the fewest steps), or auto: the shorter predicted time.
        """
        self.topology, self.mode, self.chunks, self.algorithm = topology, combine, chunks, algorithm
        self.plan = lru_cache(maxsize=1024)(self._plan)
        self._direct = (
            algorithm != "bandwidth"
            and not chunks
            and len(topology.clusters) > 1
            and topology.size <= direct.MOST_RANKS
            and all(rank.device == "cpu" for rank in topology.ranks)
        )

    def _plan(self, spec: Spec) -> Plan:
        """The plan that predicts the shortest time."""
        if not self._direct or (self.algorithm == "auto" and spec.nbytes > MOST_DIRECT):
            return self._fewest_bytes(spec)
        latency = Plan(spec, self.topology.digest, "direct", (), 1, wavefront([direct.stages(spec)]))
        if self.algorithm == "latency":
            return latency
        bandwidth = self._fewest_bytes(spec)
        one, other = (simulate(plan, self.topology).seconds for plan in (latency, bandwidth))
        return latency if one < other else bandwidth

    def _fewest_bytes(self, spec: Spec) -> Plan:
        """The plan that meets the bound, in the best number of chunks."""
        if self.chunks:
            return self.build(spec, self.chunks)
        single = self.build(spec, 1)
        most = min(MOST_CHUNKS, spec.nbytes // SMALLEST_CHUNK)
        if len(self.topology.clusters) == 1 or most < 2 or spec.operation is Operation.ALL_TO_ALL:
            return single
        forecast = Forecast(single, self.topology)
        stages = forecast.stages()
        seed = best_chunks([fixed for fixed, _ in stages], [variable for _, variable in stages])
        candidates = {1} | {min(most, max(1, round(seed * factor))) for factor in (0.25, 0.5, 1.0, 2.0)}
        best = min(candidates, key=lambda count: (forecast.seconds(count), count))
        return single if best == 1 else self.build(spec, best)

    def build(self, spec: Spec, chunks: int) -> Plan:
        """A plan with this many chunks."""
        topology = self.topology
        modes = tuple(combining.resolve(self.mode, cluster) for cluster in topology.clusters)
        parts: list[list[list[Action]]]
        algorithm = "hierarchical"
        match spec.operation:
            case Operation.BARRIER:
                parts = [pairwise.barrier(topology)]
            case Operation.SEND:
                parts = [pairwise.send(spec, topology, interval(0, spec.length))]
                algorithm = "direct"
            case Operation.ALL_TO_ALL:
                parts = [all_to_all.stages(spec, topology)]
                algorithm = "direct" if all_to_all.is_direct(spec, topology) else "rebalanced"
            case operation if operation in _WHOLE:
                parts = [_WHOLE[operation](spec, topology, modes, part) for part in _whole_chunks(spec, chunks)]
            case operation:
                parts = [
                    _SHARED[operation](spec, topology, modes, part) for part in share_chunks(spec, topology, chunks)
                ]
        combined = spec.reduces and len(topology.clusters) > 1
        return Plan(spec, topology.digest, algorithm, modes if combined else (), len(parts), wavefront(parts))


def _whole_chunks(spec: Spec, count: int) -> list[Region]:
    edges = chunked(spec.length, count)
    return [interval(edges[place], edges[place + 1]) for place in range(count)]
