"""The YAML form: exact round trips, overriding, restricting, and mistakes that are named."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_jobs import jobs

from hetccl.errors import ConfigurationError
from hetccl.topo import Border, Interface, Rank, assemble
from hetccl.topo.clusters import HOST_LINK, dissect
from hetccl.topo.file import dump, load, override, restrict
from hetccl.topo.schema import bandwidth_text, parse_bandwidth, parse_ranks, ranks_text

PLAN_ONLY = """
version: 1
clusters:
- {vendor: hccl, ranks: "4-7", label: b, borders: [{rank: 5, link: n1/e0, bandwidth: 100 Gbit/s}]}
- vendor: nccl
  ranks: [0, "1-3"]
  fabric: 300 GB/s
  borders:
  - {rank: 2, link: n0/e1, bandwidth: 12.5 GB/s}
  - {rank: 0, link: n0/e0, bandwidth: 7}
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="topology.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_planning_only(written):
    topology = load(written(PLAN_ONLY))
    first, second = topology.clusters
    assert (first.vendor, first.ranks, first.fabric) == ("nccl", (0, 1, 2, 3), 300 * 10**9)
    assert first.borders == (Border(0, "n0/e0", 7), Border(2, "n0/e1", 12_500_000_000))
    assert (second.index, second.name, second.bandwidth) == (1, "hccl/b", 12_500_000_000)
    assert topology.ranks[6].vendor == "hccl"


def test_borders_may_be_left_out(written):
    topology = load(written("version: 1\nclusters: [{vendor: a, ranks: 0-3}, {vendor: b, ranks: 4}]"))
    assert [len(cluster.borders) for cluster in topology.clusters] == [1, 1]


def test_assembled_topologies_need_no_ranks_section(written):
    topology = assemble([("a", range(0, 8, 2), [10**9, 5]), ("b", range(1, 8, 2), [10**9])])
    assert "host" not in dump(topology).split("clusters")[0]
    assert "\nranks" not in dump(topology)
    assert load(written(dump(topology))) == topology


@settings(max_examples=50, deadline=None)
@given(job=jobs(), fabrics=st.lists(st.integers(1, 10**13), min_size=12, max_size=12))
def test_round_trip(tmp_path_factory, job, fabrics):
    found = dissect(job)
    topology = replace(found, clusters=tuple(replace(c, fabric=fabrics[c.index]) for c in found.clusters))
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    path.write_text(dump(topology), encoding="utf-8")
    again = load(path)
    assert again == topology
    assert again.digest == topology.digest


@given(st.integers(1, 10**15))
def test_bandwidth_texts_are_exact(bandwidth):
    assert parse_bandwidth(bandwidth_text(bandwidth)) == bandwidth


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranks_texts_are_exact(ranks):
    assert parse_ranks(ranks_text(sorted(ranks))) == tuple(sorted(ranks))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: [", "line 1"),
        ("just text", "no mapping"),
        ("clusters: [{vendor: a, ranks: 0}]", "version"),
        ("version: 2\nclusters: [{vendor: a, ranks: 0}]", "version"),
        ("version: 1\nclusters: []", "clusters"),
        ("version: 1\nclusters: [{vendor: a, ranks: 0, bordrs: []}]", r"clusters\[0\].bordrs"),
        ("version: 1\nclusters: [{vendor: a, ranks: 3-1}]", r"clusters\[0\].ranks: the range 3-1"),
        ("version: 1\nclusters: [{vendor: a, ranks: []}]", "at least one rank"),
        ("version: 1\nclusters: [{vendor: a, ranks: [0, 0]}]", "twice"),
        ("version: 1\nclusters: [{vendor: a, ranks: 0-99999999999}]", "below"),
        ("version: 1\nclusters: [{vendor: a, ranks: 0-1}, {vendor: b, ranks: 1-2}]", "rank 1 twice"),
        ("version: 1\nclusters: [{vendor: a, ranks: 0}, {vendor: b, ranks: 2}]", "no cluster for rank 1"),
        (
            PLAN_ONLY.replace("100 Gbit/s", "100 Gbits"),
            r"borders\[0\].bandwidth: '100 Gbits' is no bandwidth",
        ),
        (PLAN_ONLY.replace("100 Gbit/s", "0"), "less than one byte"),
        (PLAN_ONLY.replace("rank: 5", "rank: 1"), "makes rank 1 a border of the cluster of ranks 4-7"),
        (PLAN_ONLY.replace("rank: 2", "rank: 0"), "add up"),
        (PLAN_ONLY + "ranks: [{rank: 0, host: a}]", "each of 0 to 7"),
        (
            "version: 1\nclusters: [{vendor: a, ranks: 0}]\nranks: [{rank: 0, host: h, vendor: b}]",
            "make them agree",
        ),
    ],
)
def test_mistakes_are_one_sentence_with_file_and_field(written, text, words):
    path = written(text)
    with pytest.raises(ConfigurationError, match=words) as raised:
        load(path)
    message = str(raised.value)
    assert str(path) in message
    assert "\n" not in message
    assert message.endswith(".")


def test_missing_file():
    with pytest.raises(ConfigurationError, match="No such file"):
        load("/nowhere/at/all.yaml")


def job(*vendors, host="h", library=""):
    return dissect([Rank(n, host, vendor, library=library or vendor) for n, vendor in enumerate(vendors)])


def test_override_replaces_borders_labels_and_fabric(written):
    path = written(
        "version: 1\nclusters:\n- {vendor: gloo, ranks: [0, 2], label: x, fabric: 1 GB/s,"
        " borders: [{rank: 2, link: wire, bandwidth: 1 Gbit/s}]}\n- {vendor: gloo, ranks: 1}\n"
    )
    found = override(job("gloo", "gloo", "gloo"), path)
    assert [cluster.name for cluster in found.clusters] == ["gloo/x", "gloo"]
    assert found.clusters[0].borders == (Border(2, "wire", 125_000_000),)
    assert found.clusters[0].fabric == 10**9
    assert [rank.label for rank in found.ranks] == ["x", "", "x"]
    assert found.ranks[0].host == "h"


def test_override_for_a_subgroup(written):
    found = override(job("gloo", "mpi"), written(PLAN_ONLY.replace("nccl", "gloo").replace("hccl", "mpi")), (2, 5))
    assert [cluster.borders[0] for cluster in found.clusters] == [
        Border(0, "n0/e1+e0", 12_500_000_007),
        Border(1, "n1/e0", 12_500_000_000),
    ]


@pytest.mark.parametrize(
    ("topology", "members", "words"),
    [
        (job("nccl", "nccl"), None, "describes 8 ranks but the job has 2"),
        (job(*["nccl"] * 8), None, "gives rank 4 vendor hccl, it runs nccl"),
        (job("nccl", "hccl"), (0, 9), "the group has rank 9"),
    ],
)
def test_override_that_does_not_fit(written, topology, members, words):
    with pytest.raises(ConfigurationError, match=words):
        override(topology, written(PLAN_ONLY), members)


def test_override_never_joins_libraries(written):
    mixed = dissect([Rank(0, "h", "mpi", library="MPICH"), Rank(1, "h", "mpi", library="Intel MPI")])
    with pytest.raises(ConfigurationError, match=r"mixes libraries .*MPICH \(rank 0\), Intel MPI \(rank 1\)"):
        override(mixed, written("version: 1\nclusters: [{vendor: mpi, ranks: 0-1}]"))


def test_restrict_renumbers_and_reorders():
    whole = assemble([("a", [0, 1, 2], [5, 6]), ("b", [3, 4], [7])])
    part = restrict(whole, [4, 1, 2])
    assert [cluster.ranks for cluster in part.clusters] == [(0,), (1, 2)]
    assert part.clusters[0].borders == (Border(0, "host1/link0", 7),)
    # The left-out rank's link passes to the rank without one.
    assert part.clusters[1].borders == (Border(1, "host0/link1", 6), Border(2, "host0/link0", 5))
    assert [rank.vendor for rank in part.ranks] == ["b", "a", "a"]


def test_restrict_to_one_host_uses_its_memory():
    links = (Interface("e", "10.0.0.1", 10),)
    whole = dissect([Rank(n, f"h{n // 2}", "ab"[n % 2], interfaces=links) for n in range(4)])
    assert {b.link for c in restrict(whole, [0, 1]).clusters for b in c.borders} == {HOST_LINK}


@given(jobs(), st.data())
def test_restrict_any(job, data):
    topology = dissect(job)
    ranks = data.draw(st.permutations(range(len(job))))[: data.draw(st.integers(1, len(job)))]
    part = restrict(topology, ranks)
    assert sorted(r for cluster in part.clusters for r in cluster.ranks) == list(range(len(ranks)))
    for cluster in part.clusters:
        assert topology.cluster_of(ranks[cluster.ranks[0]]).vendor == cluster.vendor
        assert cluster.borders
        assert {border.rank for border in cluster.borders} <= set(cluster.ranks)
    assert restrict(topology, range(len(job))) == topology
