"""Every operation in real jobs of real libraries: arrangements of clusters × combine modes × paths."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hetccl import vendors
from hetccl.errors import ConfigurationError

WORKER = Path(__file__).with_name("every_operation.py")


def has(vendor: str) -> bool:
    code = f"from hetccl.vendors import find; find({vendor!r}).library()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


THREE = {"TEST_VENDOR": "gloo,mpi,gloo,mpi,gloo", "TEST_CLUSTER": "a,,b,,a"}
ARRANGEMENTS = {
    # name: (ranks, clusters, environment)
    "interleaved": (4, 2, {"TEST_VENDOR": "gloo,mpi"}),
    "border": (4, 2, {"TEST_VENDOR": "gloo,mpi", "HETCCL_COMBINE": "border"}),
    "fill": (4, 2, {"TEST_VENDOR": "gloo,mpi", "HETCCL_COMBINE": "fill"}),
    "chunks": (4, 2, {"TEST_VENDOR": "gloo,mpi", "HETCCL_CHUNKS": "3"}),
    "tcp": (4, 2, {"TEST_VENDOR": "gloo,mpi", "HETCCL_PATHS": "tcp"}),
    "two hosts": (4, 2, {"TEST_VENDOR": "gloo,mpi", "TEST_HOST": "one,one,two,two"}),
    "cluster a host": (4, 2, {"TEST_VENDOR": "gloo,mpi", "TEST_HOST": "one,two"}),
    "latency": (4, 2, {"TEST_VENDOR": "gloo,mpi", "HETCCL_ALGORITHM": "latency"}),
    "latency, tcp": (5, 3, {**THREE, "HETCCL_ALGORITHM": "latency", "HETCCL_PATHS": "tcp"}),
    "whatever is faster": (4, 2, {"TEST_VENDOR": "gloo,mpi", "HETCCL_ALGORITHM": "auto"}),
    "unequal": (5, 2, {"TEST_VENDOR": "gloo,mpi,gloo"}),
    "three clusters, border": (5, 3, {**THREE, "HETCCL_COMBINE": "border"}),
    "three clusters, fill": (5, 3, {**THREE, "HETCCL_COMBINE": "fill"}),
    "one rank each": (3, 3, {"TEST_VENDOR": "gloo,gloo,mpi", "TEST_CLUSTER": "a,b,c"}),
    "gloo alone": (3, 1, {"TEST_VENDOR": "gloo"}),
    "mpi alone": (3, 1, {"TEST_VENDOR": "mpi"}),
    "devices": (4, 2, {"TEST_VENDOR": "gloo,mpi", "TEST_DEVICE": "pretend,", "HETCCL_CHUNKS": "2"}),
    "devices, staged": (4, 2, {"TEST_VENDOR": "gloo,mpi", "TEST_DEVICE": "pretend,", "HETCCL_PATHS": "tcp"}),
    "devices on both sides": (2, 2, {"TEST_VENDOR": "gloo", "TEST_CLUSTER": "a,b", "TEST_DEVICE": "pretend"}),
    "one rank": (1, 1, {"TEST_VENDOR": "gloo"}),
    "three libraries": (6, 3, {"TEST_VENDOR": "gloo,mpi,impi"}),
}  # fmt: skip


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_every_operation(name: str) -> None:
    ranks, clusters, environment = ARRANGEMENTS[name]
    if "impi" in environment["TEST_VENDOR"] and not has("impi"):
        pytest.skip("Intel MPI is not installed here; scripts/setup impi installs it")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HETCCL_", "TEST_"))}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(WORKER)],
        env={
            **clean,
            "HETCCL_ALGORITHM": "bandwidth",
            **environment,
            "TEST_CLUSTERS": str(clusters),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert done.stdout.count("PASSED") == ranks


def test_an_unknown_vendor_is_named() -> None:
    with pytest.raises(ConfigurationError, match="gloo"):
        vendors.find("nonsense")
