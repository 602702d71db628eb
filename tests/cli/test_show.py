"""Number formatting of the command line."""

import pytest

from hetccl.cli.show import bandwidth_text, parse_size, ranks_text, size_text, time_text
from hetccl.errors import ConfigurationError


def test_texts():
    assert [size_text(n) for n in (0, 17, 1536, 2**30, 3 * 2**50)] == [
        "0 B",
        "17 B",
        "1.5 KiB",
        "1 GiB",
        "3072 TiB",
    ]
    assert [bandwidth_text(n) for n in (7, 12_500_000_000)] == ["7 B/s", "12.5 GB/s"]
    assert [time_text(s) for s in (0, 3e-9, 4e-6, 0.0123, 90)] == ["0 s", "3 ns", "4 µs", "12.3 ms", "90 s"]
    assert ranks_text((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"


@pytest.mark.parametrize(
    ("text", "size"),
    [("17", 17), ("1GiB", 2**30), ("64 KiB", 65536), ("1.5MB", 1_500_000), ("2k", 2000), ("0B", 0)],
)
def test_parse_size(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1 iB", "-1", "1 parsec"])
def test_bad_sizes(text):
    with pytest.raises(ConfigurationError, match="no size"):
        parse_size(text)
