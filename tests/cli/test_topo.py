"""`hetccl topo` from a file, alone, and as a real torchrun job with vendors that are plug-ins."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hetccl.cli import main as command
from hetccl.topo.file import load

FILE = """
version: 1
clusters:
- {vendor: nccl, ranks: 0-3, borders: [{rank: 0, link: n0/e0, bandwidth: 100 Gbit/s}]}
- {vendor: hccl, ranks: 4-7, label: b, borders: [{rank: 5, link: n1/e0, bandwidth: 1 GB/s}]}
"""


@pytest.fixture
def plugins(tmp_path):
    """A folder for PYTHONPATH with two vendors and a path, found by entry point like any third party's."""
    (tmp_path / "toys.py").write_text(
        "from hetccl.vendors.base import Library\n"
        "class Toy:\n"
        "    devices = ('cpu',)\n"
        "    def __init__(self, name): self.name = name\n"
        "    def library(self): return Library('lib' + self.name, '1.0')\n"
        "class Path:\n"
        "    name = 'toypath'\n"
        "    def offers(self, device): return 'anything'\n"
        "    def connects(self, mine, theirs, same_host): return mine == theirs\n"
        "red, blue, path = Toy('red'), Toy('blue'), Path()\n"
    )
    info = tmp_path / "toys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hetccl.vendors]\nred = toys:red\nblue = toys:blue\n[hetccl.transports]\ntoypath = toys:path\n"
    )
    return tmp_path


@pytest.fixture
def topology_file(tmp_path):
    path = tmp_path / "topology.yaml"
    path.write_text(FILE)
    return path


def run(arguments, plugins, **environ):
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HETCCL_") and k not in names}
    environ = {**clean, "PYTHONPATH": str(plugins), **environ}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


HETCCL = ("-c", "from hetccl.cli.main import main; main()")


def test_file_as_tables(topology_file):
    result = CliRunner().invoke(command.app, ["topo", str(topology_file)])
    assert result.exit_code == 0
    for words in ("nccl", "hccl/b", "0-3", "0: n0/e0 12.5 GB/s", "1 GB/s", "0 - 1", "different hosts"):
        assert words in result.output


def test_file_as_yaml_and_written(topology_file, tmp_path):
    out = tmp_path / "out.yaml"
    result = CliRunner().invoke(command.app, ["topo", str(topology_file), "--yaml", "--write", str(out)])
    assert result.output == out.read_text()
    assert load(out) == load(topology_file)


def test_help_lists_the_settings():
    result = CliRunner().invoke(command.app, ["--help"])
    assert result.exit_code == 0
    assert "HETCCL_CLUSTER" in result.output


@pytest.mark.parametrize(
    ("text", "words"), [("version: 3", "version"), (FILE.replace("4-7", "5-7"), "no cluster for rank 4")]
)
def test_mistakes_are_one_line(topology_file, monkeypatch, capsys, text, words):
    topology_file.write_text(text)
    monkeypatch.setattr(sys, "argv", ["hetccl", "topo", str(topology_file)])
    with pytest.raises(SystemExit) as raised:
        command.main()
    assert raised.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("hetccl: ")
    assert words in error
    assert error.count("\n") == 1


def test_alone(plugins):
    result = run((*HETCCL, "topo"), plugins, HETCCL_VENDOR="red")
    assert result.returncode == 0, result.stderr
    assert "libred 1.0" in result.stdout


def test_unknown_names_are_mistakes(plugins, monkeypatch):
    monkeypatch.syspath_prepend(str(plugins))
    importlib.invalidate_caches()
    monkeypatch.setenv("HETCCL_VENDOR", "rde")
    result = CliRunner().invoke(command.app, ["topo"])
    assert "did you mean red?" in str(result.exception)
    monkeypatch.setenv("HETCCL_VENDOR", "red")
    monkeypatch.setenv("HETCCL_PATHS", "toypath,carrier-pigeon")
    result = CliRunner().invoke(command.app, ["topo"])
    assert "HETCCL_PATHS names 'carrier-pigeon'" in str(result.exception)


SCRIPT = """
import os
rank = int(os.environ["RANK"])
os.environ["HETCCL_VENDOR"] = ("red", "blue", "red", "red")[rank]
os.environ["HETCCL_CLUSTER"] = ("", "", "", "apart")[rank]
if rank == 3:
    os.environ["HETCCL_HOST"] = "elsewhere"
from hetccl.cli.main import main
main()
"""


def torchrun(plugins, script, *arguments):
    path = Path(plugins) / "script.py"
    path.write_text(script)
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(path), *arguments)
    return run(launch, plugins)


def test_torchrun_with_three_clusters(plugins, tmp_path):
    out = tmp_path / "found.yaml"
    result = torchrun(plugins, SCRIPT, "topo", "--write", str(out))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Clusters") == 1
    assert "toypath" in result.stdout
    topology = load(out)
    assert [cluster.name for cluster in topology.clusters] == ["red", "blue", "red/apart"]
    assert [cluster.ranks for cluster in topology.clusters] == [(0, 2), (1,), (3,)]
    assert topology.ranks[3].host == "elsewhere"
    assert topology.ranks[1].library == "libblue"
