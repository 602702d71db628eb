"""What must wait for what, from what each operation reads and writes.

A program's operations mean what they mean one after the other. Two of them may overlap unless one writes what the
other reads or writes; this is found from their spans, so an algorithm never states dependencies, and pipelining of
chunks comes by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from .program import Call, Op, touched


class _Buffer:
    """The operations that still matter for each stretch of one buffer."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int, int]] = []
        self.writes: list[tuple[int, int, int]] = []

    def read(self, start: int, stop: int, operation: int, waits: set[int]) -> None:
        waits.update(other for a, b, other in self.writes if a < stop and start < b)
        self.reads.append((start, stop, operation))

    def write(self, start: int, stop: int, operation: int, waits: set[int]) -> None:
        for entries in (self.reads, self.writes):
            kept = []
            for a, b, other in entries:
                if a < stop and start < b:
                    waits.add(other)
                    if start <= a and b <= stop and other != operation:
                        continue  # whoever comes later will wait for this write, which waits for the other
                kept.append((a, b, other))
            entries[:] = kept
        self.writes.append((start, stop, operation))


def dependencies(operations: Sequence[Op]) -> tuple[tuple[int, ...], ...]:
    """For each operation, the earlier ones it must wait for."""
    buffers: dict[str, _Buffer] = {}
    result: list[tuple[int, ...]] = []
    fence: int | None = None
    for index, operation in enumerate(operations):
        waits: set[int] = set() if fence is None else {fence}
        if isinstance(operation, Call) and operation.kind == "barrier":
            waits.update(range(index))
            fence = index
        reads, writes = touched(operation)
        for piece in reads:
            buffer = buffers.setdefault(piece.buffer, _Buffer())
            for offset, length in piece.spans:
                buffer.read(offset, offset + length, index, waits)
        for piece in writes:
            buffer = buffers.setdefault(piece.buffer, _Buffer())
            for offset, length in piece.spans:
                buffer.write(offset, offset + length, index, waits)
        waits.discard(index)
        result.append(tuple(sorted(waits)))
    return tuple(result)
