"""Run by every rank of a job: each operation of torch.distributed against its definition. Prints PASSED."""

from __future__ import annotations

import faulthandler
import functools
import itertools
import math
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import hetccl

faulthandler.dump_traceback_later(150, exit=True)
ReduceOp = dist.ReduceOp
FOLD: dict[ReduceOp, Callable[[list[int]], float]] = {
    ReduceOp.SUM: sum,
    ReduceOp.AVG: lambda values: sum(values) / len(values),
    ReduceOp.MAX: max,
    ReduceOp.MIN: min,
    ReduceOp.PRODUCT: math.prod,
}
BITS: dict[ReduceOp, Callable[[int, int], int]] = {
    ReduceOp.BAND: int.__and__,
    ReduceOp.BOR: int.__or__,
    ReduceOp.BXOR: int.__xor__,
}
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
SIZES = (0, 1, 3, 1001)


def reductions(rank: int, size: int) -> None:
    for dtype, operation, count in itertools.product(FLOATS + INTEGERS, FOLD, SIZES):
        expected = torch.tensor(FOLD[operation]([r % 3 + 1 for r in range(size)])).to(dtype)
        tensor = torch.full((count,), rank % 3 + 1).to(dtype)
        dist.all_reduce(tensor, operation)
        torch.testing.assert_close(tensor, expected.expand(count), msg=f"all_reduce {dtype} {operation} {count}")
    for dtype, operation in itertools.product(INTEGERS, BITS):
        value = rank * 37 % 100 + 1
        expected = torch.tensor(functools.reduce(BITS[operation], (r * 37 % 100 + 1 for r in range(size))))
        tensor = torch.full((77,), value).to(dtype)
        dist.all_reduce(tensor, operation)
        assert torch.equal(tensor, expected.to(dtype).expand(77)), (dtype, operation)
    truth = torch.tensor([rank == 0, True, False])
    dist.all_reduce(truth, ReduceOp.SUM)
    assert truth.tolist() == [True, True, False]
    number = torch.full((5,), 1 + 2j, dtype=torch.complex64)
    dist.all_reduce(number)
    assert torch.equal(number, torch.full((5,), size * (1 + 2j), dtype=torch.complex64))
    for dtype, operation in itertools.product((torch.float32, torch.bfloat16, torch.int16, torch.int64), FOLD):
        expected = torch.tensor(FOLD[operation]([r % 3 + 1 for r in range(size)])).to(dtype)
        for root in range(size):
            tensor = torch.full((101,), rank % 3 + 1).to(dtype)
            dist.reduce(tensor, root, operation)
            wanted = expected if rank == root else torch.tensor(rank % 3 + 1).to(dtype)
            torch.testing.assert_close(tensor, wanted.expand(101), msg=f"reduce {dtype} {operation} {root}")
        output = torch.empty(13, dtype=dtype)
        dist.reduce_scatter_tensor(output, torch.full((13 * size,), rank % 3 + 1).to(dtype), operation)
        torch.testing.assert_close(output, expected.expand(13))
        parts = [torch.full((i,), rank % 3 + 1).to(dtype) for i in range(size)]
        output = torch.empty(rank, dtype=dtype)
        dist.reduce_scatter(output, parts, operation)
        torch.testing.assert_close(output, expected.expand(rank))


def replicas_are_identical(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    for count in (17, 100_003, 1_500_001):
        tensor = torch.randn(count)
        dist.all_reduce(tensor)
        copies = [torch.empty(count) for _ in range(size)]
        dist.all_gather(copies, tensor)
        assert all(torch.equal(copy.view(torch.int32), tensor.view(torch.int32)) for copy in copies), count


def movement(rank: int, size: int) -> None:
    for dtype, count in itertools.product((*FLOATS, *INTEGERS, torch.bool, torch.float8_e4m3fn), SIZES):
        mine = torch.full((count,), rank).to(dtype)
        outputs = [torch.empty(count, dtype=dtype) for _ in range(size)]
        dist.all_gather(outputs, mine)
        assert all(same(o, torch.full((count,), r).to(dtype)) for r, o in enumerate(outputs)), (dtype, count)
    for sizes in (list(range(size)), [100_000 + r for r in range(size)], [7 if r == 0 else 0 for r in range(size)]):
        outputs = [torch.empty(s) for s in sizes]
        dist.all_gather(outputs, torch.full((sizes[rank],), float(rank)))
        assert all((o == r).all() for r, o in enumerate(outputs))
    whole = torch.empty(size * 5)
    dist.all_gather_into_tensor(whole, torch.arange(5.0) + rank)
    assert torch.equal(whole, torch.cat([torch.arange(5.0) + r for r in range(size)]))
    for root, count in itertools.product(range(size), SIZES):
        tensor = torch.full((count,), float(rank))
        dist.broadcast(tensor, root)
        assert (tensor == root).all()
        gathered = [torch.empty(count) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((count,), float(rank)), gathered, root)
        assert gathered is None or all((o == r).all() for r, o in enumerate(gathered))
        output = torch.empty(count)
        dist.scatter(output, [torch.full((count,), float(r)) for r in range(size)] if rank == root else None, root)
        assert (output == rank).all()
    for rows in (0, 3, 1000):
        output = torch.empty(size * rows, 2)
        dist.all_to_all_single(output, torch.full((size * rows, 2), float(rank)))
        assert all((output[r * rows : (r + 1) * rows] == r).all() for r in range(size))
    for scale in (1, 999):
        given, wanted = ([scale * ((rank + other) % 3) for other in range(size)] for _ in range(2))
        output = torch.empty(sum(wanted), 2)
        dist.all_to_all_single(output, torch.full((sum(given), 2), float(rank)), wanted, given)
        assert output[:, 0].tolist() == [float(r) for r in range(size) for _ in range(wanted[r])]
        outputs = [torch.empty(scale * (r + rank)) for r in range(size)]
        dist.all_to_all(outputs, [torch.full((scale * (r + rank),), float(rank)) for r in range(size)])
        assert all((o == r).all() for r, o in enumerate(outputs))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def point_to_point(rank: int, size: int) -> None:
    mine, back = torch.full((9,), float(rank)), torch.empty(9)
    group = dist.group.WORLD  # torch's own functions refuse what a rank sends to itself
    works = [group.recv([back], rank, 5), group.send([mine], rank, 5)]
    for work in works:
        work.wait()
    assert (back == rank).all()
    if size == 1:
        return
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 1_000_000):
        out, into = torch.full((count,), float(rank)), torch.empty(count)
        batch = [dist.P2POp(dist.isend, out, after), dist.P2POp(dist.irecv, into, before)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        assert (into == before).all()
    first, second = torch.empty(3), torch.empty(3)
    works = [dist.irecv(second, before, tag=2), dist.irecv(first, before, tag=1)]
    works += [dist.isend(torch.full((3,), 1.0), after, tag=1), dist.isend(torch.full((3,), 2.0), after, tag=2)]
    for work in works:
        work.wait()
    assert (first == 1).all()
    assert (second == 2).all()
    if rank == 0:
        seen = []
        for _ in range(size - 1):
            tensor = torch.empty(3)
            seen.append(dist.recv(tensor))
            assert (tensor == seen[-1]).all()
        assert sorted(seen) == list(range(1, size))
    else:
        dist.send(torch.full((3,), float(rank)), 0)


def interfaces(rank: int, size: int) -> None:
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": r, "text": "x" * r} for r in range(size)]
    listed = [rank]
    dist.broadcast_object_list(listed, size - 1)
    assert listed == [size - 1]
    tensor = torch.full((8, 8), float(rank)).t()[::2]
    dist.all_reduce(tensor)
    assert (tensor == sum(range(size))).all()
    dist.all_reduce(torch.tensor(1.0))
    with dist._coalescing_manager():
        tensors = [torch.ones(i + 1) for i in range(5)]
        for one in tensors:
            dist.all_reduce(one)
    assert all((one == size).all() for one in tensors)
    with dist._coalescing_manager():
        outputs = [torch.empty(size * (i + 1)) for i in range(3)]
        for i, one in enumerate(outputs):
            dist.all_gather_into_tensor(one, torch.full((i + 1,), float(rank)))
    assert all(torch.equal(o, torch.arange(size).repeat_interleave(i + 1).float()) for i, o in enumerate(outputs))
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(10)]
    doubled = works[-1].get_future().then(lambda future: future.value()[0] * 2)
    for work in works:
        assert work.wait(timedelta(seconds=30))
        while os.environ.get("TEST_DEVICE") and not work.is_completed():
            time.sleep(0.001)  # on a device, wait() orders streams
        assert work.is_completed()
    assert (doubled.wait() == 2 * size).all()
    dist.barrier()


def groups(rank: int, size: int) -> None:
    for members in ([0], list(range(0, size, 2)), list(range(size))[::-1]):
        group = dist.new_group(members)
        if rank in members:
            tensor = torch.ones(5)
            dist.all_reduce(tensor, group=group)
            assert (tensor == len(members)).all()
            assert hetccl.topology(group).size == len(members)
    if size == 4:
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        for name in ("a", "b"):
            tensor = torch.ones(4)
            dist.all_reduce(tensor, group=mesh.get_group(name))
            assert (tensor == 2).all()


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name in ("VENDOR", "CLUSTER", "HOST"):
        values = os.environ.get(f"TEST_{name}", "").split(",")
        if values[rank % len(values)]:
            os.environ[f"HETCCL_{name}"] = values[rank % len(values)]
    devices = os.environ.get("TEST_DEVICE", "").split(",")
    if devices[rank % len(devices)] == "pretend":
        import pretend_device

        pretend_device.install()
    dist.init_process_group("hetccl", timeout=timedelta(seconds=60))
    clusters = len(hetccl.topology().clusters)
    assert clusters == int(os.environ["TEST_CLUSTERS"]), hetccl.topology()
    reductions(rank, size)
    replicas_are_identical(rank, size)
    movement(rank, size)
    point_to_point(rank, size)
    interfaces(rank, size)
    groups(rank, size)
    explained = hetccl.explain("all_reduce", 1000, torch.float32)
    assert explained.crossing_bound == 2 * (clusters - 1) * 4000
    assert (explained.crossing == explained.crossing_bound) == (explained.algorithm != "direct" or size == clusters)
    assert clusters > 1 or not hetccl.traffic().cross_sent
    dist.destroy_process_group()
    print("PASSED", flush=True)
    sys.stdout.flush()


main()
