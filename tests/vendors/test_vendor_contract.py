"""The contract of a vendor (`vendors/base.py`): three real processes for each library that works here."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch
from vendor_members import Failed, Members

from hetccl.reduction import Reduction, combinable

VENDORS = ("gloo", "mpi", "impi")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
)
REDUCTIONS = [(dtype, r) for dtype in DTYPES for r in Reduction if combinable(r, dtype)]
SIZES = (0, 1, 1003, 100_000)
UNEVEN = ([0, 0, 0], [1, 1, 1], [5, 0, 3], [0, 7, 0], [1000, 1000, 1000], [100_000, 1, 33_333])

pytestmark = pytest.mark.timeout(30)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_reduction = pytest.mark.parametrize(
    ("dtype", "reduction"), REDUCTIONS, ids=[f"{dtype}-{r.value}" for dtype, r in REDUCTIONS]
)


def thorough(dtype: torch.dtype, reduction: Reduction) -> bool:
    """Where all sizes are tried; the rest have one or two."""
    return reduction is Reduction.SUM or dtype is torch.int32


@pytest.fixture(scope="module", params=VENDORS)
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    members = Members(request.param)
    try:
        members.call("library")
    except Failed as error:
        members.end()
        if error.kind != "ConfigurationError":
            raise
        pytest.skip(str(error))
    members.call("connect", "test", 30)
    yield members
    members.call("close")
    assert members.end() == [0, 0, 0]


@each_reduction
def test_all_reduce(members: Members, dtype: torch.dtype, reduction: Reduction) -> None:
    for size in SIZES if thorough(dtype, reduction) else SIZES[2:3]:
        first, *others = members.call("all_reduce", size, dtype, reduction)
        assert others == [first, first]


@pytest.mark.parametrize("size", [1, 17, 1003, 100_000])
@pytest.mark.parametrize("dtype", [t for t in DTYPES if t.is_floating_point], ids=str)
def test_all_reduce_is_bit_identical(members: Members, dtype: torch.dtype, size: int) -> None:
    for reduction in (Reduction.SUM, Reduction.PROD):
        first, *others = members.call("all_reduce_fractions", size, dtype, reduction)
        assert others[0] == first
        assert others[1] == first


@each_reduction
def test_reduce(members: Members, dtype: torch.dtype, reduction: Reduction) -> None:
    for size in SIZES if thorough(dtype, reduction) else SIZES[2:3]:
        members.call("reduce", size, dtype, reduction)


@each_reduction
def test_reduce_scatter(members: Members, dtype: torch.dtype, reduction: Reduction) -> None:
    for sizes in UNEVEN if thorough(dtype, reduction) else UNEVEN[1:3]:
        members.call("reduce_scatter", sizes, dtype, reduction)


@each_dtype
def test_movement(members: Members, dtype: torch.dtype) -> None:
    for size in SIZES:
        members.call("broadcast", size, dtype)
    for sizes in UNEVEN:
        members.call("all_gather", sizes, dtype)
        members.call("all_to_all", sizes, dtype)
        members.call("exchange", sizes, dtype)


def test_several_operations_in_flight(members: Members) -> None:
    members.call("several")


def test_barrier(members: Members) -> None:
    times = members.call("barrier")
    assert min(end for _, end in times) >= max(began for began, _ in times)


@pytest.mark.parametrize("vendor", ["gloo", "mpi"])
def test_a_member_that_never_comes_is_named(vendor: str) -> None:
    two = Members(vendor, range(2))
    try:
        try:
            two.call("library")
        except Failed as error:
            pytest.skip(str(error))
        began = time.monotonic()
        with pytest.raises(Failed, match=r"Timed out.*\[6\]") as caught:
            two.call("connect", "test", 2)
        assert caught.value.kind == "TimeoutError"
        assert time.monotonic() - began < 4
    finally:
        two.end()
