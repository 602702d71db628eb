"""Bytes counted message by message against the closed-form bounds."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import specs, topologies

from hetccl.plan.bounds import cross_bytes, lower_bound, owner_weights, relays
from hetccl.plan.layouts import Borders
from hetccl.plan.pipeline import wavefront
from hetccl.plan.plan import Plan
from hetccl.plan.planner import Planner
from hetccl.plan.region import interval
from hetccl.plan.spec import OUTPUT, Operation, Spec
from hetccl.plan.steps import Action, Transfer
from hetccl.readers.account import account
from hetccl.reduction import Reduction
from hetccl.topo.model import Topology, assemble

PROVED = tuple(
    operation for operation in Operation if operation not in (Operation.SEND, Operation.BARRIER)
)


def check(plan: Plan, topology: Topology) -> None:
    """The bytes are the fewest, and the busiest link is at the bound but for integer cuts."""
    counted, spec = account(plan, topology), plan.spec
    assert counted.total == cross_bytes(spec, topology)
    cuts = 2 * len(topology.clusters) ** 2 * plan.chunks  # each cut may be off by one element
    slowest = min(border.bandwidth for c in topology.clusters for border in c.borders)
    bound = lower_bound(spec, topology)
    assert counted.seconds(topology) <= bound + Fraction(cuts * spec.itemsize, slowest)


@settings(max_examples=1500)
@given(st.data())
def test_plans_meet_their_bound_on_any_links(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    spec = data.draw(specs(topology.size, PROVED))
    mode = data.draw(st.sampled_from(["auto", "add", "border", "fill"]))
    check(Planner(topology, mode, data.draw(st.sampled_from([0, 1]))).plan(spec), topology)


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
    plan = Planner(topology).plan(spec)
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
    doubled = Plan(spec, topology.digest, "twice", ("add",) * 3, 1, wavefront([[exchange, exchange]]))
    with pytest.raises(AssertionError):
        check(doubled, topology)


def test_two_unequal_clusters_by_hand() -> None:
    topology = assemble([("a", range(4), [100, 100]), ("b", range(4, 6), [50])])
    spec = Spec(Operation.ALL_REDUCE, 6, (1000,), "float32", 4, Reduction.SUM)
    counted = account(Planner(topology).plan(spec), topology)
    assert (counted.egress(0), counted.ingress(0), counted.egress(1)) == (4000, 4000, 4000)
    assert counted.seconds(topology) == lower_bound(spec, topology) == Fraction(4000, 50)
