"""What `hetccl topo` does on each rank: describe this process, exchange, and choose paths; moves no data."""

from __future__ import annotations

import difflib
import importlib.metadata
import logging
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import HashStore, PrefixStore, Store, rendezvous

from ..config import Config, Launch
from ..errors import ConfigurationError
from ..topo import Rank, Topology
from ..topo.discovery import discover, withdraw
from ..topo.host import locate
from ..vendors.base import Library

logger = logging.getLogger("hetccl")


def explore(launch: Launch | None, timeout: float) -> Topology | None:
    """The topology of the launch, on rank 0; None on the others."""
    limit = timedelta(seconds=timeout)
    if launch is None:
        store: Store = HashStore()
        rank, size = 0, 1
    else:
        store, rank, size = next(rendezvous("env://", timeout=limit))
        store = PrefixStore("hetccl/topo", store)
    topology = _discover(store, rank, size, limit)
    # Rank 0 may serve the store: it leaves last.
    store.set(f"done/{rank}", "")
    if rank == 0:
        store.wait([f"done/{other}" for other in range(size)], limit)
        return topology
    return None


def _discover(store: Store, rank: int, size: int, timeout: timedelta) -> Topology:
    try:
        config = Config.read()
        place = locate(config, store)
        vendor, library, device = _vendor(config)
        paths = _offers(config, device)
    except ConfigurationError as error:
        withdraw(store, rank, size, str(error))
        raise
    return discover(
        store,
        rank,
        size,
        config=config,
        place=place,
        vendor=vendor,
        library=library,
        device=device,
        paths=paths,
        timeout=timeout,
    ).topology


def path_between(one: Rank, other: Rank) -> str:
    """The first path, in the lower rank's order of preference, that works on both sides."""
    low, high = sorted((one, other), key=lambda rank: rank.rank)
    theirs = dict(high.paths)
    transports = _plugins("hetccl.transports")
    for name, mine in low.paths:
        transport = transports.get(name)
        if transport and name in theirs and transport.connects(mine, theirs[name], low.host == high.host):
            return name
    return "none" if low.paths and high.paths else "known once the job runs"


def _offers(config: Config, device: str) -> list[tuple[str, str]]:
    transports = _plugins("hetccl.transports")
    for wanted in config.paths:
        if wanted not in transports:
            raise ConfigurationError(
                f"HETCCL_PATHS names {wanted!r}, which no installed path is called; "
                f"choose among {', '.join(transports) or 'none'}."
            )
    offers = []
    for name, transport in transports.items():
        offer = transport.offers(device) if not config.paths or name in config.paths else None
        if offer is not None:
            offers.append((name, offer))
    return offers


def _vendor(config: Config) -> tuple[str, Library, str]:
    """Vendor name, library and device: as HETCCL_VENDOR says, or the first that takes the device."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = accelerator.type if accelerator else "cpu"
    vendors = _plugins("hetccl.vendors")
    if config.vendor and config.vendor not in vendors:
        near = difflib.get_close_matches(config.vendor, vendors, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigurationError(
            f"HETCCL_VENDOR is {config.vendor!r}, which no installed adaptor is called{hint}; "
            f"set one of {', '.join(vendors) or 'none'}."
        )
    fitting = [name for name, vendor in vendors.items() if device in vendor.devices]
    name = config.vendor or next(iter(fitting), "")
    if not name:
        raise ConfigurationError(
            f"No installed adaptor takes tensors on {device}; install one, or set HETCCL_VENDOR to one of "
            f"{', '.join(vendors) or 'none'}."
        )
    devices = vendors[name].devices
    return name, vendors[name].library(), device if device in devices else devices[0]


def _plugins(group: str) -> dict[str, Any]:
    """The objects that an entry point group names; those that cannot be imported here are left out."""
    found = {}
    for point in importlib.metadata.entry_points(group=group):
        try:
            found[point.name] = point.load()
        except Exception as error:  # a third party's module may fail in any way
            logger.debug("The plugin %s of %s cannot be loaded: %s", point.name, group, error)
    return found
