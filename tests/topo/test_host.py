"""Host identity, and which interfaces are chosen."""

import socket
import sys

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from hetccl.config import Config
from hetccl.errors import ConfigurationError
from hetccl.topo import Interface
from hetccl.topo import host as module

LO = Interface("lo", "127.0.0.1", 10**9)
DOCKER = Interface("docker0", "172.17.0.1", 10**9)
FAST = Interface("eth0", "10.1.0.5", 50 * 10**9)
FASTER = Interface("eth1", "10.2.0.5", 50 * 10**9)
SLOW = Interface("mgmt0", "192.168.0.5", 10**8)
SIX = Interface("eth0", "fd00::5", 50 * 10**9)
LINK_LOCAL = Interface("eth2", "169.254.3.4", 50 * 10**9)
ALL = (LO, DOCKER, LINK_LOCAL, FASTER, FAST, SLOW, SIX)


@pytest.fixture
def routed(monkeypatch):
    def route(address):
        monkeypatch.setattr(module, "_routed_address", lambda host: address)

    return route


def test_identity_is_stable():
    assert module.identity() == module.identity()
    assert socket.gethostname().split(".")[0] in module.identity()


def test_locate_uses_the_override():
    place = module.locate(Config(host="other"))
    assert place.host == "other"
    assert place.address == place.interfaces[0].address


def test_store_host_looks_through_prefixes():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert module.store_host(PrefixStore("a", PrefixStore("b", store))) == "127.0.0.1"
    assert module.store_host(HashStore()) is None
    assert module.locate(Config(), store).address == "127.0.0.1"


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are listed on Linux only")
def test_interfaces_of_this_machine():
    found = module.list_interfaces()
    assert ("lo", "127.0.0.1") in [(one.name, one.address) for one in found]
    assert all(one.bandwidth > 0 for one in found)


def test_the_route_comes_first_and_unusable_ones_are_left_out(routed):
    routed("10.1.0.5")
    assert module.choose(ALL, (), "store") == (FAST, FASTER)
    routed("10.2.0.5")
    assert module.choose(ALL, (), "store") == (FASTER, FAST)


def test_the_route_stays_even_if_slow(routed):
    routed("192.168.0.5")
    assert module.choose(ALL, (), "store") == (SLOW, FASTER, FAST)


def test_the_family_of_the_route(routed):
    routed("fd00::5")
    assert module.choose(ALL, (), "store") == (SIX,)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "127.3.2.1"])
def test_loopback_store(name):
    assert [one.address for one in module.choose(ALL, (), name)] == ["127.0.0.1"]


@pytest.mark.parametrize("address", ["127.0.1.1", "172.17.0.1", None])
def test_a_route_that_others_cannot_follow(routed, address):
    """A host name that /etc/hosts maps to loopback, a container bridge, an unresolvable name."""
    routed(address)
    assert module.choose(ALL, (), "node1") == (FASTER, FAST)


def test_nothing_usable_falls_back_to_loopback(routed):
    routed("127.0.1.1")
    assert [one.address for one in module.choose((LO, DOCKER), (), "node1")] == ["127.0.0.1"]


def test_wanted_interfaces():
    assert module.choose(ALL, ("mgmt0",), None) == (SLOW,)
    assert module.choose(ALL, ("10.0.0.0/8",), None) == (FASTER, FAST)
    assert module.choose(ALL, ("fd00::/8",), None) == (SIX,)
    assert module.choose(ALL, ("eth0",), None) == (FAST,)
    assert module.choose(ALL, ("docker0",), None) == (DOCKER,)
    with pytest.raises(ConfigurationError, match=r"HETCCL_INTERFACE=ib0 .*eth0 \(10.1.0.5\)"):
        module.choose(ALL, ("ib0",), None)
