"""How the commands write numbers, and the sizes that they read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..errors import ConfigurationError

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)[bB]?", re.ASCII)


def size_text(size: int) -> str:
    """Bytes, in binary units: "1 GiB", "1.5 MiB", "17 B"."""
    return _scaled(size, 1024, _BINARY)


def bandwidth_text(bandwidth: float) -> str:
    """Bytes per second, in decimal units as the field writes them: "12.5 GB/s"."""
    return _scaled(bandwidth, 1000, _DECIMAL)


def time_text(seconds: float) -> str:
    """Seconds with three significant digits: "1.5 s", "12.3 ms", "4 µs"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{_digits(seconds / scale)} {unit}"
    return f"{_digits(seconds * 1e9)} ns" if seconds > 0 else "0 s"


def ranks_text(ranks: Sequence[int]) -> str:
    """Ascending ranks with runs as ranges: "0-3,8"."""
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1] = runs[-1][0], rank
        else:
            runs.append((rank, rank))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_size(text: str) -> int:
    """Bytes from "1GiB", "64 KiB", "1.5MB" or "4096". Raises ConfigurationError for anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ConfigurationError(f"{text!r} is no size; write bytes, or a number with a unit such as 64KiB or 1GiB.")
    base = 1024 if match[3] else 1000
    return round(float(match[1]) * base ** " kmgt".index(match[2].lower())) if match[2] else int(float(match[1]))


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    amount, unit = float(value), units[0]
    for unit in units:
        if amount < base or unit == units[-1]:
            break
        amount /= base
    return f"{_digits(amount)} {unit}"


def _digits(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 100 else f"{amount:.3g}"


def unique(values: Iterable[str]) -> str:
    """The distinct values in order, joined by commas; "-" where there are none."""
    return ", ".join(dict.fromkeys(value for value in values if value)) or "-"
