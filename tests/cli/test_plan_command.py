from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetccl.cli.main import app
from hetccl.errors import HetcclError
from hetccl.plan.plan import Plan
from hetccl.topo.file import dump
from hetccl.topo.model import assemble


@pytest.fixture
def topology(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(dump(assemble([("gloo", [0, 2], [10**9, 10**9]), ("mpi", [1], [10**9])])))
    return str(path)


def test_the_plan_in_words(topology: str) -> None:
    result = CliRunner().invoke(app, ["plan", "all_reduce", "1MiB", "--topology", topology])
    assert result.exit_code == 0, result.output
    assert "across borders: 2 MiB, lower bound 2 MiB" in result.output
    assert "predicted" in result.output


def test_the_plan_as_json(topology: str) -> None:
    result = CliRunner().invoke(
        app, ["plan", "all_gather", "3000", "--algorithm", "bandwidth", "--topology", topology, "--json"]
    )
    document = json.loads(result.output)
    assert document["explanation"]["crossing"] == document["explanation"]["crossing_bound"]
    assert Plan.from_json(json.dumps(document["plan"])).spec.ranks == 3


def test_a_small_message_takes_a_latency_plan(topology: str) -> None:
    result = CliRunner().invoke(app, ["plan", "all_reduce", "8", "--topology", topology])
    assert "direct" in result.output
    assert "each straight to each" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["dance", "1"],
        ["all_reduce", "much"],
        ["all_reduce", "1", "--dtype", "x"],
        ["all_reduce", "1", "--algorithm", "x"],
    ],
)
def test_mistakes_are_named(topology: str, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["plan", *arguments, "--topology", topology])
    assert isinstance(result.exception, HetcclError)
