"""What must wait for what, from what each operation reads and writes.

A program's operations mean what they mean one after the other. Two of them may overlap unless one writes what the
other reads or writes; this is found from their spans, so an algorithm never states dependencies, and pipelining of
chunks comes by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from .program import Call, Op, touched

Spans = tuple[tuple[int, int], ...]


class _Buffer:
    """The accesses of one buffer that may still matter: (first, last, spans, operation)."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int, Spans, int]] = []
        self.writes: list[tuple[int, int, Spans, int]] = []

    def read(self, spans: Spans, operation: int, waits: set[int]) -> None:
        first, last = spans[0][0], spans[-1][0] + spans[-1][1]
        for a, b, others, other in self.writes:
            if a < last and first < b and other not in waits and _overlap(spans, others):
                waits.add(other)
        self.reads.append((first, last, spans, operation))

    def write(self, spans: Spans, operation: int, waits: set[int]) -> None:
        first, last = spans[0][0], spans[-1][0] + spans[-1][1]
        for entries in (self.reads, self.writes):
            covered = False
            for a, b, others, other in entries:
                if a < last and first < b and (other in waits or _overlap(spans, others)):
                    waits.add(other)
                    covered |= first <= a and b <= last
            if covered and len(spans) == 1:
                # Whoever comes later waits for this write, which waits for what it covers.
                entries[:] = [e for e in entries if not (first <= e[0] and e[1] <= last) or e[3] == operation]
        self.writes.append((first, last, spans, operation))


def _overlap(one: Spans, other: Spans) -> bool:
    """Whether two ascending lists of (offset, length) touch."""
    if len(one) == 1 and len(other) == 1:
        return True  # their ends were compared already
    if len(one) > len(other):
        one, other = other, one
    if 8 * len(one) < len(other):
        for a, m in one:
            before = bisect_left(other, (a + m,)) - 1  # the last that begins before this one's end
            if before >= 0 and sum(other[before]) > a:
                return True
        return False
    i = j = 0
    while i < len(one) and j < len(other):
        (a, m), (b, n) = one[i], other[j]
        if a < b + n and b < a + m:
            return True
        if a + m <= b + n:
            i += 1
        else:
            j += 1
    return False


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
            if piece.spans:
                buffers.setdefault(piece.buffer, _Buffer()).read(piece.spans, index, waits)
        for piece in writes:
            if piece.spans:
                buffers.setdefault(piece.buffer, _Buffer()).write(piece.spans, index, waits)
        waits.discard(index)
        result.append(tuple(sorted(waits)))
    return tuple(result)
