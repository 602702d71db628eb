"""`hetccl topo`: the ranks, clusters, borders and paths of a job, from a file, a launch or this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import Launch
from ..errors import ConfigurationError
from .show import bandwidth_text, ranks_text, unique

if TYPE_CHECKING:
    from rich.table import Table

    from ..topo import Cluster, Rank, Topology

_BORDERS_PROBED = 8


def topo(
    file: Annotated[Path | None, typer.Argument(help="A topology file to show instead of exploring.")] = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print the file form instead of tables.")] = False,
    write: Annotated[Path | None, typer.Option(help="Also write the file form here.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the other ranks.")] = 60,
) -> None:
    """Show the clusters, borders and paths of a job.

    Under torchrun (torchrun --nproc-per-node 4 --no-python hetccl topo) the ranks explore together and rank 0
    shows the result; started alone, this machine is shown as a job of one rank; with FILE, the file is shown.
    """
    from ..topo import file as form
    from .explore import explore

    launch = Launch.read()
    if file is not None:
        topology: Topology | None = form.load(file) if launch is None or launch.rank == 0 else None
    else:
        topology = explore(launch, timeout)
    if topology is None:
        return
    if write is not None:
        try:
            write.write_text(form.dump(topology), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--write cannot write {write} ({error.strerror}); choose another file.") from None
    if yaml:
        typer.echo(form.dump(topology), nl=False)
    else:
        _print(topology)


def _print(topology: Topology) -> None:
    from rich.console import Console

    # A pipe has no width of its own: without one, rich would cut the cells at 80 columns.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    for table in (_rank_table(topology), _cluster_table(topology), _path_table(topology)):
        if table.row_count:
            console.print(table)


def _table(title: str, *columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _rank_table(topology: Topology) -> Table:
    table = _table("Ranks", "rank", "host", "vendor", "library", "device", "interfaces", "torch")
    for rank in topology.ranks:
        interfaces = unique(f"{one.name} {one.address} {bandwidth_text(one.bandwidth)}" for one in rank.interfaces)
        library = f"{rank.library} {rank.version}".strip() or "-"
        table.add_row(str(rank.rank), rank.host, rank.vendor, library, rank.device, interfaces, rank.torch or "-")
    return table


def _cluster_table(topology: Topology) -> Table:
    table = _table("Clusters", "cluster", "name", "ranks", "borders (rank: link)", "B_i", "fabric")
    for cluster in topology.clusters:
        table.add_row(
            str(cluster.index),
            cluster.name,
            ranks_text(cluster.ranks),
            _borders_text(cluster),
            bandwidth_text(cluster.bandwidth),
            bandwidth_text(cluster.fabric),
        )
    return table


def _borders_text(cluster: Cluster) -> str:
    """One entry for borders that share link name and bandwidth, as all have on one host."""
    groups: dict[tuple[str, int], list[int]] = {}
    for border in cluster.borders:
        groups.setdefault((border.link, border.bandwidth), []).append(border.rank)
    return "\n".join(
        f"{ranks_text(ranks)}: {link} {bandwidth_text(bandwidth)}{' each' if len(ranks) > 1 else ''}"
        for (link, bandwidth), ranks in groups.items()
    )


def _path_table(topology: Topology) -> Table:
    from .explore import path_between

    table = _table("Paths between clusters", "clusters", "path", "why")
    for first in topology.clusters:
        for second in topology.clusters[first.index + 1 :]:
            pairs = list(_border_pairs(topology, first, second))
            hosts = unique("same host" if a.host == b.host else "different hosts" for a, b in pairs)
            chosen = unique(path_between(a, b) for a, b in pairs)
            offered = unique(f"rank {one.rank} offers {_names(one)}" for one in pairs[0])
            table.add_row(f"{first.index} - {second.index}", chosen, f"{hosts}; {offered}")
    return table


def _border_pairs(topology: Topology, first: Cluster, second: Cluster) -> Iterator[tuple[Rank, Rank]]:
    for one in first.borders[:_BORDERS_PROBED]:
        for other in second.borders[:_BORDERS_PROBED]:
            yield topology.ranks[one.rank], topology.ranks[other.rank]


def _names(rank: Rank) -> str:
    return "+".join(name for name, _ in rank.paths) or "nothing known"
