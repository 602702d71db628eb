"""The host that this process runs on: its identity, its network interfaces, the addresses to be reached at.

The address rule: the interfaces of HETCCL_INTERFACE where set; otherwise those of the address family by which
the kernel routes to the job's store, that of the route first; loopback where the store is on loopback.
Bridges of container engines and link-local addresses are never chosen unasked: other hosts cannot reach them.
"""

from __future__ import annotations

import ctypes
import hashlib
import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import PrefixStore, Store, TCPStore

from ..config import Config
from ..errors import ConfigurationError
from .model import Interface

UNKNOWN_BANDWIDTH = 1_250_000_000
"""10 Gbit/s in bytes per second: assumed where the kernel does not say (loopback, virtual machines)."""

MANAGEMENT_SHARE = 10
"""An interface this many times slower than the fastest is taken for a management port and left out."""

_CONTAINER_BRIDGES = re.compile(r"(docker|br-|virbr|cni|flannel|cali|lxcbr|lxdbr|podman|kube)")
_UP, _LOOPBACK, _RUNNING = 0x1, 0x8, 0x40


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is. The first interface's address is the one that the rank is reached at."""

    host: str
    interfaces: tuple[Interface, ...]

    @property
    def address(self) -> str:
        return self.interfaces[0].address


def locate(config: Config, store: Store | None = None) -> Place:
    """This process's host and interfaces; ConfigurationError where HETCCL_INTERFACE matches none."""
    return Place(config.host or identity(), choose(list_interfaces(), config.interfaces, store_host(store)))


def identity() -> str:
    """The same text for two processes just when they share a kernel, a process namespace and a host name.

    A container that has its own process namespace is a host of its own: shared memory and process ids do not
    reach across, so no path inside a host would work.
    """
    hostname = socket.gethostname()
    boot = _read(Path("/proc/sys/kernel/random/boot_id"))
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    digest = hashlib.sha256(f"{boot}|{namespace}|{hostname}".encode()).hexdigest()[:8]
    return f"{hostname.split('.')[0]}-{digest}"


def store_host(store: Store | None) -> str | None:
    """The host that a TCPStore, however wrapped, is served from; None for a store without one."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return str(store.host) if isinstance(store, TCPStore) else None


def choose(found: Sequence[Interface], wanted: Sequence[str], host: str | None) -> tuple[Interface, ...]:
    """The interfaces to use among those `found` (up, every address its own entry); never empty.

    `wanted` are the entries of HETCCL_INTERFACE, `host` the store's host.
    """
    if wanted:
        chosen = [one for entry in wanted for one in found if _matches(one, entry)]
        if not chosen:
            listing = ", ".join(f"{one.name} ({one.address})" for one in found) or "none"
            raise ConfigurationError(
                f"HETCCL_INTERFACE={','.join(wanted)} matches no interface of host {socket.gethostname()}; "
                f"name one that it has: {listing}."
            )
        return _one_each(_family_first(chosen, 4))
    routed = _routed_address(host) if host else None
    loopback = Interface("lo", "127.0.0.1", UNKNOWN_BANDWIDTH)
    if host and _is_loopback_literal(host):
        return (Interface("lo", "::1", UNKNOWN_BANDWIDTH) if routed == "::1" else loopback,)
    usable = [one for one in found if _is_usable(one)]
    # On its own host a name may resolve to loopback (127.0.1.1 in /etc/hosts), where others can't follow.
    main = next((one for one in usable if one.address == routed), None)
    if main is None:
        if routed and not ipaddress.ip_address(routed).is_loopback and not found:
            return (Interface("route", routed, UNKNOWN_BANDWIDTH),)  # interfaces can't be listed here
        main = next(iter(_family_first(usable, 4)), None)
    if main is None:
        return (loopback,)
    version = ipaddress.ip_address(main.address).version
    fastest = max(one.bandwidth for one in usable)
    rest = [
        one
        for one in usable
        if ipaddress.ip_address(one.address).version == version and one.bandwidth * MANAGEMENT_SHARE > fastest
    ]
    return _one_each([main, *rest])


def list_interfaces() -> tuple[Interface, ...]:
    """Every address of every interface that is up, loopback included. Linux only; empty elsewhere."""
    if sys.platform != "linux":
        return ()
    library = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Entry)()
    if library.getifaddrs(ctypes.byref(head)) != 0:
        return ()
    found = []
    try:
        node = head
        while node:
            entry = node.contents
            address = _address(entry.address) if entry.flags & _UP and entry.flags & _RUNNING else None
            if address:
                name = os.fsdecode(entry.name)
                found.append(Interface(name, address, _bandwidth(name)))
            node = entry.next
    finally:
        library.freeifaddrs(head)
    return tuple(found)


class _Entry(ctypes.Structure):
    """struct ifaddrs, as far as it is read."""


_Entry._fields_ = [
    ("next", ctypes.POINTER(_Entry)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def _address(pointer: int | None) -> str | None:
    if not pointer:
        return None
    family = int.from_bytes(ctypes.string_at(pointer, 2), sys.byteorder)
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, ctypes.string_at(pointer + 8, 16))
    return None


def _bandwidth(name: str) -> int:
    """Bytes per second from the kernel's Mbit/s, which is absent or -1 where the driver does not know."""
    text = _read(Path("/sys/class/net") / name.split(":")[0] / "speed")
    return int(text) * 125_000 if text.isdigit() and int(text) > 0 else UNKNOWN_BANDWIDTH


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _routed_address(host: str) -> str | None:
    """The local address by which the kernel reaches `host`: connecting a datagram socket sends nothing."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0]).split("%")[0]
    except OSError:
        return None


def _is_loopback_literal(host: str) -> bool:
    if host.lower() in ("localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_usable(interface: Interface) -> bool:
    address = ipaddress.ip_address(interface.address)
    return not (address.is_loopback or address.is_link_local or _CONTAINER_BRIDGES.match(interface.name))


def _matches(interface: Interface, entry: str) -> bool:
    if "/" not in entry:
        return interface.name == entry
    return ipaddress.ip_address(interface.address) in ipaddress.ip_network(entry, strict=False)


def _family_first(interfaces: Iterable[Interface], version: int) -> list[Interface]:
    """Addresses of one family before the other's, link-local ones last, otherwise in order."""

    def key(one: Interface) -> tuple[bool, bool]:
        address = ipaddress.ip_address(one.address)
        return address.is_link_local, address.version != version

    return sorted(interfaces, key=key)


def _one_each(interfaces: Iterable[Interface]) -> tuple[Interface, ...]:
    first: dict[str, Interface] = {}
    for one in interfaces:
        first.setdefault(one.name, one)
    return tuple(first.values())
