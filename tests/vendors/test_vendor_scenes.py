"""What a vendor must stand beyond single calls: layouts that differ, calls in flight, and bad starts and ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from hetccl import vendors
from hetccl.errors import ConfigurationError, UnsupportedError
from hetccl.reduction import Reduction
from hetccl.vendors.alone import Alone
from hetccl.vendors.skeleton import Skeleton

VENDORS = ("gloo", "mpi", "impi")
MPI = ("mpi", "impi")
SIZE = 3

pytestmark = pytest.mark.timeout(60)


def play(scene: str, vendor: str, seconds: float = 40) -> list[tuple[int, str, str]]:
    """Status, output and error output of every member. None outlives the test."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    script = Path(__file__).with_name("vendor_scenes.py")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HETCCL_", "PMI_"))}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), scene, vendor, str(place), str(SIZE), str(store.port)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for place in range(SIZE)
    ]
    end = time.monotonic() + seconds
    try:
        results = []
        for process in processes:
            output, errors = process.communicate(timeout=max(0.1, end - time.monotonic()))
            results.append((process.returncode, output, errors))
        if any("was not found" in errors for _, _, errors in results):
            pytest.skip(f"{vendor} is not installed")
        return results
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("vendor", VENDORS)
def test_members_agree_and_end_in_silence(vendor: str) -> None:
    assert play("agree", vendor) == [(0, "end of agree\n", "")] * SIZE


@pytest.mark.parametrize("vendor", MPI)
def test_later_communicators_are_within_the_first(vendor: str) -> None:
    first, *others = play("subset", vendor)
    assert "cannot be joined by ranks 7" in first[2]
    assert others == [(0, "end of subset\n", "")] * (SIZE - 1)


@pytest.mark.parametrize("vendor", VENDORS)
def test_exit_does_not_wait_for_a_dead_peer(vendor: str) -> None:
    *others, killed = play("killed", vendor, seconds=30)
    assert killed[0] == -9
    assert others == [(0, "end of killed\n", "")] * (SIZE - 1)


def test_one_member_needs_no_library() -> None:
    communicator = Alone()
    source, target = torch.arange(5), torch.zeros(5, dtype=torch.int64)
    assert communicator.reduce(source, target, Reduction.SUM, 0).test()
    assert torch.equal(source, target)


def test_unknown_vendor_names_the_known() -> None:
    with pytest.raises(ConfigurationError, match=r"gloo.*mpi"):
        vendors.find("no-such-vendor")


def test_default_is_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, name in ((False, "gloo"), (True, "nccl")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda device=device: device)
        assert vendors.default().name == name


def test_what_nobody_can_reduce_is_refused_at_once() -> None:
    class Partial(Skeleton):
        def __init__(self) -> None:
            self.vendor, self.members = vendors.find("gloo"), "0, 1"

    Partial.__abstractmethods__ = frozenset()
    with pytest.raises(UnsupportedError, match=r"float32.*bxor"):
        Partial().all_reduce(torch.ones(3), Reduction.BXOR)  # type: ignore[abstract]
