"""Every plan, run by an adversarial scheduler in numpy, against the definition of its collective."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import specs, topologies

from hetccl.plan.plan import Plan
from hetccl.plan.planner import Planner
from hetccl.plan.program import Program
from hetccl.plan.spec import INPUT, OUTPUT, Operation, Spec
from hetccl.readers import reference
from hetccl.reduction import Reduction
from hetccl.topo.model import Topology, assemble


def run_and_compare(plan: Plan, topology: Topology, seed: int, dtype: str = "int64") -> None:
    spec, chance = plan.spec, np.random.default_rng(seed)

    def values(buffer: str) -> list[np.ndarray]:
        lengths = [spec.extent(buffer, rank).length for rank in range(spec.ranks)]
        return [chance.integers(-4, 5, length).astype(dtype) for length in lengths]

    inputs, outputs = values(INPUT), values(OUTPUT)
    given_inputs = [array.copy() for array in inputs]
    expected = reference.expected(plan, given_inputs, [array.copy() for array in outputs])
    reference.run(plan, topology, inputs, outputs, seed)
    for rank in range(spec.ranks):
        np.testing.assert_array_equal(inputs[rank], given_inputs[rank], "an input was changed")
        if expected[rank] is not None:
            np.testing.assert_array_equal(outputs[rank], expected[rank], f"rank {rank}")


@settings(max_examples=1500)
@given(st.data())
def test_every_plan_computes_its_collective(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    spec = data.draw(specs(topology.size))
    mode = data.draw(st.sampled_from(["auto", "border", "fill", "add"]))
    chunks = data.draw(st.sampled_from([0, 1, 2, 5]))
    algorithm = data.draw(st.sampled_from(["auto", "bandwidth", "latency"]))
    plan = Planner(topology, mode, chunks, algorithm).plan(spec)
    run_and_compare(plan, topology, data.draw(st.integers(0, 1 << 30)))


@pytest.mark.parametrize("mode", ["border", "fill", "add"])
@pytest.mark.parametrize("reduction", list(Reduction))
@pytest.mark.parametrize("operation", [Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER])
def test_every_reduction_in_every_mode(mode: str, reduction: Reduction, operation: Operation) -> None:
    topology = assemble([("a", [0, 2, 5], [3, 1]), ("b", [1], [1]), ("c", [3, 4, 6, 7], [2, 2, 2, 2])])
    for size in (0, 1, 3, 1000):
        spec = Spec(operation, 8, (size,), "int64", 8, reduction, 5)
        run_and_compare(Planner(topology, mode, 2).plan(spec), topology, size)
        run_and_compare(Planner(topology, algorithm="latency").plan(spec), topology, size)


def test_average_of_floats() -> None:
    topology = assemble([("a", [0, 2], [1, 1]), ("b", [1], [1])])
    for mode in ("border", "fill", "add"):
        plan = Planner(topology, mode).plan(Spec(Operation.ALL_REDUCE, 3, (100,), "float64", 8, Reduction.AVG))
        run_and_compare(plan, topology, 7, "float64")


def test_a_program_without_its_waits_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adversary really looks for races: without the hazards' waits it finds one."""
    topology = assemble([("a", [0, 2], [1, 1]), ("b", [1, 3], [1, 1])])
    plan = Planner(topology, "add", 3).plan(Spec(Operation.ALL_REDUCE, 4, (999,), "int64", 8, Reduction.SUM))
    honest = reference.lower

    def careless(*arguments: object) -> Program:
        program = honest(*arguments)  # type: ignore[arg-type]
        empty = tuple(() for _ in program.operations)
        return Program(program.rank, program.operations, empty, program.scratch, program.extents)

    monkeypatch.setattr(reference, "lower", careless)
    failures = 0
    for seed in range(20):
        try:
            run_and_compare(plan, topology, seed)
        except (AssertionError, RuntimeError):
            failures += 1
    assert failures > 0
