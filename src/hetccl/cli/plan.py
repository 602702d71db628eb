"""`hetccl plan`: what a collective would do on a described topology."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..errors import ConfigurationError
from .show import bandwidth_text, parse_size, size_text, time_text


def plan(
    operation: Annotated[str, typer.Argument(help="all_reduce, all_gather, reduce_scatter, broadcast, …")],
    size: Annotated[str, typer.Argument(help="The whole tensor, such as 1GiB; for all_to_all one rank's input.")],
    topology: Annotated[Path, typer.Option(help="The topology file; `hetccl topo --write` makes one.")],
    dtype: Annotated[str, typer.Option(help="Element type, as torch names it.")] = "float32",
    reduction: Annotated[str, typer.Option(help="sum, avg, max, min, prod, band, bor or bxor.")] = "sum",
    root: Annotated[int, typer.Option(help="Root of a rooted operation; sender of a send.")] = 0,
    combine: Annotated[str, typer.Option(help="auto, border, fill or add.")] = "auto",
    chunks: Annotated[int, typer.Option(help="0: by the cost model.", min=0)] = 0,
    algorithm: Annotated[str, typer.Option(help="auto, bandwidth or latency.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the explanation and the plan as JSON.")] = False,
) -> None:
    """Print the steps of a collective, its bytes per cluster and border link, the bounds and the predicted time."""
    import torch

    from ..config import ALGORITHMS, COMBINE_MODES
    from ..explanation import describe
    from ..inspection import spec_of
    from ..plan.planner import Planner
    from ..topo import file as form

    for name, value, choices in (("combine", combine, COMBINE_MODES), ("algorithm", algorithm, ALGORITHMS)):
        if value not in choices:
            raise ConfigurationError(f"--{name} {value!r} must be one of {', '.join(choices)}")
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ConfigurationError(f"--dtype {dtype!r} is no torch dtype; write float32, bfloat16, int64, …")
    shape = form.load(topology)
    spec = spec_of(operation, parse_size(size) // kind.itemsize, kind, shape.size, reduction, root)
    found = Planner(shape, combine, chunks, algorithm).plan(spec)
    explained = describe(found, shape)
    if as_json:
        typer.echo(json.dumps({"explanation": explained.to_dict(), "plan": json.loads(found.to_json())}, indent=1))
        return

    from rich.console import Console
    from rich.table import Table

    console = Console()
    combined = f", combine {' '.join(explained.combine)}" if explained.combine else ""
    console.print(
        f"{explained.operation} of {size_text(explained.nbytes)} over {shape.size} ranks in {len(shape.clusters)}"
        f" clusters: {explained.algorithm}, {explained.chunks} chunks{combined}, plan {explained.digest}"
    )
    for step in explained.steps:
        console.print(f"  {step}", highlight=False)
    if explained.links:
        table = Table("cluster", "border rank", "link", "out", "in", title="Bytes over each border link")
        for link in explained.links:
            table.add_row(str(link.cluster), str(link.rank), link.name, size_text(link.sent), size_text(link.received))
        for cluster in shape.clusters:
            out, into = explained.egress[cluster.index], explained.ingress[cluster.index]
            speed = bandwidth_text(cluster.bandwidth)
            table.add_row(f"{cluster.index} {cluster.name}", "all", speed, size_text(out), size_text(into))
        console.print(table)
    if explained.crossing is not None:
        console.print(
            f"across borders: {size_text(explained.crossing)}, lower bound {size_text(explained.crossing_bound)}"
        )
    links = "" if explained.seconds_links is None else f"busiest link {time_text(explained.seconds_links)}, "
    console.print(
        f"time: {links}lower bound {time_text(explained.seconds_bound)},"
        f" predicted {time_text(explained.seconds_predicted)}"
    )
