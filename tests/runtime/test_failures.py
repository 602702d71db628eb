"""What goes wrong ends in one clear sentence on every rank, and promptly; and errors before any data moves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hetccl

WORKER = Path(__file__).with_name("failing_rank.py")


def run(case: str, victim: int, stopped: bool = False, **environment: str) -> list[str]:
    """What each of four ranks printed. Started without torchrun, which would end the survivors.

    Each must end with exit code 0, but the victim, which may have been killed, or be `stopped` and print nothing.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HETCCL_")}
    ranks = []
    for rank in range(4):
        variables = {"RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        vendor = {"HETCCL_VENDOR": ("gloo", "mpi")[rank % 2], "VICTIM": str(victim), "OMP_NUM_THREADS": "1"}
        ranks.append(
            subprocess.Popen(
                [sys.executable, str(WORKER), case],
                env={**clean, **variables, **vendor, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = ["" if stopped and r == victim else p.communicate(timeout=60)[0] for r, p in enumerate(ranks)]
        assert not any(p.returncode for r, p in enumerate(ranks) if r != victim), outputs
        return outputs
    finally:
        for process in ranks:
            process.kill()


def raised(output: str) -> tuple[float, str]:
    (line,) = [line for line in output.splitlines() if line.startswith("RAISED")]
    _, when, text = line.split(" ", 2)
    return float(when), text


@pytest.mark.timeout(90)
@pytest.mark.parametrize("victim", [0, 1, 2, 3])
def test_survivors_name_a_killed_rank(victim: int) -> None:
    before = set(os.listdir("/dev/shm"))
    outputs = run("kill", victim)
    killed = float(outputs[victim].split("KILLED ")[1].split()[0])
    for rank, output in enumerate(outputs):
        if rank != victim:
            when, text = raised(output)
            assert text.startswith("PeerError"), output
            assert f"rank {victim} " in text
            assert when - killed < 2, output
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.timeout(90)
def test_a_stopped_rank_is_named_at_the_deadline() -> None:
    for output in run("stop", 1, stopped=True, DEADLINE="3")[::2]:
        _, text = raised(output)
        assert text.startswith("TimeoutError: Timed out"), text
        assert "rank 1 (" in text.partition("did not call it")[2]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("case", ["pause", "impatient", "refused", "silent"])
def test_what_costs_time_only_or_is_refused_leaves_the_group_usable(case: str) -> None:
    before = set(os.listdir("/dev/shm"))
    for output in run(case, 2, DEADLINE="15"):
        assert "NO ERROR" in output, output
    if case == "silent":
        assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("HETCCL_VENDOR", "nonsense", "no vendor adaptor 'nonsense'"),
        ("HETCCL_COMBINE", "fill", "different values of HETCCL_COMBINE (auto on ranks 0, 1, 3; fill on rank 2)"),
        ("HETCCL_PATHS", "pigeon", "pigeon"),
    ],
)
def test_a_setting_that_does_not_fit_is_told_to_all_at_the_start(setting: str, value: str, words: str) -> None:
    for rank, output in enumerate(run("settings", 2, SETTING=setting, VALUE=value)):
        _, text = raised(output)
        assert text.startswith("ConfigurationError"), text
        assert words in text
        assert rank == 2 or "ank 2" in text
        assert float(output.split("TOOK ")[1].split()[0]) < 10


@pytest.mark.timeout(90)
def test_a_rank_that_does_not_come_is_named() -> None:
    outputs = run("absent", 3, DEADLINE="4")
    for rank in range(3):
        _, text = raised(outputs[rank])
        assert text.startswith("TimeoutError: Timed out"), text
        assert "all_reduce(float32[7], SUM)" in text
        assert "operation 2" in text
        assert "rank 3 (" in text.partition("did not call it")[2]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("case", ["sizes", "operations", "reductions", "roots", "dtypes"])
def test_different_calls_are_shown_side_by_side(case: str) -> None:
    for output in run(case, 2, DEADLINE="10"):
        _, text = raised(output)
        assert text.startswith("DesyncError"), text
        assert "rank 0 (" in text
        assert "rank 2 (" in text


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> object:
    store = tmp_path_factory.mktemp("store") / "file"
    dist.init_process_group(
        "hetccl", init_method=f"file://{store}", rank=0, world_size=1, timeout=timedelta(seconds=20)
    )
    yield None
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_bad_arguments_are_refused_before_data_moves() -> None:
    with pytest.raises(hetccl.UnsupportedError, match="band"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    with pytest.raises(hetccl.UnsupportedError, match="float8"):
        dist.all_reduce(torch.ones(3).to(torch.float8_e4m3fn))
    with pytest.raises(hetccl.ArgumentError, match="meta"):
        dist.all_reduce(torch.ones(3, device="meta"))
    with pytest.raises(hetccl.ArgumentError, match="elements"):
        dist.reduce_scatter_tensor(torch.empty(2), torch.ones(3))
    with pytest.raises(hetccl.ArgumentError, match="splits"):
        dist.all_to_all_single(torch.empty(3), torch.ones(3), [2], [3])
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1, 1, 1]
    with pytest.raises(hetccl.ArgumentError, match="no operation"):
        hetccl.explain("dance", 10)
