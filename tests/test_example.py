"""The main job, shortened, as a user starts it: torchrun, separate processes, the real libraries."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run_example(*arguments: str, ranks: int = 4, timeout: float = 100) -> tuple[int, str]:
    """Exit status and output. Every process of the job is gone afterwards, also after a time-out."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(ROOT / "examples" / "train_mixed.py"), *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HETCCL_")}
    environ["OMP_NUM_THREADS"] = "1"
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # torchrun ends its workers on SIGTERM; killed outright, it would orphan them.
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        pytest.fail(f"the example took longer than {timeout} s:\n{output}")
    return process.returncode, output


def crossed_and_bound(output: str) -> tuple[int, int]:
    found = re.search(r"([\d,]+) bytes crossed between clusters; lower bound .* = ([\d,]+) \(", output)
    assert found, output
    crossed, bound = (int(text.replace(",", "")) for text in found.groups())
    return crossed, bound


def test_example_runs_on_plain_gloo() -> None:
    status, output = run_example("--backend", "gloo", "--steps", "4")
    assert status == 0, output
    assert "FAIL" not in output


def test_two_vendors_train_together() -> None:
    status, output = run_example("--steps", "6")
    assert status == 0, output
    crossed, bound = crossed_and_bound(output)
    assert 0 < bound <= crossed
    assert re.search(r"gloo\S*: ranks \[0, 2\]", output), output
    assert re.search(r"mpi\S*: ranks \[1, 3\]", output), output


def test_unequal_clusters_train_together() -> None:
    status, output = run_example("--steps", "4", "--vendors", "gloo,mpi,gloo", ranks=3)
    assert status == 0, output
    assert re.search(r"gloo\S*: ranks \[0, 2\]", output), output


def test_one_vendor_crosses_nothing() -> None:
    status, output = run_example("--steps", "4", "--vendors", "gloo", ranks=2)
    assert status == 0, output
    assert crossed_and_bound(output) == (0, 0)


@pytest.mark.skipif(
    not (Path(sys.prefix) / "impi" / "lib" / "libmpi.so.12").exists(), reason="Intel MPI is not installed"
)
def test_three_vendors_train_together() -> None:
    status, output = run_example("--steps", "4", "--vendors", "gloo,mpi,impi")
    assert status == 0, output
    assert "k = 3" in output, output
