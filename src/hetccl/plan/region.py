"""Regions: sorted, disjoint lists of half-open intervals, in elements.

A plan speaks in *coordinates*, one space for the whole job (for example the elements of the gathered tensor). A
rank's part of it need not be contiguous, since the ranks of one vendor interleave with others': a region therefore is
a list of intervals, and a *position* in it counts its elements from its start, gaps left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


class Region:
    """An immutable list of intervals; `Region.of` merges and sorts."""

    __slots__ = ("_before", "_starts", "intervals", "length")

    def __init__(self, intervals: tuple[tuple[int, int], ...]) -> None:
        self.intervals = intervals
        self._starts = [start for start, _ in intervals]
        self._before = [0, *accumulate(stop - start for start, stop in intervals)]
        self.length = self._before[-1]

    @classmethod
    def of(cls, intervals: Iterable[tuple[int, int]]) -> Region:
        merged: list[tuple[int, int]] = []
        for start, stop in sorted(intervals):
            if start >= stop:
                continue
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
            else:
                merged.append((start, stop))
        return cls(tuple(merged))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Region) and self.intervals == other.intervals

    def __hash__(self) -> int:
        return hash(self.intervals)

    def __bool__(self) -> bool:
        return self.length > 0

    def __repr__(self) -> str:
        return f"Region({self.intervals})"

    def slice(self, start: int, stop: int) -> Region:
        """The part between two positions."""
        if start <= 0 and stop >= self.length:
            return self
        return Region(tuple((a, b) for a, b in self.walk(start, stop)))

    def walk(self, start: int, stop: int) -> Iterable[tuple[int, int]]:
        """The intervals between two positions, in order."""
        if start >= stop:
            return
        place = bisect_right(self._before, start) - 1
        while start < stop:
            begin, _ = self.intervals[place]
            base = self._before[place]
            until = min(stop, self._before[place + 1])
            yield begin + start - base, begin + until - base
            start = until
            place += 1

    def position(self, coordinate: int) -> int:
        """How many elements of the region lie before this coordinate."""
        place = bisect_right(self._starts, coordinate) - 1
        if place < 0:
            return 0
        start, stop = self.intervals[place]
        return self._before[place] + (coordinate if coordinate < stop else stop) - start

    def spans(self, part: Region) -> tuple[tuple[int, int], ...]:
        """Where `part`, which this region contains, lies when this region is stored packed: (offset, length)s."""
        found: list[tuple[int, int]] = []
        for start, stop in part.intervals:
            while start < stop:
                place = bisect_right(self._starts, start) - 1
                begin, end = self.intervals[place]
                until = min(stop, end)
                offset = self._before[place] + start - begin
                if found and found[-1][0] + found[-1][1] == offset:
                    found[-1] = (found[-1][0], found[-1][1] + until - start)
                else:
                    found.append((offset, until - start))
                start = until
        return tuple(found)


def interval(start: int, stop: int) -> Region:
    """The region of one interval (empty where start = stop)."""
    return Region(((start, stop),) if stop > start else ())
