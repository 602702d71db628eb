"""Making a group: from a store to a topology, communicators, paths, an engine, and the control plane."""

from __future__ import annotations

import atexit
import secrets
import time
import weakref
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

from .. import transports, vendors
from ..config import Config
from ..devices import runtime_of
from ..errors import HetcclError, PeerError, TimeoutError
from ..plan.layouts import combining_group
from ..plan.lower import lower
from ..plan.planner import Planner
from ..plan.spec import Spec
from ..topo.discovery import discover, withdraw
from ..topo.host import Place, locate
from ..topo.model import Cluster, Rank, Topology
from ..transports.endpoint import Endpoint
from ..transports.fabric import Fabric, Peer
from ..vendors.base import Communicator, Setup, Vendor
from .control import Control
from .engine import Engine
from .execution import Bound, Means
from .streams import Streams


@dataclass(frozen=True, slots=True)
class Request:
    """What torch asks for when a group is made."""

    name: str
    store: Store
    rank: int
    size: int
    timeout: timedelta
    members: tuple[int, ...]
    """The group's ranks in the job."""


class Group:
    """Everything that one group's operations share. Made collectively; `close` releases it."""

    def __init__(self, request: Request) -> None:
        self.request, self.rank, self.size = request, request.rank, request.size
        self.timeout = request.timeout.total_seconds()
        store = PrefixStore("hetccl", request.store)
        if self.rank == 0:
            store.set("secret", secrets.token_hex(32))  # before anything can fail: the others wait for it
        try:
            self.config = Config.read()
            place = locate(self.config, request.store)
            self.vendor: Vendor = vendors.find(self.config.vendor) if self.config.vendor else vendors.default()
            library = self.vendor.library()
            paths = transports.available(self.config.paths or None)
        except HetcclError as error:
            withdraw(store, self.rank, self.size, str(error))
            raise
        kind = self.vendor.devices[0]
        offers = tuple((path.name, offer) for path in paths if (offer := path.offers(kind)) is not None)
        self.endpoint = Endpoint(place.address, _secret(store, request.timeout))
        self._closers: list[Any] = [self.endpoint.close]
        try:
            found = discover(
                store,
                self.rank,
                self.size,
                config=self.config,
                place=place,
                vendor=self.vendor.name,
                library=library,
                device=self.vendor.devices[0],
                paths=offers,
                location=self.endpoint.location,
                timeout=request.timeout,
                members=request.members,
            )
            self.topology: Topology = found.topology
            self._assemble(store, place, paths, found.locations)
        except BaseException:
            self.close(abandon=True)
            raise

    def _assemble(
        self, store: Store, place: Place, paths: tuple[transports.Transport, ...], locations: tuple[str, ...]
    ) -> None:
        self.cluster: Cluster = self.topology.cluster_of(self.rank)
        self.titles = [title(rank) for rank in self.topology.ranks]
        self.planner = Planner(self.topology, self.config.combine, self.config.chunks, self.config.algorithm)
        self._bound: dict[Spec, Bound] = {}
        self._communicators: dict[tuple[int, ...], Communicator] = {}
        peers = {r.rank: Peer(locations[r.rank], r.host, r.paths, self.titles[r.rank]) for r in self.topology.ranks}
        runtime = runtime_of(self.vendor.devices[0])
        device = torch.device(self.vendor.devices[0]) if runtime is None else runtime.device()
        self.streams = Streams(runtime, device) if runtime is not None else None
        """Of a rank on a device."""
        self.fabric = Fabric(self.endpoint, paths, self.rank, self.request.name, peers, self.timeout, device)
        self._closers.append(self.fabric.close)
        self.engine = Engine(self.request.name, self._explain, self._release)
        self._closers.append(self.engine.close)
        self.control = Control(self.rank, self.titles, self._star(locations), self.engine.fail)
        self._closers.append(self.control.close)
        communicators: dict[tuple[int, ...], Communicator] = {}
        for purpose, members in (("cluster", self.cluster.ranks), ("border", combining_group(self.cluster))):
            wanted = purpose == "cluster" or self.config.combine == "border"
            if wanted and len(members) > 1 and self.rank in members and members not in communicators:
                communicators[members] = self._communicator(store, place, purpose, members)
        self.means = Means(communicators, self.fabric, device)
        self._communicators = communicators
        _live.add(self)

    def _communicator(self, store: Store, place: Place, purpose: str, members: tuple[int, ...]) -> Communicator:
        name = f"{self.request.name}/{self.cluster.index}/{purpose}"
        return self.vendor.communicator(
            Setup(
                name=name,
                ranks=tuple(self.request.members[member] for member in members),
                index=members.index(self.rank),
                store=PrefixStore(name, store),
                timeout=self.request.timeout,
                address=place.address,
            )
        )

    def _star(self, locations: tuple[str, ...]) -> dict[int, Any]:
        """The control plane's connections: rank 0 with everybody."""
        deadline = time.monotonic() + self.timeout
        key = f"{self.request.name}/control/"
        if self.rank:
            dial = self.endpoint.dial(locations[0], f"{key}{self.rank}", deadline)
            while not dial.test():
                time.sleep(0.001)
            return {0: dial.connection}
        found: dict[int, Any] = {}
        while len(found) < self.size - 1:
            for rank in range(1, self.size):
                if rank not in found and (connection := self.endpoint.accepted(f"{key}{rank}")) is not None:
                    found[rank] = connection
            if time.monotonic() > deadline:
                missing = "; ".join(self.titles[r] for r in range(1, self.size) if r not in found)
                raise TimeoutError(f"Timed out while the group was made: no connection from {missing}")
            time.sleep(0.001)
        return found

    @property
    def backend(self) -> Any:
        """The vendor library's own c10d backend over the whole group; None where there is none."""
        return getattr(self._communicators.get(tuple(range(self.size))), "backend", None)

    def bind(self, spec: Spec) -> Bound:
        """The plan of a spec with this rank's program; cached."""
        bound = self._bound.get(spec)
        if bound is None:
            plan = self.planner.plan(spec)
            bound = self._bound[spec] = Bound(plan, lower(plan, self.topology, self.rank))
        return bound

    def _explain(self, title: str, sequence: int, error: HetcclError) -> HetcclError:
        number = f" (operation {sequence})" if sequence else ""
        described = f"{error} in {title}{number} on {self.titles[self.rank]}"
        named = type(error)(described)
        named.__cause__ = error.__cause__
        return self.control.explain(sequence or None, named)

    def _release(self) -> None:
        """After a fault: let a device's streams go on, so that nothing waits for them for ever."""
        self.fabric.release()
        for communicator in self._communicators.values():
            communicator.release()

    def close(self, abandon: bool = False) -> None:
        """Release threads, sockets, memory and communicators. With a fault or `abandon`, wait for nobody."""
        _live.discard(self)
        engine = getattr(self, "engine", None)
        abandon = abandon or (engine is not None and engine.fault is not None)
        if engine is not None and not abandon:
            engine.drain()
        for release in reversed(self._closers):
            release()
        for communicator in getattr(self, "_communicators", {}).values():
            communicator.close(abandon)
        self._closers, self._communicators = [], {}


def title(rank: Rank) -> str:
    """A rank as errors name it."""
    return f"rank {rank.rank} ({rank.host.split('/')[0]}, {rank.vendor})"


def _secret(store: Store, timeout: timedelta) -> bytes:
    """The group's shared secret, made by rank 0; whoever can read the job's store belongs to the job."""
    try:
        store.wait(["secret"], timeout)
        return bytes(store.get("secret"))
    except RuntimeError as error:
        try:
            store.check(["secret"])
        except RuntimeError:
            raise PeerError(f"The job's store failed while the group was made: {error}") from None
        raise TimeoutError(
            f"Timed out after {timeout.total_seconds():g} s while the group was made: rank 0 never came; look at its"
            " log, or whether it still runs."
        ) from None


_live: weakref.WeakSet[Group] = weakref.WeakSet()


@atexit.register
def _leave() -> None:
    """A process that ends in good order says goodbye, so that nobody takes it for dead."""
    for group in list(_live):
        group.engine.drain()
        group.control.close()
