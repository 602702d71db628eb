"""Integer prefix cuts: a length divided in proportion to weights, exactly, with no common multiple needed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def cuts(length: int, weights: Sequence[int]) -> list[int]:
    """Boundaries b_0 = 0 … b_n = length; part j is [b_j, b_{j+1}), within one element of length·w_j/Σw.

    Weights are not negative and not all zero.
    """
    total = sum(weights)
    return [0, *(length * before // total for before in accumulate(weights))]


def chunked(length: int, count: int) -> list[int]:
    """Boundaries of `count` nearly equal chunks."""
    return [length * place // count for place in range(count + 1)]
