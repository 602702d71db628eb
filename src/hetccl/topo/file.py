"""The file form of a topology: YAML with a validated schema, to plan without hardware or to correct
discovery.

    version: 1
    clusters:
    - vendor: nccl
      ranks: 0-7                # or a list such as [0, 2, 4-7]
      label: a                  # optional
      fabric: 300 GB/s          # optional: what one rank moves inside the cluster
      borders:                  # optional: found from the ranks' hosts and interfaces where absent
      - {rank: 0, link: node0/mlx5_0, bandwidth: 400 Gbit/s}
    ranks: […]                  # optional: what each rank said of itself, in rank order

Bandwidths are bytes per second as whole numbers, or text with a decimal unit: bit/s or B/s with k, M, G or T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..errors import ConfigurationError
from .clusters import HOST_LINK, find_borders
from .model import Border, Cluster, Interface, Rank, Topology
from .schema import ClusterEntry, Document, bandwidth_text, ranks_text

_DEFAULT_FABRIC = Cluster(0, "", (0,), ()).fabric


def load(path: str | Path) -> Topology:
    """The topology that the file describes. Raises ConfigurationError that names file, field and remedy."""
    document = _parse(path)
    entries = sorted(document.clusters, key=lambda entry: entry.ranks)
    size = _check_partition(path, entries)
    ranks = _ranks(path, document, entries, size)
    found = find_borders([[ranks[number] for number in entry.ranks] for entry in entries])
    clusters = []
    for index, entry in enumerate(entries):
        borders = tuple(Border(border.rank, border.link, border.bandwidth) for border in entry.borders)
        fabric = entry.fabric or _DEFAULT_FABRIC
        clusters.append(Cluster(index, entry.vendor, entry.ranks, borders or found[index], entry.label, fabric))
    return Topology(tuple(ranks), tuple(clusters))


def dump(topology: Topology) -> str:
    """The file form, from which `load` makes an equal topology."""
    clusters = []
    for cluster in topology.clusters:
        entry: dict[str, Any] = {"vendor": cluster.vendor, "ranks": ranks_text(cluster.ranks)}
        if cluster.label:
            entry["label"] = cluster.label
        if cluster.fabric != _DEFAULT_FABRIC:
            entry["fabric"] = bandwidth_text(cluster.fabric)
        entry["borders"] = [
            {"rank": border.rank, "link": border.link, "bandwidth": bandwidth_text(border.bandwidth)}
            for border in cluster.borders
        ]
        clusters.append(entry)
    document: dict[str, Any] = {"version": 1, "clusters": clusters}
    if any(rank != _stand_in(topology, rank.rank) for rank in topology.ranks):
        document["ranks"] = [_rank_entry(rank) for rank in topology.ranks]
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)


def override(topology: Topology, path: str | Path, members: Sequence[int] | None = None) -> Topology:
    """`topology` with the file's clusters, labels, borders and fabric in place of those discovered.

    `members` are the group's ranks in the world, for a subgroup: the file describes the world and is cut down
    to them. Size, vendors and libraries must fit what was discovered, else ConfigurationError.
    """
    wanted = load(path)
    if members is not None:
        beyond = [rank for rank in members if rank >= wanted.size]
        if beyond:
            raise ConfigurationError(
                f"The topology file {path} describes {wanted.size} ranks but the group has rank {beyond[0]}; "
                "describe the whole job in it."
            )
        wanted = restrict(wanted, members)
    if wanted.size != topology.size:
        raise ConfigurationError(
            f"The topology file {path} describes {wanted.size} ranks but the job has {topology.size}; "
            "start as many ranks as it describes, or correct its clusters."
        )
    for cluster in wanted.clusters:
        libraries = {topology.ranks[rank].library: rank for rank in cluster.ranks}
        for rank in cluster.ranks:
            vendor = topology.ranks[rank].vendor
            if vendor != cluster.vendor:
                raise ConfigurationError(
                    f"The topology file {path} gives rank {rank} vendor {cluster.vendor}, it runs {vendor}; "
                    "correct the file, or set HETCCL_VENDOR on that rank."
                )
        if len(libraries) > 1:
            listing = ", ".join(f"{name or 'unknown'} (rank {rank})" for name, rank in libraries.items())
            raise ConfigurationError(f"The topology file {path} mixes libraries in one cluster ({listing}); split it.")
    labels = {rank: cluster.label for cluster in wanted.clusters for rank in cluster.ranks}
    return Topology(tuple(replace(rank, label=labels[rank.rank]) for rank in topology.ranks), wanted.clusters)


def restrict(topology: Topology, ranks: Sequence[int]) -> Topology:
    """The topology of a subgroup: its rank i is `ranks[i]` of `topology`.

    Links of borders that are left out pass to the cluster's remaining ranks on the same host. A cluster that
    keeps no link, or a group that comes to be on one host, gets the borders that its hosts and interfaces
    give.
    """
    place = {rank: number for number, rank in enumerate(ranks)}
    members = tuple(replace(topology.ranks[rank], rank=number) for number, rank in enumerate(ranks))
    parts = []
    for cluster in topology.clusters:
        kept = tuple(sorted(place[rank] for rank in cluster.ranks if rank in place))
        if kept:
            parts.append((kept, cluster))
    parts.sort(key=lambda part: part[0])
    found = find_borders([[members[rank] for rank in kept] for kept, _ in parts])
    one_host = len({rank.host for rank in members}) == 1 < len({rank.host for rank in topology.ranks})
    return Topology(
        members,
        tuple(
            replace(
                cluster,
                index=index,
                ranks=kept,
                borders=found[index] if one_host else _inherit(topology, cluster, place) or found[index],
            )
            for index, (kept, cluster) in enumerate(parts)
        ),
    )


def _inherit(topology: Topology, cluster: Cluster, place: dict[int, int]) -> tuple[Border, ...]:
    borders = {place[border.rank]: border for border in cluster.borders if border.rank in place}
    for border in cluster.borders:
        if border.rank in place or border.link == HOST_LINK:
            continue
        host = topology.ranks[border.rank].host
        near = [place[rank] for rank in cluster.ranks if rank in place and topology.ranks[rank].host == host]
        if not near:
            continue
        heir = min(near, key=lambda rank: (borders[rank].bandwidth if rank in borders else 0, rank))
        held = borders.get(heir)
        link = f"{held.link}+{border.link.rpartition('/')[2]}" if held else border.link
        borders[heir] = Border(heir, link, border.bandwidth + (held.bandwidth if held else 0))
    return tuple(replace(borders[rank], rank=rank) for rank in sorted(borders))


def _parse(path: str | Path) -> Document:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"The topology file {path} cannot be read ({error.strerror}); correct the path."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not UTF-8 text"
        raise ConfigurationError(
            f"The topology file {path}{where}, is no valid YAML: {problem}; correct it there."
        ) from None
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"The topology file {path} holds no mapping; begin it with `version: 1` and `clusters:`."
        )
    try:
        return Document.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(
            f"The topology file {path} has a bad field {field}: {message[:1].lower()}{message[1:]}; correct it."
        ) from None


def _check_partition(path: str | Path, entries: Sequence[ClusterEntry]) -> int:
    """Each of 0 … n-1 is in exactly one cluster, and borders lie in their cluster; returns n."""
    seen: dict[int, int] = {}
    for index, entry in enumerate(entries):
        for rank in entry.ranks:
            if rank in seen:
                raise ConfigurationError(
                    f"The topology file {path} lists rank {rank} twice in the clusters' `ranks`; remove one."
                )
            seen[rank] = index
        for border in entry.borders:
            if border.rank not in entry.ranks:
                raise ConfigurationError(
                    f"The topology file {path} makes rank {border.rank} a border of the cluster of ranks "
                    f"{ranks_text(entry.ranks)}, which it is not in; choose one of the cluster's ranks."
                )
    missing = next((rank for rank in range(len(seen)) if rank not in seen), None)
    if missing is not None:
        raise ConfigurationError(
            f"The topology file {path} has no cluster for rank {missing}; the clusters' `ranks` must cover "
            f"0 to {max(seen)}."
        )
    return len(seen)


def _ranks(path: str | Path, document: Document, entries: Sequence[ClusterEntry], size: int) -> list[Rank]:
    ranks = [Rank(0, "", "")] * size
    described = document.ranks
    if described is not None and [entry.rank for entry in described] != list(range(size)):
        raise ConfigurationError(
            f"The topology file {path} must describe in `ranks` each of 0 to {size - 1} once, in order; "
            "complete the section or remove it."
        )
    for index, entry in enumerate(entries):
        for number in entry.ranks:
            ranks[number] = Rank(number, host=f"host{index}", vendor=entry.vendor, label=entry.label)
            if described is not None:
                given = described[number].model_dump(exclude_unset=True)
                if given.get("vendor", entry.vendor) != entry.vendor:
                    raise ConfigurationError(
                        f"The topology file {path} calls rank {number}'s vendor {given['vendor']} in `ranks` "
                        f"but {entry.vendor} in `clusters`; make them agree."
                    )
                given["interfaces"] = tuple(Interface(**one) for one in given.get("interfaces", ()))
                ranks[number] = replace(ranks[number], **given)
    return ranks


def _stand_in(topology: Topology, rank: int) -> Rank:
    """What `load` assumes of a rank that the file does not describe."""
    cluster = topology.cluster_of(rank)
    return Rank(rank, host=f"host{cluster.index}", vendor=cluster.vendor, label=cluster.label)


def _rank_entry(rank: Rank) -> dict[str, Any]:
    entry: dict[str, Any] = {"rank": rank.rank, "host": rank.host, "vendor": rank.vendor, "label": rank.label}
    for field in fields(Rank):
        value = getattr(rank, field.name)
        if field.name not in entry and value != field.default:
            entry[field.name] = value
    if rank.interfaces:
        entry["interfaces"] = [
            {"name": one.name, "address": one.address, "bandwidth": bandwidth_text(one.bandwidth)}
            for one in rank.interfaces
        ]
    if rank.paths:
        entry["paths"] = [list(path) for path in rank.paths]
    return entry
