"""The schema of the topology file, and the text forms of bandwidths and sets of ranks that it accepts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, StringConstraints

_SCALE = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(bit/s|bps|b/s|B/s)", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:\s*-\s*(\d+))?", re.ASCII)
MOST_RANKS = 1 << 20


def parse_bandwidth(value: object) -> int:
    """Bytes per second from a whole number or from text such as "100 Gbit/s" or "12.5 GB/s"."""
    if isinstance(value, int) and not isinstance(value, bool):
        result = Fraction(value)
    else:
        match = _BANDWIDTH.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(
                f"{value!r} is no bandwidth: write bytes per second as a whole number, or text such as "
                '"100 Gbit/s" or "12.5 GB/s"'
            )
        number, scale, unit = match.groups()
        result = Fraction(number) * _SCALE[scale] / (1 if unit == "B/s" else 8)
    if result < 1:
        raise ValueError(f"{value!r} is less than one byte per second")
    return int(result)


def bandwidth_text(bandwidth: int) -> int | str:
    """The shortest exact form: in Gbit/s or MB/s where that is whole, otherwise the number itself."""
    if bandwidth % 125_000_000 == 0:
        return f"{bandwidth // 125_000_000} Gbit/s"
    return f"{bandwidth // 10**6} MB/s" if bandwidth % 10**6 == 0 else bandwidth


def parse_ranks(value: object) -> tuple[int, ...]:
    """Ascending ranks from 5, "0-7", or a list of such."""
    items = value if isinstance(value, list) else [value]
    ranks: list[int] = []
    for item in items:
        text = item if isinstance(item, str) else str(item) if type(item) is int else ""
        for part in text.split(","):
            match = _RANGE.fullmatch(part.strip())
            if match is None:
                raise ValueError(f"{item!r} is no rank: write numbers or ranges such as 0-7")
            first, last = int(match[1]), int(match[2] or match[1])
            if last < first or last >= MOST_RANKS:
                raise ValueError(f"the range {part.strip()} must ascend and stay below {MOST_RANKS}")
            ranks.extend(range(first, last + 1))
    if not ranks:
        raise ValueError("a cluster needs at least one rank")
    if len(set(ranks)) != len(ranks):
        raise ValueError("a rank stands there twice")
    return tuple(sorted(ranks))


def ranks_text(ranks: Sequence[int]) -> int | str | list[int | str]:
    """The form that `parse_ranks` reads, with runs of three and more as ranges. Ranks ascend."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    items: list[int | str] = []
    for run in runs:
        items.extend([f"{run[0]}-{run[-1]}"] if len(run) > 2 else run)
    return items[0] if len(items) == 1 and isinstance(items[0], str) else items


Bandwidth = Annotated[int, BeforeValidator(parse_bandwidth)]
Ranks = Annotated[tuple[int, ...], BeforeValidator(parse_ranks)]
Name = Annotated[str, StringConstraints(min_length=1)]
RankNumber = Annotated[StrictInt, Field(ge=0)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BorderEntry(_Entry):
    rank: RankNumber
    link: Name
    bandwidth: Bandwidth


class ClusterEntry(_Entry):
    vendor: Name
    ranks: Ranks
    label: str = ""
    fabric: Bandwidth | None = None
    borders: Annotated[tuple[BorderEntry, ...], BeforeValidator(lambda value: _ordered(value))] = ()


class InterfaceEntry(_Entry):
    name: Name
    address: Name
    bandwidth: Bandwidth


class RankEntry(_Entry):
    rank: RankNumber
    host: Name
    vendor: str = ""
    label: str = ""
    library: str = ""
    version: str = ""
    device: str = ""
    torch: str = ""
    hetccl: str = ""
    interfaces: tuple[InterfaceEntry, ...] = ()
    paths: tuple[tuple[str, str], ...] = ()


class Document(_Entry):
    version: Literal[1]
    clusters: Annotated[tuple[ClusterEntry, ...], Field(min_length=1)]
    ranks: tuple[RankEntry, ...] | None = None


def _ordered(value: object) -> object:
    """Borders in rank order, whatever the order in the file; at most one a rank."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return value
    numbers = [one.get("rank") for one in value]
    if not all(type(number) is int for number in numbers):
        return value
    if len(set(numbers)) != len(numbers):
        raise ValueError("a rank stands twice in the borders; add up its links' bandwidths")
    return sorted(value, key=lambda one: one["rank"])
