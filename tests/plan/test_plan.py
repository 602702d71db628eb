"""Plans as data: JSON, hash, determinism, speed of a large one; regions, cuts and the chunk count."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import specs, topologies

from hetccl.errors import ConfigurationError
from hetccl.explanation import describe
from hetccl.plan.lower import lower
from hetccl.plan.partition import cuts
from hetccl.plan.plan import Plan
from hetccl.plan.planner import Planner
from hetccl.plan.region import Region, interval
from hetccl.plan.spec import Operation, Spec
from hetccl.reduction import Reduction
from hetccl.topo.model import assemble


@settings(max_examples=200)
@given(st.data())
def test_json_round_trip_and_determinism(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    spec = data.draw(specs(topology.size))
    plan = Planner(topology).plan(spec)
    again = Planner(topology).plan(spec)
    assert Plan.from_json(plan.to_json()) == plan == again
    assert plan.digest == again.digest == Plan.from_json(plan.to_json()).digest
    assert str(describe(plan, topology))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"spec": {}}', '{"spec": {"operation": "dance"}}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a plan"):
        Plan.from_json(text)


def test_the_digest_depends_on_everything() -> None:
    topology = assemble([("a", [0, 1], [1, 1]), ("b", [2], [2])])
    other = assemble([("a", [0, 1], [1, 2]), ("b", [2], [2])])
    spec = Spec(Operation.ALL_REDUCE, 3, (100,), "float32", 4, Reduction.SUM)
    plans = [
        Planner(topology).plan(spec),
        Planner(other).plan(spec),
        Planner(topology, "fill").plan(spec),
        Planner(topology, chunks=2).plan(spec),
        Planner(topology).plan(Spec(Operation.ALL_REDUCE, 3, (101,), "float32", 4, Reduction.SUM)),
        Planner(topology).plan(Spec(Operation.ALL_REDUCE, 3, (100,), "float32", 4, Reduction.MAX)),
    ]
    assert len({plan.digest for plan in plans}) == len(plans)


def test_plans_are_cached() -> None:
    planner = Planner(assemble([("a", [0], [1]), ("b", [1], [1])]))
    spec = Spec(Operation.ALL_GATHER, 2, (5,))
    assert planner.plan(spec) is planner.plan(Spec(Operation.ALL_GATHER, 2, (5,)))


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_thousand_ranks(interleaved: bool) -> None:
    """Not a benchmark: only guards against a return of the quadratic. See benchmarks/planning.py for times."""
    members = [range(i, 1024, 4) if interleaved else range(256 * i, 256 * i + 256) for i in range(4)]
    topology = assemble([("v", ranks, [10**10] * 32) for ranks in members])
    began = time.perf_counter()
    for operation in (Operation.ALL_REDUCE, Operation.BROADCAST, Operation.ALL_GATHER):
        plan = Planner(topology).plan(Spec(operation, 1024, (1 << 20,), "float32", 4, Reduction.SUM))
        lower(plan, topology, 5)
    assert time.perf_counter() - began < 20


def test_cuts_are_exact_and_proportional() -> None:
    assert cuts(10, [1, 1, 1]) == [0, 3, 6, 10]
    assert cuts(7, [0, 5, 0]) == [0, 0, 7, 7]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), max_size=8))
def test_regions_behave_like_sets(pairs: list[tuple[int, int]]) -> None:
    region = Region.of((start, start + length) for start, length in pairs)
    members = sorted({x for start, length in pairs for x in range(start, start + length)})
    assert region.length == len(members)
    assert [x for a, b in region.intervals for x in range(a, b)] == members
    half = region.slice(region.length // 3, region.length)
    assert [x for a, b in half.intervals for x in range(a, b)] == members[region.length // 3 :]
    assert all(region.position(x) == place for place, x in enumerate(members))
    spans = region.spans(half)
    assert sum(length for _, length in spans) == half.length
    assert interval(3, 3) == Region(())
