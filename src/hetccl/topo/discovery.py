"""Discovery: every rank writes one record to the store, reads all others', and derives the same topology.

Two round trips a rank: one set, then one wait and one read of all keys. Records are JSON, never pickled: what
comes from the network is parsed, not executed. A rank that cannot take part publishes the reason in its
record, so the others fail at once with that reason instead of waiting for their time-out.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import Store

from ..config import SETTINGS, Config
from ..errors import ConfigurationError, PeerError, TimeoutError
from ..vendors.base import Library
from .clusters import dissect
from .host import Place
from .model import Interface, Rank, Topology

_KEY, _TOLD = "hetccl/record/{}", "hetccl/told/{}"
_LINGER = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Discovery:
    """What the exchange found; equal on every rank. `locations[r]` is where rank r's endpoint listens."""

    topology: Topology
    locations: tuple[str, ...]


@functools.cache
def version() -> str:
    """The version of this package, or "unknown" in a tree that was never installed."""
    try:
        return importlib.metadata.version("hetccl")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def discover(
    store: Store,
    rank: int,
    size: int,
    *,
    config: Config,
    place: Place,
    vendor: str,
    library: Library,
    device: str = "cpu",
    paths: Sequence[tuple[str, str]] = (),
    location: str = "",
    timeout: timedelta = timedelta(minutes=5),
    members: Sequence[int] | None = None,
) -> Discovery:
    """Exchange records through `store` (private to the group) and derive the topology.

    `rank` and `size` are the group's; `members`, for a subgroup, its ranks in the world, by which a topology
    file that describes the world is cut down to the group. `place` is `host.locate(config, store)`, `paths`
    what the transports offer in order of preference, `location` free text for the fabric. Collective over the
    group: once a group, since keys stay.

    Raises ConfigurationError on all ranks alike where versions or shared settings differ, where a rank called
    `withdraw`, or where the topology file does not fit; TimeoutError that names the ranks that never came;
    PeerError where the store dies.
    """
    own = Rank(
        rank,
        host=place.host,
        vendor=vendor,
        library=library.name,
        version=library.version,
        label=config.cluster,
        device=device,
        torch=torch.__version__,
        hetccl=version(),
        interfaces=place.interfaces,
        paths=tuple((name, offer) for name, offer in paths),
    )
    try:
        settings = _shared_settings(config)
    except ConfigurationError as error:
        withdraw(store, rank, size, str(error))
        raise
    record = {
        "hetccl": version(),
        "size": size,
        "settings": settings,
        "location": location,
        "rank": asdict(own),
    }
    _publish(store, rank, record)
    records = _collect(store, size, timeout)
    try:
        _agree(records, size)
    except ConfigurationError:
        _linger(store, rank, size)
        raise
    topology = dissect([_rank(number, record.get("rank")) for number, record in enumerate(records)])
    if config.topology:
        from .file import override  # pydantic and yaml are slow to import, and needed only here

        topology = override(topology, config.topology, members)
    return Discovery(topology, tuple(str(record.get("location", "")) for record in records))


def withdraw(store: Store, rank: int, size: int, reason: str) -> None:
    """Tell the others why this rank cannot take part: they raise ConfigurationError with the reason."""
    _publish(store, rank, {"hetccl": version(), "error": reason})
    _linger(store, rank, size)


def _linger(store: Store, rank: int, size: int) -> None:
    """Rank 0, whose process often serves the store and is about to end, stays a moment until the others know why."""
    with contextlib.suppress(RuntimeError):
        store.set(_TOLD.format(rank), "")
        if rank == 0:
            store.wait([_TOLD.format(other) for other in range(size)], _LINGER)


def _publish(store: Store, rank: int, record: Mapping[str, object]) -> None:
    store.set(_KEY.format(rank), json.dumps(record, ensure_ascii=False))


def _collect(store: Store, size: int, timeout: timedelta) -> list[dict[str, Any]]:
    keys = [_KEY.format(number) for number in range(size)]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        try:
            missing = [number for number, key in enumerate(keys) if not store.check([key])]
        except RuntimeError:
            raise PeerError(f"The job's store failed while ranks exchanged records: {error}") from None
        arrived = [(number, key) for number, key in enumerate(keys) if number not in set(missing)]
        _raise_withdrawn((number, _decode(number, bytes(store.get(key)))) for number, key in arrived)
        if missing:
            raise TimeoutError(
                f"Timed out after {timeout.total_seconds():g} s while the group was made: "
                f"{_name(missing)} of {size} never came; look at their logs, or whether they still run."
            ) from None
    extended: Any = store  # torch's stubs lack has_extended_api
    try:
        texts = store.multi_get(keys) if extended.has_extended_api() else [store.get(key) for key in keys]
    except RuntimeError as error:
        raise PeerError(f"The job's store failed while ranks exchanged records: {error}") from None
    return [_decode(number, bytes(text)) for number, text in enumerate(texts)]


def _decode(number: int, text: bytes) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError:
        record = None
    sound = isinstance(record, dict) and isinstance(record.get("hetccl"), str)
    if not isinstance(record, dict) or not sound or not isinstance(record.get("settings", {}), dict):
        raise ConfigurationError(
            f"Rank {number} wrote a record that is not hetccl's; install the same hetccl on all hosts."
        )
    return record


def _agree(records: Sequence[Mapping[str, Any]], size: int) -> None:
    """Everything that must be equal, checked from the outside in: withdrawals, version, size, settings."""
    _raise_withdrawn(enumerate(records))
    _equal("hetccl versions", (record["hetccl"] for record in records), "install one version on all hosts")
    _equal("group sizes", (record.get("size", size) for record in records), "start all ranks with one world size")
    for name in sorted({name for record in records for name in record.get("settings", {})}):
        values = (record.get("settings", {}).get(name, "") for record in records)
        _equal(f"values of {name}", values, "set it alike on all ranks, or nowhere")


def _raise_withdrawn(records: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
    for number, record in records:
        if "error" in record:
            raise ConfigurationError(f"Rank {number} cannot take part: {record['error']}")


def _equal(what: str, values: Iterable[object], remedy: str) -> None:
    holders: dict[object, list[int]] = {}
    for number, value in enumerate(values):
        holders.setdefault(value, []).append(number)
    if len(holders) > 1:
        listing = "; ".join(f"{value or 'unset'} on {_name(ranks)}" for value, ranks in holders.items())
        raise ConfigurationError(f"The ranks have different {what} ({listing}): {remedy}.")


def _name(ranks: Sequence[int], most: int = 16) -> str:
    """ "rank 3" or "ranks 1, 2, 5 and 7 more"."""
    listing = ", ".join(map(str, ranks[:most]))
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {listing}{more}"


def _shared_settings(config: Config) -> dict[str, str]:
    settings = {setting.name: str(getattr(config, setting.field)) for setting in SETTINGS if setting.shared}
    settings["HETCCL_TOPOLOGY"] = _file_digest(config.topology) if config.topology else ""
    return settings


def _file_digest(path: str) -> str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The file {path} that HETCCL_TOPOLOGY names cannot be read ({error.strerror}); "
            "correct the path or unset it."
        ) from None
    return f"content {hashlib.sha256(content).hexdigest()[:12]}"


def _rank(number: int, fields: Any) -> Rank:
    try:
        rank = Rank(
            **{
                **fields,
                "interfaces": tuple(Interface(**entry) for entry in fields["interfaces"]),
                "paths": tuple((str(name), str(offer)) for name, offer in fields["paths"]),
            }
        )
        if any(not isinstance(one.bandwidth, int) or one.bandwidth < 1 for one in rank.interfaces):
            raise ValueError
    except (TypeError, ValueError, KeyError):
        raise ConfigurationError(
            f"Rank {number} wrote a record that cannot be read; install the same hetccl on all hosts."
        ) from None
    if rank.rank != number:
        raise ConfigurationError(f"Two processes act as rank {number}; give each process its own RANK.")
    return rank
