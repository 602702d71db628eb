"""A plan explained: steps in words, bytes per cluster and border link, bounds, and the predicted time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from .plan.bounds import cross_bytes, lower_bound
from .plan.layouts import Borders, Everyone, Layout, Shares, Single
from .plan.plan import Plan
from .plan.steps import Action, Combine, Copy, Direct, Fill, Local, Scale, Transfer
from .readers.account import account
from .readers.simulate import simulate
from .topo.model import Topology

MOST_RANKS = 256
"""Links are counted message by message up to this many ranks; above, only the bounds and the prediction are given."""


@dataclass(frozen=True, slots=True)
class Link:
    """Bytes over one border link."""

    rank: int
    name: str
    cluster: int
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a plan does. Sizes in bytes, times in seconds."""

    operation: str
    nbytes: int
    algorithm: str
    combine: tuple[str, ...]
    chunks: int
    digest: str
    steps: tuple[str, ...]
    egress: tuple[int, ...]
    ingress: tuple[int, ...]
    links: tuple[Link, ...]
    crossing: int | None
    crossing_bound: int
    seconds_bound: float
    seconds_links: float | None
    seconds_predicted: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.operation} of {self.nbytes:,} bytes: {self.algorithm}, {self.chunks} chunk(s)"]
        if self.combine:
            lines[0] += ", combined by " + ", ".join(
                f"{mode} in cluster {place}" for place, mode in enumerate(self.combine)
            )
        lines += [f"  {step}" for step in self.steps]
        for place, (out, into) in enumerate(zip(self.egress, self.ingress, strict=True)):
            lines.append(f"  cluster {place}: {out:,} bytes out, {into:,} bytes in")
        for link in self.links:
            lines.append(f"    rank {link.rank} by {link.name}: {link.sent:,} out, {link.received:,} in")
        crossed = "not counted" if self.crossing is None else f"{self.crossing:,}"
        lines.append(f"  bytes across borders: {crossed}; lower bound {self.crossing_bound:,}")
        busiest = "" if self.seconds_links is None else f"busiest link {self.seconds_links * 1e3:.3f} ms, "
        lines.append(
            f"  time: {busiest}lower bound {self.seconds_bound * 1e3:.3f} ms,"
            f" predicted {self.seconds_predicted * 1e3:.3f} ms"
        )
        return "\n".join(lines)


def describe(plan: Plan, topology: Topology) -> Explanation:
    """Explain a plan for the topology that it was made for."""
    counted = account(plan, topology) if topology.size <= MOST_RANKS else None
    clusters = range(len(topology.clusters))
    links = (
        [
            Link(b.rank, b.link, c.index, counted.sent.get(b.rank, 0), counted.received.get(b.rank, 0))
            for c in topology.clusters
            for b in c.borders
        ]
        if counted and len(topology.clusters) > 1
        else []
    )
    return Explanation(
        operation=plan.spec.operation.value,
        nbytes=plan.spec.nbytes,
        algorithm=plan.algorithm,
        combine=plan.combine,
        chunks=plan.chunks,
        digest=plan.digest,
        steps=tuple(_in_words(plan)),
        egress=tuple(counted.egress(c) for c in clusters) if counted else (),
        ingress=tuple(counted.ingress(c) for c in clusters) if counted else (),
        links=tuple(links),
        crossing=counted.total if counted else None,
        crossing_bound=cross_bytes(plan.spec, topology),
        seconds_bound=float(lower_bound(plan.spec, topology)),
        seconds_links=float(counted.seconds(topology)) if counted else None,
        seconds_predicted=simulate(plan, topology).seconds,
    )


def _in_words(plan: Plan) -> list[str]:
    """One line per stage and kind of step; the chunks added up."""
    folded: dict[tuple[int, str], int] = defaultdict(int)
    for step in plan.steps:
        folded[step.stage, _sentence(step.action)] += step.action.region.length * plan.spec.itemsize
    return [f"stage {stage + 1}: {sentence}, {size:,} bytes" for (stage, sentence), size in sorted(folded.items())]


def _sentence(action: Action) -> str:
    match action:
        case Local():
            where = f"border ranks of cluster {action.cluster}" if action.group else f"cluster {action.cluster}"
            return f"{where}: vendor {action.kind}" + (
                "" if isinstance(action.layout, Everyone) else f" ({_place(action.layout)})"
            )
        case Transfer():
            return f"{_place(action.source_layout)} -> {_place(action.target_layout)}"
        case Direct():
            return f"{_place(action.source_layout)} -> {_place(action.target_layout)}, each straight to each"
        case Combine():
            return f"{_place(action.layout)}: combine {len(action.sources)} partial results"
        case Fill():
            return f"{_place(action.layout)}: fill with the identity"
        case Scale():
            return f"{_place(action.layout)}: divide by the number of ranks"
        case Copy():
            return f"{_place(action.layout)}: copy {action.source} to {action.target}"


def _place(layout: Layout) -> str:
    match layout:
        case Borders():
            turned = f", turned by {layout.rotation}" if layout.rotation else ""
            return f"borders of cluster {layout.cluster}{turned}"
        case Shares(cluster=None):
            return f"every rank's {layout.side}"
        case Shares():
            return f"ranks of cluster {layout.cluster}"
        case Single():
            return f"rank {layout.rank}"
        case Everyone(cluster=None):
            return "every rank"
        case Everyone():
            return f"{'border ranks' if layout.group else 'all'} of cluster {layout.cluster}"
