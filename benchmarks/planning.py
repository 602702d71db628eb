"""How long planning takes for 1,024 ranks in 4 clusters: the plan, one rank's part of it, and its hash.

python benchmarks/planning.py
"""

from __future__ import annotations

import itertools
import time

from rich.console import Console
from rich.table import Table

from hetccl.plan.lower import lower
from hetccl.plan.planner import Planner
from hetccl.plan.spec import Operation, Spec
from hetccl.reduction import Reduction
from hetccl.topo.model import assemble

SIZES = {
    Operation.ALL_REDUCE: 1 << 28,
    Operation.BROADCAST: 1 << 28,
    Operation.REDUCE: 1 << 28,
    Operation.ALL_GATHER: 1 << 20,
    Operation.REDUCE_SCATTER: 1 << 20,
    Operation.GATHER: 1 << 18,
    Operation.BARRIER: 0,
}


def main() -> None:
    table = Table("ranks", "operation", "chunks", "plan ms", "one rank's part ms", "hash ms", "operations")
    for name in ("contiguous", "interleaved"):
        members = [range(i, 1024, 4) if name == "interleaved" else range(256 * i, 256 * i + 256) for i in range(4)]
        borders = (256, 32, 8, 256)
        topology = assemble([("v", ranks, [10**10 * (i + 1)] * borders[i]) for i, ranks in enumerate(members)])
        planner = Planner(topology)
        for operation, size in SIZES.items():
            spec = Spec(operation, 1024, (size,), "float32", 4, Reduction.SUM)
            times = [time.perf_counter()]
            plan = planner.plan(spec)
            times.append(time.perf_counter())
            program = lower(plan, topology, 5)
            times.append(time.perf_counter())
            assert plan.digest
            times.append(time.perf_counter())
            spent = [f"{1e3 * (after - before):.1f}" for before, after in itertools.pairwise(times)]
            table.add_row(name, operation.value, str(plan.chunks), *spent, str(len(program.operations)))
    Console().print(table)


if __name__ == "__main__":
    main()
