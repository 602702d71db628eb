"""From ranks to clusters and borders."""

from hypothesis import given
from random_jobs import jobs

from hetccl.topo import Border, Interface, Rank
from hetccl.topo.clusters import HOST_BANDWIDTH, HOST_LINK, dissect


def ranks(*described):
    """(vendor, label, host, interfaces as (name, bandwidth) pairs) a rank."""
    return [
        Rank(
            number,
            host=host,
            vendor=vendor,
            label=label,
            interfaces=tuple(Interface(n, "::", b) for n, b in links),
        )
        for number, (vendor, label, host, links) in enumerate(described)
    ]


def test_one_host_interleaved():
    topology = dissect(ranks(*[("gloo", "", "h", []), ("mpi", "", "h", [])] * 2))
    assert [cluster.ranks for cluster in topology.clusters] == [(0, 2), (1, 3)]
    assert topology.clusters[1].borders == tuple(Border(r, HOST_LINK, HOST_BANDWIDTH) for r in (1, 3))


def test_labels_and_libraries_split():
    job = ranks(("gloo", "a", "h", []), ("gloo", "b", "h", []), ("gloo", "a", "h", []))
    assert [cluster.name for cluster in dissect(job).clusters] == ["gloo/a", "gloo/b"]
    mixed = [Rank(0, "h", "mpi", library="MPICH"), Rank(1, "h", "mpi", library="Intel MPI")]
    assert len(dissect(mixed).clusters) == 2


def test_one_vendor_is_one_cluster():
    topology = dissect(ranks(*[("gloo", "", f"h{number}", [("e", 8)]) for number in range(3)]))
    assert [cluster.ranks for cluster in topology.clusters] == [(0, 1, 2)]
    assert topology.clusters[0].bandwidth == 24


def test_interfaces_are_spread_over_the_ranks_of_a_host():
    links = [("e0", 100), ("e1", 50)]
    job = ranks(*[("a", "", "h0", links)] * 3, ("b", "", "h1", links))
    first, second = dissect(job).clusters
    assert first.borders == (Border(0, "h0/e0", 100), Border(1, "h0/e1", 50))
    assert second.borders == (Border(3, "h1/e0+e1", 150),)


def test_a_shared_interface_is_divided():
    job = ranks(("a", "", "h0", [("e", 101)]), ("b", "", "h0", [("e", 101)]), ("b", "", "h1", [("e", 101)]))
    first, second = dissect(job).clusters
    assert first.borders == (Border(0, "h0/e", 50),)
    assert second.borders == (Border(1, "h0/e", 50), Border(2, "h1/e", 101))


def test_hosts_without_interfaces_have_a_border():
    job = ranks(("a", "", "h0", []), ("b", "", "h1", []))
    assert all(cluster.bandwidth > 0 for cluster in dissect(job).clusters)


def test_ranks_that_see_different_interfaces():
    job = ranks(("a", "", "h0", [("e0", 10)]), ("a", "", "h0", [("e1", 20)]), ("b", "", "h1", [("e0", 5)]))
    assert dissect(job).clusters[0].borders == (Border(0, "h0/e0", 10), Border(1, "h0/e1", 20))


@given(jobs())
def test_any_job(job):
    topology = dissect(job)
    assert sorted(r for cluster in topology.clusters for r in cluster.ranks) == list(range(len(job)))
    assert [cluster.index for cluster in topology.clusters] == list(range(len(topology.clusters)))
    lowest = [cluster.ranks[0] for cluster in topology.clusters]
    assert lowest == sorted(lowest)
    for cluster in topology.clusters:
        assert list(cluster.ranks) == sorted(cluster.ranks)
        borders = [border.rank for border in cluster.borders]
        assert borders
        assert borders == sorted(set(borders))
        assert set(borders) <= set(cluster.ranks)
        assert all(border.bandwidth > 0 and isinstance(border.bandwidth, int) for border in cluster.borders)
        assert {(job[r].vendor, job[r].library, job[r].label) for r in cluster.ranks} == {
            (cluster.vendor, job[cluster.ranks[0]].library, cluster.label)
        }
    assert dissect(job).digest == topology.digest


@given(jobs())
def test_no_interface_is_promised_twice(job):
    topology = dissect(job)
    if len({rank.host for rank in job}) == 1:
        return
    capacity = {}
    for rank in job:
        capacity[rank.host] = sum(one.bandwidth for one in rank.interfaces)
    used = dict.fromkeys(capacity, 0)
    for cluster in topology.clusters:
        for border in cluster.borders:
            used[job[border.rank].host] += border.bandwidth
    for host, most in capacity.items():
        # An interface slower than its number of users still gives each 1 byte per second.
        assert most == 0 or used[host] <= most + 3 * len(topology.clusters)
