"""`reference`: a plan run in numpy, all ranks in one process, to prove it right.

The programs are run by an adversary: of all operations that may begin, it picks one at random. What is right under
every seed is right under every timing.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from functools import reduce
from typing import Any

import numpy as np

from ..plan.lower import lower
from ..plan.plan import Plan
from ..plan.program import Call, Move, Piece, Program, Receive, Reduce, Send, Set
from ..plan.program import lane_of as lane_of
from ..plan.spec import INPUT, OUTPUT, Operation
from ..reduction import Reduction
from ..topo.model import Topology

Array = np.ndarray[Any, Any]

COMBINE: dict[Reduction, Any] = {
    Reduction.SUM: np.add,
    Reduction.AVG: np.add,
    Reduction.MAX: np.maximum,
    Reduction.MIN: np.minimum,
    Reduction.PROD: np.multiply,
    Reduction.BAND: np.bitwise_and,
    Reduction.BOR: np.bitwise_or,
    Reduction.BXOR: np.bitwise_xor,
}


def identity(reduction: Reduction, dtype: np.dtype[Any]) -> Any:
    """The value that changes nothing."""
    match reduction:
        case Reduction.PROD:
            return 1
        case Reduction.BAND:
            return ~np.zeros((), dtype)
        case Reduction.MAX | Reduction.MIN:
            if dtype.kind == "f":
                return -np.inf if reduction is Reduction.MAX else np.inf
            return np.iinfo(dtype).min if reduction is Reduction.MAX else np.iinfo(dtype).max
        case _:
            return 0


def run(plan: Plan, topology: Topology, inputs: list[Array], outputs: list[Array], seed: int = 0) -> None:
    """Run all ranks' programs; `outputs` are changed in place (all_reduce and broadcast read them, too).

    Arrays are flat, of one dtype. Raises RuntimeError where the programs deadlock or messages don't match.
    """
    _Run(plan, topology, inputs, outputs, random.Random(seed)).finish()


class _Run:
    def __init__(
        self, plan: Plan, topology: Topology, inputs: list[Array], outputs: list[Array], chance: random.Random
    ) -> None:
        self.plan, self.chance = plan, chance
        self.programs = [lower(plan, topology, rank) for rank in range(topology.size)]
        self.memory: list[dict[str, Array]] = []
        for rank, program in enumerate(self.programs):
            scratch = {name: np.full(size, 77, outputs[rank].dtype) for name, size in program.scratch.items()}
            self.memory.append({INPUT: inputs[rank], OUTPUT: outputs[rank], **scratch})
        self.todo = [set(range(len(program.operations))) for program in self.programs]
        self.lanes = [_lanes(program) for program in self.programs]
        self.wires: dict[tuple[int, int], deque[tuple[int, Array]]] = defaultdict(deque)
        self.sent: set[tuple[int, int]] = set()
        """Exchanges (rank, operation) whose sends are on the wires."""

    def finish(self) -> None:
        while any(self.todo):
            ready = [(rank, op) for rank, todo in enumerate(self.todo) for op in todo if self._may(rank, op)]
            self.chance.shuffle(ready)
            if not any(self._try(rank, op) for rank, op in ready):
                raise RuntimeError(f"deadlock: {[sorted(todo) for todo in self.todo]}")
        if any(self.wires.values()):
            raise RuntimeError("messages that nobody received")

    def _may(self, rank: int, op: int) -> bool:
        program, todo = self.programs[rank], self.todo[rank]
        lane = self.lanes[rank].get(op)
        first = lane is None or next(other for other in lane if other in todo) == op
        return first and not any(other in todo for other in program.waits[op])

    def _try(self, rank: int, index: int) -> bool:
        """Run one operation if its partners are ready as well."""
        operation = self.programs[rank].operations[index]
        if index not in self.todo[rank]:
            return True  # ran as somebody's partner
        match operation:
            case Call(kind="exchange"):
                return self._exchange(rank, index, operation)
            case Call():
                return self._collective(operation)
            case Send():
                self.wires[rank, operation.peer].append((operation.step, self._load(rank, operation.piece)))
            case Receive():
                wire = self.wires[operation.peer, rank]
                if not wire:
                    return False
                step, data = wire.popleft()
                if step != operation.step or len(data) != operation.piece.length:
                    raise RuntimeError(f"rank {rank} step {operation.step} met a message of step {step}")
                self._store(rank, operation.piece, data)
            case Reduce():
                data = reduce(COMBINE[self._reduction], [self._load(rank, piece) for piece in operation.sources])
                self._store(rank, operation.target, data)
            case Move():
                self._store(rank, operation.target, self._load(rank, operation.source))
            case Set(kind="fill"):
                data = np.full(operation.target.length, identity(self._reduction, self.memory[rank][OUTPUT].dtype))
                self._store(rank, operation.target, data)
            case Set():
                total = self._load(rank, operation.target)
                count = self.plan.spec.ranks
                self._store(rank, operation.target, total / count if total.dtype.kind == "f" else total // count)
        self.todo[rank].discard(index)
        return True

    @property
    def _reduction(self) -> Reduction:
        return self.plan.spec.reduction or Reduction.SUM

    def _load(self, rank: int, piece: Piece) -> Array:
        memory = self.memory[rank][piece.buffer]
        return np.concatenate([memory[:0], *(memory[o : o + n] for o, n in piece.spans)])

    def _store(self, rank: int, piece: Piece, data: Array) -> None:
        memory, at = self.memory[rank][piece.buffer], 0
        for offset, length in piece.spans:
            memory[offset : offset + length] = data[at : at + length]
            at += length

    def _exchange(self, rank: int, index: int, call: Call) -> bool:
        """Vendor point to point: sends are buffered, receives wait."""
        wires = [self.wires[call.members[place], rank] for place in call.places[1]]
        if (rank, index) not in self.sent:
            for place, piece in zip(call.places[0], call.sources, strict=True):
                self.wires[rank, call.members[place]].append((call.step, self._load(rank, piece)))
            self.sent.add((rank, index))
        if not all(wires):
            return False
        for wire, piece in zip(wires, call.targets, strict=True):
            step, data = wire.popleft()
            if step != call.step or len(data) != piece.length:
                raise RuntimeError(f"rank {rank} step {call.step} met a vendor message of step {step}")
            self._store(rank, piece, data)
        self.todo[rank].discard(index)
        return True

    def _collective(self, call: Call) -> bool:
        """A vendor collective: all members at once, or not yet."""
        partners: list[tuple[int, int, Call]] = []
        for member in call.members:
            mine = self.programs[member].operations
            index = next((i for i in sorted(self.todo[member]) if isinstance(mine[i], Call)), None)
            if index is None or not self._may(member, index):
                return False
            other = mine[index]
            assert isinstance(other, Call)
            if (other.step, other.kind, other.members) != (call.step, call.kind, call.members):
                return False
            partners.append((member, index, other))
        combine = COMBINE[self._reduction]
        match call.kind:
            case "all_reduce":
                total = reduce(combine, [self._load(m, c.targets[0]) for m, _, c in partners])
                for member, _, other in partners:
                    self._store(member, other.targets[0], total)
            case "reduce_scatter":
                totals = [
                    reduce(combine, [self._load(m, c.sources[0].part(*part)) for m, _, c in partners])
                    for part in call.parts
                ]
                for place, (member, _, other) in enumerate(partners):
                    self._store(member, other.targets[0], totals[place])
            case "reduce":
                total = reduce(combine, [self._load(m, c.sources[0]) for m, _, c in partners])
                member, _, other = partners[call.root]
                self._store(member, other.targets[0], total)
            case "all_gather":
                given = [self._load(m, c.sources[0]) for m, _, c in partners]
                for member, _, other in partners:
                    for part, data in zip(other.parts, given, strict=True):
                        self._store(member, other.targets[0].part(*part), data)
            case "broadcast":
                member, _, other = partners[call.root]
                data = self._load(member, other.targets[0])
                for member, _, other in partners:
                    self._store(member, other.targets[0], data)
        for member, index, _ in partners:
            self.todo[member].discard(index)
        return True


def _lanes(program: Program) -> dict[int, list[int]]:
    """Per operation, those that must begin in order with it."""
    lanes: dict[object, list[int]] = defaultdict(list)
    for index, operation in enumerate(program.operations):
        if lane := lane_of(operation):
            lanes[lane].append(index)
    return {index: lane for lane in lanes.values() for index in lane}


def expected(plan: Plan, inputs: list[Array], outputs: list[Array]) -> list[Array | None]:
    """What each rank's output must be, straight from the definition; None where it is not defined."""
    spec = plan.spec
    reduction = spec.reduction or Reduction.SUM

    def total(arrays: list[Array]) -> Array:
        summed = reduce(COMBINE[reduction], arrays)
        if reduction is not Reduction.AVG:
            return np.asarray(summed)
        return np.asarray(summed / len(arrays) if summed.dtype.kind == "f" else summed // len(arrays))

    ranks = range(spec.ranks)
    match spec.operation:
        case Operation.ALL_REDUCE:
            return [total(outputs)] * spec.ranks
        case Operation.BROADCAST:
            return [outputs[spec.root]] * spec.ranks
        case Operation.REDUCE:
            return [total(inputs) if rank == spec.root else None for rank in ranks]
        case Operation.ALL_GATHER:
            return [np.concatenate(inputs)] * spec.ranks
        case Operation.GATHER:
            return [np.concatenate(inputs) if rank == spec.root else None for rank in ranks]
        case Operation.REDUCE_SCATTER | Operation.SCATTER:
            whole = total(inputs) if spec.operation is Operation.REDUCE_SCATTER else inputs[spec.root]
            shares = [spec.share(rank).intervals for rank in ranks]
            return [np.concatenate([whole[:0], *(whole[a:b] for a, b in share)]) for share in shares]
        case Operation.ALL_TO_ALL:
            rows = [spec.row(rank) for rank in ranks]
            return [np.concatenate([inputs[p][rows[p][q] : rows[p][q + 1]] for p in ranks]) for q in ranks]
        case Operation.SEND:
            return [inputs[spec.root] if rank == spec.peer else None for rank in ranks]
    return [None] * spec.ranks
