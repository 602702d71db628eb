"""From ranks to clusters and their borders: a pure function, so all ranks get the same.

Links. Ranks that are all on one host reach each other through its memory: every rank is a border with an
equal share of it. Otherwise each network interface of a cluster's host is a link: one border for each, spread
over the cluster's ranks there. An interface that several clusters use is divided among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .host import UNKNOWN_BANDWIDTH
from .model import Border, Cluster, Rank, Topology

HOST_LINK = "host"
HOST_BANDWIDTH = 5_000_000_000
"""Bytes per second of one rank's share of the host link: about what a shared segment carries between a pair."""


def dissect(ranks: Iterable[Rank]) -> Topology:
    """The topology of `ranks`: one cluster for each (vendor, library, label), in order of their lowest rank.

    Any arrangement goes: interleaved ranks, one-rank clusters, unequal sizes, one cluster. `ranks` are 0 …
    n-1 in order.
    """
    everyone = tuple(ranks)
    groups: dict[tuple[str, str, str], list[Rank]] = {}
    for rank in everyone:
        groups.setdefault((rank.vendor, rank.library, rank.label), []).append(rank)
    borders = find_borders(list(groups.values()))
    return Topology(
        everyone,
        tuple(
            Cluster(index, vendor, tuple(member.rank for member in members), borders[index], label)
            for index, ((vendor, _, label), members) in enumerate(groups.items())
        ),
    )


def find_borders(clusters: Sequence[Sequence[Rank]]) -> list[tuple[Border, ...]]:
    """Each cluster's borders, in rank order: at most one a rank, at least one a cluster, bandwidth > 0."""
    if len({rank.host for members in clusters for rank in members}) <= 1:
        return [tuple(Border(rank.rank, HOST_LINK, HOST_BANDWIDTH) for rank in members) for members in clusters]
    users: dict[tuple[str, str], set[int]] = {}
    bandwidths: dict[tuple[str, str], int] = {}
    for index, members in enumerate(clusters):
        for rank in members:
            for name, bandwidth in _links(rank):
                link = rank.host, name
                users.setdefault(link, set()).add(index)
                bandwidths[link] = min(bandwidth, bandwidths.get(link, bandwidth))
    shares = {link: max(1, bandwidths[link] // len(users[link])) for link in users}
    return [
        tuple(
            sorted(
                (
                    border
                    for host in dict.fromkeys(rank.host for rank in members)
                    for border in _spread([rank for rank in members if rank.host == host], shares)
                ),
                key=lambda border: border.rank,
            )
        )
        for members in clusters
    ]


def _links(rank: Rank) -> list[tuple[str, int]]:
    """A rank without interfaces still has some way out: one link of the assumed bandwidth."""
    return [(one.name, one.bandwidth) for one in rank.interfaces] or [("network", UNKNOWN_BANDWIDTH)]


def _spread(members: Sequence[Rank], shares: dict[tuple[str, str], int]) -> list[Border]:
    """One host's interfaces over the cluster's ranks there: each goes to the least loaded rank that sees it.

    Interfaces in the order that the ranks list them, so the one that reaches the store goes to the first
    rank.
    """
    names = dict.fromkeys(name for rank in members for name, _ in _links(rank))
    carried: dict[int, list[str]] = {rank.rank: [] for rank in members}
    for name in names:
        seeing = [rank.rank for rank in members if name in dict(_links(rank))]
        carried[min(seeing, key=lambda rank: (len(carried[rank]), rank))].append(name)
    host = members[0].host
    return [
        Border(rank, f"{host}/{'+'.join(links)}", sum(shares[host, name] for name in links))
        for rank, links in carried.items()
        if links
    ]
