"""What is asked for: one collective, its sizes and its reduction; and who holds what before and after it.

Coordinates, in elements, one space for the whole job:

all_reduce, broadcast, reduce, send   [0, S): the tensor
all_gather, gather                    the gathered tensor: rank r gives [offset_r, offset_r + size_r)
reduce_scatter, scatter               the scattered tensor: rank r gets that interval
all_to_all                            all inputs, one after the other: what p sends to q is one block of p's input
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import accumulate

from ..reduction import Reduction
from .region import Region, interval


class Operation(str, Enum):
    """The collectives that can be planned; a recv is the other side of a send."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"
    SEND = "send"


INPUT = "input"
OUTPUT = "output"

_WHOLE = {Operation.ALL_REDUCE, Operation.BROADCAST, Operation.REDUCE, Operation.SEND}
_REDUCING = {Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER}


@dataclass(frozen=True)
class Spec:
    """One collective over `ranks` ranks. The same on all of them.

    `sizes`, in elements: (S,) for tensors that all ranks have alike; one a rank, or one for all, where ranks have
    shares; for all_to_all the matrix in row order (row: sender), or one block size for all.
    `root` is the root, or the sender of a send, whose receiver is `peer`.
    """

    operation: Operation
    ranks: int
    sizes: tuple[int, ...] = (0,)
    dtype: str = "uint8"
    itemsize: int = 1
    reduction: Reduction | None = None
    root: int = 0
    peer: int = 0

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.operation, self.ranks, self.sizes, self.dtype, self.reduction, self.root, self.peer))

    @property
    def reduces(self) -> bool:
        return self.operation in _REDUCING

    @cached_property
    def _offsets(self) -> list[int]:
        """Where each rank's share (for all_to_all: each rank's input) begins; then the total."""
        if self.operation is Operation.ALL_TO_ALL:
            if len(self.sizes) == 1:
                return [self.sizes[0] * self.ranks * rank for rank in range(self.ranks + 1)]
            rows = [self.row(rank)[-1] for rank in range(self.ranks)]
            return [0, *accumulate(rows)]
        if len(self.sizes) == 1:
            return [self.sizes[0] * rank for rank in range(self.ranks + 1)]
        return [0, *accumulate(self.sizes)]

    def row(self, sender: int) -> list[int]:
        """all_to_all: prefix sums of what `sender` sends to 0, 1, …; the last is the whole."""
        if len(self.sizes) == 1:
            return [self.sizes[0] * rank for rank in range(self.ranks + 1)]
        rows = self._rows
        if sender not in rows:
            rows[sender] = [0, *accumulate(self.sizes[sender * self.ranks : (sender + 1) * self.ranks])]
        return rows[sender]

    @cached_property
    def _rows(self) -> dict[int, list[int]]:
        return {}

    @property
    def length(self) -> int:
        """Elements in the coordinate space."""
        if self.operation is Operation.BARRIER:
            return 0
        return self.sizes[0] if self.operation in _WHOLE else self._offsets[-1]

    @property
    def nbytes(self) -> int:
        return self.length * self.itemsize

    def share(self, rank: int) -> Region:
        """The interval that belongs to this rank (for all_to_all: its input)."""
        return interval(*self.share_bounds(rank))

    def share_bounds(self, rank: int) -> tuple[int, int]:
        """Where a rank's share begins and ends."""
        return self._offsets[rank], self._offsets[rank + 1]

    def block(self, sender: int, receiver: int) -> tuple[int, int]:
        """all_to_all: the coordinates of what `sender` sends to `receiver`."""
        base = self._offsets[sender]
        if len(self.sizes) == 1:
            return base + self.sizes[0] * receiver, base + self.sizes[0] * (receiver + 1)
        row = self.row(sender)
        return base + row[receiver], base + row[receiver + 1]

    def share_owner(self, coordinate: int) -> tuple[int, int]:
        """The rank whose share holds this coordinate, and where that share ends."""
        rank = bisect_right(self._offsets, coordinate) - 1
        return rank, self._offsets[rank + 1]

    def receiver(self, coordinate: int) -> tuple[int, int]:
        """all_to_all: the rank that this element goes to, and where its block ends."""
        if len(self.sizes) == 1:
            block = coordinate // self.sizes[0]
            return block % self.ranks, (block + 1) * self.sizes[0]
        sender, _ = self.share_owner(coordinate)
        base, row = self._offsets[sender], self.row(sender)
        target = bisect_right(row, coordinate - base) - 1
        return target, base + row[target + 1]

    def extent(self, buffer: str, rank: int) -> Region:
        """What of the coordinate space this rank's input or output tensor holds, packed in this order."""
        operation, given = self.operation, buffer == INPUT
        whole = interval(0, self.length)
        nothing = Region(())
        match operation:
            case Operation.ALL_REDUCE | Operation.BROADCAST:
                return whole
            case Operation.REDUCE:
                return whole if given or rank == self.root else nothing
            case Operation.SEND:
                return whole if rank == (self.root if given else self.peer) else nothing
            case Operation.ALL_GATHER:
                return self.share(rank) if given else whole
            case Operation.REDUCE_SCATTER:
                return whole if given else self.share(rank)
            case Operation.GATHER:
                return self.share(rank) if given else whole if rank == self.root else nothing
            case Operation.SCATTER:
                return self.share(rank) if not given else whole if rank == self.root else nothing
            case Operation.ALL_TO_ALL if given:
                return self.share(rank)
            case Operation.ALL_TO_ALL:
                return self._received(rank)
        return nothing

    def _received(self, rank: int) -> Region:
        blocks = (self.block(sender, rank) for sender in range(self.ranks))
        return Region(tuple((start, stop) for start, stop in blocks if stop > start))
