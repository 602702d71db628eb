"""The exchange through a real store: agreement, disagreement, and ranks that never come."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore

from hetccl.config import Config
from hetccl.errors import ConfigurationError, TimeoutError
from hetccl.topo import Interface, discovery
from hetccl.topo.discovery import discover, withdraw
from hetccl.topo.host import Place
from hetccl.vendors.base import Library

HERE = Place("here", (Interface("e0", "10.0.0.1", 1000),))
VENDORS = ("gloo", "mpi")


def one(store, rank, size, config=None, seconds=20, **more):
    vendor = VENDORS[rank % 2]
    return discover(
        store,
        rank,
        size,
        config=config or Config(),
        place=more.pop("place", HERE),
        vendor=vendor,
        library=Library(vendor.upper(), "1.2"),
        paths=[("shm", "x y"), ("tcp", f"port {rank}")],
        location=f"10.0.0.1:{rank}",
        timeout=timedelta(seconds=seconds),
        **more,
    )


def all_ranks(size, configs=None, **more):
    """Each rank's result or error, every rank in a thread with its own connection to the store."""
    master = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def run(rank):
        try:
            store = PrefixStore("group", TCPStore("127.0.0.1", master.port, is_master=False))
            return one(store, rank, size, configs[rank] if configs else None, **more)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def test_all_ranks_find_the_same():
    results = all_ranks(5)
    assert all(result == results[0] for result in results)
    topology = results[0].topology
    assert [cluster.ranks for cluster in topology.clusters] == [(0, 2, 4), (1, 3)]
    assert results[0].locations == tuple(f"10.0.0.1:{rank}" for rank in range(5))
    third = topology.ranks[3]
    assert (third.vendor, third.library, third.version, third.host) == ("mpi", "MPI", "1.2", "here")
    assert third.interfaces == HERE.interfaces
    assert third.paths == (("shm", "x y"), ("tcp", "port 3"))
    assert third.torch


def test_labels_make_clusters():
    results = all_ranks(4, [Config(cluster=label) for label in ("a", "a", "b", "")])
    assert [cluster.name for cluster in results[0].topology.clusters] == ["gloo/a", "mpi/a", "gloo/b", "mpi"]


@pytest.mark.parametrize("kind", ["hash", "file"])
def test_other_stores(kind, tmp_path):
    store = HashStore() if kind == "hash" else FileStore(str(tmp_path / "store"), 1)
    assert one(store, 0, 1).topology.size == 1


def test_missing_ranks_are_named_in_time():
    begin = time.monotonic()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other = TCPStore("127.0.0.1", store.port, is_master=False)
    errors = []

    def run():
        with pytest.raises(TimeoutError) as raised:
            one(other, 2, 5, seconds=1.5)
        errors.append(str(raised.value))

    thread = threading.Thread(target=run)
    thread.start()
    with pytest.raises(TimeoutError, match=r"^Timed out after 1.5 s .*ranks 1, 3, 4 of 5 never came"):
        one(store, 0, 5, seconds=1.5)
    thread.join()
    assert "ranks 1, 3, 4 of 5" in errors[0]
    assert time.monotonic() - begin < 5


def test_a_rank_that_withdraws_stops_all_with_its_reason():
    store = HashStore()
    withdraw(store, 1, 3, "libmpi is not installed.")
    with pytest.raises(ConfigurationError, match="Rank 1 cannot take part: libmpi is not installed"):
        one(store, 0, 2)
    store = HashStore()
    withdraw(store, 1, 3, "libmpi is not installed.")
    with pytest.raises(ConfigurationError, match="libmpi"):  # although rank 2 never comes
        one(store, 0, 3, seconds=1)


def test_different_settings_show_who_has_what():
    configs = [Config(), Config(combine="add"), Config(), Config(chunks=3)]
    for error in all_ranks(4, configs):
        assert isinstance(error, ConfigurationError)
        assert "HETCCL_CHUNKS (0 on ranks 0, 1, 2; 3 on rank 3)" in str(error)
    for error in all_ranks(2, configs[:2]):
        assert "HETCCL_COMBINE (auto on rank 0; add on rank 1)" in str(error)


def test_topology_file(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_text(
        "version: 1\nclusters:\n- {vendor: gloo, ranks: 0, borders: [{rank: 0, link: w, bandwidth: 5}]}\n"
        "- {vendor: mpi, ranks: 1}\n"
    )
    results = all_ranks(2, [Config(topology=str(path))] * 2)
    assert results[0].topology.clusters[0].bandwidth == 5
    assert results[0] == results[1]
    differing = all_ranks(2, [Config(topology=str(path)), Config()])
    assert all("HETCCL_TOPOLOGY (content " in str(error) for error in differing)
    assert all("unset on rank 1" in str(error) for error in differing)
    absent = all_ranks(2, [Config(), Config(topology="/nowhere.yaml")])
    assert all("/nowhere.yaml" in str(error) for error in absent)
    assert all(isinstance(error, ConfigurationError) for error in absent)


def test_different_versions(monkeypatch):
    store = HashStore()
    with monkeypatch.context() as patch:
        patch.setattr(discovery, "version", lambda: "0.0.9")
        with pytest.raises(TimeoutError):
            one(store, 1, 2, seconds=0.2)
    with pytest.raises(ConfigurationError, match=r"different hetccl versions \(.* on rank 0; 0.0.9 on rank 1\)"):
        one(store, 0, 2)


@pytest.mark.parametrize(
    "record",
    [
        b"\x80\x04pickle",
        b"[]",
        json.dumps({"hetccl": discovery.version(), "size": 2, "settings": {}, "location": ""}).encode(),
        json.dumps({"hetccl": discovery.version(), "size": 2, "settings": 5, "rank": 5}).encode(),
        json.dumps({"hetccl": discovery.version(), "size": 2, "settings": {}, "rank": {"nonsense": 1}}).encode(),
    ],
)
def test_records_that_are_not_ours(record):
    store = HashStore()
    store.set("hetccl/record/1", record)
    with pytest.raises(ConfigurationError):
        one(store, 0, 2)
