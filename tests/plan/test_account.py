"""Bytes counted message by message against the closed-form bounds."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import SHARED, specs, topologies

from hetccl.plan.bounds import cross_bytes, lower_bound, owner_weights, relays
from hetccl.plan.layouts import Borders, layout_cluster
from hetccl.plan.pipeline import wavefront
from hetccl.plan.plan import Plan
from hetccl.plan.planner import Planner
from hetccl.plan.region import interval
from hetccl.plan.spec import OUTPUT, Operation, Spec
from hetccl.plan.steps import Action, Transfer
from hetccl.readers.account import account, tally
from hetccl.readers.simulate import simulate
from hetccl.reduction import Reduction
from hetccl.topo.model import Topology, assemble

PROVED = tuple(operation for operation in Operation if operation not in (Operation.SEND, Operation.BARRIER))


def check(plan: Plan, topology: Topology) -> None:
    """The bytes are the fewest, and each border link is at the bound but for the elements that cuts round by."""
    counted, spec = account(plan, topology), plan.spec
    assert counted.total == cross_bytes(spec, topology)
    assert counted == tally(plan, topology)
    bound = lower_bound(spec, topology)
    for cluster in topology.clusters:
        # A message's region and its border's slot are each within an element of their part; so is the chunk.
        slack = 3 * _crossings(plan, topology, cluster.index) * spec.itemsize
        for border in cluster.borders:
            allowed = bound * border.bandwidth + slack
            assert counted.sent.get(border.rank, 0) <= allowed
            assert counted.received.get(border.rank, 0) <= allowed
        others = {rank for rank in cluster.ranks if rank not in {border.rank for border in cluster.borders}}
        assert not others & {*counted.sent, *counted.received}, "bytes cross only at borders"


def _crossings(plan: Plan, topology: Topology, cluster: int) -> int:
    """The steps in which a cluster exchanges something with another."""
    count = 0
    for step in plan.steps:
        if isinstance(step.action, Transfer):
            ends = {layout_cluster(x, topology) for x in (step.action.source_layout, step.action.target_layout)}
            count += len(ends) == 2 and cluster in ends
    return count


@st.composite
def dominated(draw: st.DrawFn, topology: Topology, operations: tuple[Operation, ...]) -> Spec:
    """Shares of which one cluster holds nearly all, so that its links alone are too slow for direct exchange."""
    rich = draw(st.sampled_from(topology.clusters)).ranks
    large, small = st.sampled_from([999, 4096]), st.integers(0, 9)
    sizes = tuple(draw(large if rank in rich else small) for rank in range(topology.size))
    operation = draw(st.sampled_from(operations))
    reduction = Reduction.SUM if operation is Operation.REDUCE_SCATTER else None
    root = draw(st.integers(0, topology.size - 1))
    return Spec(operation, topology.size, sizes, "int64", 8, reduction, root)


@settings(max_examples=250)
@given(st.data())
def test_dominated_shares_meet_their_bound(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    spec = data.draw(dominated(topology, SHARED))
    mode = data.draw(st.sampled_from(["auto", "border", "fill"]))
    check(Planner(topology, mode, data.draw(st.sampled_from([1, 3])), "bandwidth").plan(spec), topology)


@settings(max_examples=1500)
@given(st.data())
def test_plans_meet_their_bound_on_any_links(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    spec = data.draw(specs(topology.size, PROVED))
    mode = data.draw(st.sampled_from(["auto", "add", "border", "fill"]))
    check(Planner(topology, mode, data.draw(st.sampled_from([0, 1])), "bandwidth").plan(spec), topology)


@settings(max_examples=300)
@given(st.data())
def test_chunks_do_not_add_bytes(data: st.DataObject) -> None:
    topology = data.draw(topologies(equal_links=True))
    spec = data.draw(specs(topology.size, PROVED))
    check(Planner(topology, "auto", 4).plan(spec), topology)


def test_a_large_share_is_relayed() -> None:
    """Cluster 0 holds nearly all and has slow links: direct sending would cost it (k-1) times its share."""
    topology = assemble([("a", [0], [1000]), ("b", [1], [10000]), ("c", [2], [10000]), ("d", [3], [10000])])
    spec = Spec(Operation.ALL_GATHER, 4, (10000, 10, 10, 10))
    assert any(row[index] != sum(row) for index, row in enumerate(relays(spec, topology)))
    plan = Planner(topology, algorithm="bandwidth").plan(spec)
    check(plan, topology)
    direct = Fraction(3 * 10000, 1000)
    assert account(plan, topology).seconds(topology) < direct * Fraction(2, 5)


def test_owner_weights_keep_every_cluster_within_the_bound() -> None:
    topology = assemble([("a", [0, 1], [1, 1]), ("b", [2], [10]), ("c", [3], [4]), ("d", [4], [7])])
    spec = Spec(Operation.ALL_REDUCE, 5, (100000,), "int8", 1, Reduction.SUM)
    weights, bound = owner_weights(topology), lower_bound(spec, topology)
    for cluster, weight in zip(topology.clusters, weights, strict=True):
        assert spec.nbytes * (1 + 2 * Fraction(weight, sum(weights))) <= bound * cluster.bandwidth


def test_a_worse_plan_fails() -> None:
    """A full exchange of partial sums, as the sequential plan of FlagCX does it, must not pass."""
    topology = assemble([("a", [0], [1]), ("b", [1], [1]), ("c", [2], [1])])
    spec = Spec(Operation.ALL_REDUCE, 3, (3000,), "int8", 1, Reduction.SUM)
    exchange: list[Action] = [
        Transfer(interval(0, 3000), Borders(i), Borders(j), OUTPUT, f"from{i}")
        for i in range(3)
        for j in range(3)
        if i != j
    ]
    full = Plan(spec, topology.digest, "full exchange", ("add",) * 3, 1, wavefront([[exchange]]))
    assert account(full, topology).seconds(topology) > lower_bound(spec, topology)
    with pytest.raises(AssertionError):
        check(full, topology)
    doubled = Plan(spec, topology.digest, "twice", ("add",) * 3, 1, wavefront([[exchange, exchange]]))
    with pytest.raises(AssertionError):
        check(doubled, topology)


def test_two_unequal_clusters_by_hand() -> None:
    topology = assemble([("a", range(4), [100, 100]), ("b", range(4, 6), [50])])
    spec = Spec(Operation.ALL_REDUCE, 6, (1000,), "float32", 4, Reduction.SUM)
    counted = account(Planner(topology, algorithm="bandwidth").plan(spec), topology)
    assert (counted.egress(0), counted.ingress(0), counted.egress(1)) == (4000, 4000, 4000)
    assert counted.seconds(topology) == lower_bound(spec, topology) == Fraction(4000, 50)


def test_the_fewest_bytes_over_the_wrong_links_fail() -> None:
    """One owner of everything sends no byte too many in all, but (k-1) times the tensor over one link."""
    topology = assemble([("a", [0], [1]), ("b", [1], [1]), ("c", [2], [1])])
    spec = Spec(Operation.ALL_REDUCE, 3, (3000,), "int8", 1, Reduction.SUM)
    whole = interval(0, 3000)
    into: list[Action] = [Transfer(whole, Borders(i), Borders(0), OUTPUT, f"from{i}") for i in (1, 2)]
    out: list[Action] = [Transfer(whole, Borders(0), Borders(i), OUTPUT, OUTPUT) for i in (1, 2)]
    plan = Plan(spec, topology.digest, "one owner", ("add",) * 3, 1, wavefront([[into, out]]))
    assert account(plan, topology).total == cross_bytes(spec, topology)
    with pytest.raises(AssertionError):
        check(plan, topology)


def test_direct_sending_of_a_large_share_fails() -> None:
    """Without its relays, the all_gather above sends the fewest bytes and misses the bound."""
    topology = assemble([("a", [0], [1000]), ("b", [1], [10000]), ("c", [2], [10000]), ("d", [3], [10000])])
    spec = Spec(Operation.ALL_GATHER, 4, (10000, 10, 10, 10))
    direct: list[Action] = [
        Transfer(spec.share(i), Borders(i), Borders(j), OUTPUT, OUTPUT) for i in range(4) for j in range(4) if i != j
    ]
    plan = Plan(spec, topology.digest, "direct", (), 1, wavefront([[direct]]))
    assert account(plan, topology).total == cross_bytes(spec, topology)
    with pytest.raises(AssertionError):
        check(plan, topology)


@settings(max_examples=100)
@given(st.data())
def test_the_tally_of_steps_is_the_count_of_messages(data: st.DataObject) -> None:
    """Also where no bound is met: sends between any two ranks, barriers, latency plans."""
    topology = data.draw(topologies())
    spec = data.draw(specs(topology.size))
    plan = Planner(topology, algorithm=data.draw(st.sampled_from(["latency", "bandwidth"]))).plan(spec)
    assert account(plan, topology) == tally(plan, topology)


def test_small_messages_take_the_fewest_steps_and_large_ones_the_fewest_bytes() -> None:
    topology = assemble([("a", [0, 2], [10**9] * 2), ("b", [1, 3], [10**9] * 2)])

    def plan(operation: Operation, size: int) -> Plan:
        return Planner(topology).plan(Spec(operation, 4, (size,), "float32", 4, Reduction.SUM))

    for operation in PROVED:
        assert plan(operation, 2).algorithm == "direct", operation
        check(plan(operation, 1 << 20), topology)
    for size in (1, 1000, 100_000):
        spec = Spec(Operation.ALL_REDUCE, 4, (size,), "float32", 4, Reduction.SUM)
        latency, bandwidth = (Planner(topology, algorithm=a).plan(spec) for a in ("latency", "bandwidth"))
        taken = plan(Operation.ALL_REDUCE, size)
        assert simulate(taken, topology).seconds == min(simulate(p, topology).seconds for p in (latency, bandwidth))


def test_a_job_of_many_ranks_never_takes_a_latency_plan() -> None:
    topology = assemble([("a", range(40), [10**9]), ("b", range(40, 80), [10**9])])
    assert Planner(topology, algorithm="latency").plan(Spec(Operation.BROADCAST, 80, (8,))).algorithm != "direct"
