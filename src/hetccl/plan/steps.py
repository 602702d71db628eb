"""The steps of a plan: cluster-level primitives.

A step names clusters, layouts, regions and buffers, never single messages: a plan for a thousand ranks is as short as
one for four. Buffers are `input`, `output` and any number of named scratch buffers, all addressed by coordinates; a
rank keeps only the parts that it touches. Steps of a plan have the meaning of running one after the other; what may
overlap follows from what they touch (see `hazards`).
"""

from __future__ import annotations

from dataclasses import dataclass

from .layouts import Layout
from .region import Region


@dataclass(frozen=True, slots=True)
class Local:
    """A vendor collective inside one cluster, or in its border communicator (`group`).

    kind is one of
    reduce_scatter   every member has all of `source`; the layout's holders get the reduction in `target`
    all_gather       the layout's holders have their parts of `target`; every member gets all of it
    all_reduce       every member's `target` becomes the reduction
    barrier          nobody leaves before all have come
    """

    kind: str
    cluster: int
    region: Region
    layout: Layout
    source: str
    target: str
    group: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """A redistribution: point to point along the common refinement of two layouts.

    Between clusters it runs over a path; inside a cluster over the vendor library; on one rank it is a copy.
    """

    region: Region
    source_layout: Layout
    target_layout: Layout
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Direct:
    """From every holder straight to every holder, over the paths alone, inside clusters too: for small messages.

    With `apart` what rank r gave lies in buffer `{target}{r}`, so that partial results can be combined; its own is
    not copied there but read where it is.
    """

    region: Region
    source_layout: Layout
    target_layout: Layout
    source: str
    target: str
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Combine:
    """The layout's holders reduce several buffers into one, in the order given."""

    region: Region
    layout: Layout
    sources: tuple[str, ...]
    target: str


@dataclass(frozen=True, slots=True)
class Fill:
    """Write the reduction's identity."""

    region: Region
    layout: Layout
    target: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Divide by the number of ranks (AVG)."""

    region: Region
    layout: Layout
    target: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy from one buffer to another on the same rank."""

    region: Region
    layout: Layout
    source: str
    target: str


Action = Local | Transfer | Direct | Combine | Fill | Scale | Copy


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and its place in the pipeline: which chunk, and which stage of that chunk."""

    action: Action
    chunk: int
    stage: int
