"""Random topologies and collectives for hypothesis."""

from __future__ import annotations

import itertools

from hypothesis import strategies as st

from hetccl.plan.spec import Operation, Spec
from hetccl.reduction import Reduction
from hetccl.topo.model import Topology, assemble

REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)
SHARED = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.GATHER, Operation.SCATTER)


@st.composite
def topologies(draw: st.DrawFn, most_clusters: int = 6, equal_links: bool = False) -> Topology:
    """Ranks interleaved at random over clusters of any size, borders of any number and speed."""
    count = draw(st.integers(1, most_clusters))
    size = draw(st.integers(count, 10))
    order = draw(st.permutations(range(size)))
    edges = [0, *sorted(draw(st.permutations(range(1, size)))[: count - 1]), size]
    clusters = []
    for first, last in itertools.pairwise(edges):
        borders = draw(st.integers(1, last - first))
        speed = draw(st.integers(1, 20)) * 1000
        speeds = [speed] * borders if equal_links else draw(
            st.lists(st.sampled_from([1000, 1000, 2000, 3000, 12500]), min_size=borders, max_size=borders)
        )  # fmt: skip
        clusters.append(("vendor", order[first:last], speeds))
    return assemble(clusters)


@st.composite
def specs(draw: st.DrawFn, ranks: int, operations: tuple[Operation, ...] = tuple(Operation)) -> Spec:
    """Any collective with sizes from nothing to a few thousand elements, equal or not."""
    operation = draw(st.sampled_from(operations))
    size = st.sampled_from([0, 1, 2, 5, 64, 999, 4096])
    sizes: tuple[int, ...] = (draw(size),)
    if operation in SHARED and draw(st.booleans()):
        sizes = tuple(draw(st.lists(size, min_size=ranks, max_size=ranks)))
    if operation is Operation.ALL_TO_ALL and draw(st.booleans()):
        small = st.sampled_from([0, 1, 3, 20])
        sizes = tuple(draw(st.lists(small, min_size=ranks * ranks, max_size=ranks * ranks)))
    reduction = draw(st.sampled_from(list(Reduction))) if operation in REDUCING else None
    root, peer = draw(st.integers(0, ranks - 1)), draw(st.integers(0, ranks - 1))
    return Spec(operation, ranks, sizes, "int64", 8, reduction, root, peer)
