"""The contract of a path (`transports/base.py`), between two real processes."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest
from transport_peers import SECRET, Failed, Process, complete, pair

from hetccl.errors import PeerError
from hetccl.transports.endpoint import Endpoint, split_location

PATHS = ("shm", "tcp")
RING = 256 * 1024
SIZES = (0, 1, 63, RING, RING + 1, 5 << 20)

_keys = (f"key {number}" for number in itertools.count())

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[Process, Process]]:
    both = pair()
    yield both
    for side in both:
        side.end()


@pytest.fixture
def fresh() -> Iterator[tuple[Process, Process]]:
    both = pair()
    yield both
    for side in both:
        side.end()


def split(size: int) -> list[int]:
    """One message of this size in several pieces, empty ones among them."""
    return [0, size // 3, 0, size - size // 3, 0]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("out", "into"), [("one", "one"), ("one", "several"), ("several", "one")])
def test_a_message_arrives_whatever_its_pieces(
    sides: tuple[Process, Process], path: str, size: int, out: str, into: str
) -> None:
    left, right = sides
    key = next(_keys)
    shapes = {"one": [[size]], "several": [split(size)]}
    left.start("move", path, (key, shapes[out]), None)
    right.start("move", path, None, (key, shapes[into]))
    assert left.result()
    assert right.result()


@pytest.mark.parametrize("path", PATHS)
def test_messages_keep_their_order(sides: tuple[Process, Process], path: str) -> None:
    left, right = sides
    key = next(_keys)
    messages = [split(size) for size in (*SIZES, *SIZES[::-1], *range(40))]
    left.start("move", path, (key, messages), None)
    right.start("move", path, None, (key, messages))
    assert left.result()
    assert right.result()


@pytest.mark.parametrize("path", PATHS)
def test_both_directions_at_once_overfill_the_ring(sides: tuple[Process, Process], path: str) -> None:
    left, right = sides
    there, back = next(_keys), next(_keys)
    messages = [[16 << 20], [5 << 20], [1]]
    left.start("move", path, (there, messages), (back, messages))
    right.start("move", path, (back, messages), (there, messages))
    assert left.result()
    assert right.result()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("length", "tag"), [(100, 8), (99, 7), (101, 7), (0, 7)])
def test_a_message_that_is_not_the_one_awaited(
    sides: tuple[Process, Process], path: str, length: int, tag: int
) -> None:
    left, right = sides
    key = next(_keys)
    left.start("send", path, key, 100, 7)
    right.start("receive", path, key, length, tag)
    left.result()
    with pytest.raises(Failed, match="rank 9 sent a message of 100 bytes") as caught:
        right.result()
    assert caught.value.kind == "DesyncError"


@pytest.mark.parametrize("path", PATHS)
def test_poll_tells_of_what_nobody_awaits(sides: tuple[Process, Process], path: str) -> None:
    left, right = sides
    key = next(_keys)
    left.start("send", path, key, 10, 7)
    right.start("polls", path, key)
    left.result()
    assert right.result() == [True, False, False]


@pytest.mark.parametrize("path", PATHS)
def test_a_killed_sender_is_noticed(fresh: tuple[Process, Process], path: str) -> None:
    left, right = fresh
    left.start("send", path, "first", 10, 0)
    right.start("receive_then_wait", path, "first", 10)
    left.result()
    time.sleep(0.3)
    assert left.process.pid is not None
    os.kill(left.process.pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(Failed, match="rank 9") as caught:
        right.result()
    assert caught.value.kind == "PeerError"
    assert time.monotonic() - killed < 2


def test_a_wrong_secret_is_refused() -> None:
    here, there = Endpoint("127.0.0.1", SECRET), Endpoint("127.0.0.1", b"x" * 32)
    try:
        dial = here.dial(there.location, "key", time.monotonic() + 5)
        with pytest.raises(PeerError, match="handshake"):
            complete([dial])
        assert there.accepted("key") is None
    finally:
        here.close()
        there.close()


@pytest.mark.parametrize("path", PATHS)
def test_strangers_do_not_stop_a_peer(sides: tuple[Process, Process], path: str) -> None:
    left, right = sides
    target = split_location(right.call("locate"))
    strangers = [socket.create_connection(target) for _ in range(24)]
    for stranger in strangers[8:16]:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: hetccl\r\n\r\n" * 20)
    for stranger in strangers[16:]:
        stranger.sendall(b"hetccl/1" + bytes(64))
    key = next(_keys)
    left.start("move", path, (key, [[1000]]), None)
    right.start("move", path, None, (key, [[1000]]))
    assert left.result()
    assert right.result()
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_left_after_close(fresh: tuple[Process, Process], path: str) -> None:
    files = set(os.listdir("/dev/shm"))
    left, right = fresh
    before = [side.call("traces")["descriptors"] for side in fresh]
    for _ in range(2):
        key, back = next(_keys), next(_keys)
        left.start("move", path, (key, [[3 << 20]]), (back, [[10]]))
        right.start("move", path, (back, [[10]]), (key, [[3 << 20]]))
        assert left.result()
        assert right.result()
    assert {name for name in os.listdir("/dev/shm") if "hetccl" in name} <= files
    silent = socket.create_connection(split_location(right.call("locate")))
    time.sleep(0.3)
    for side in fresh:
        side.call("close")
    end = time.monotonic() + 2
    while any(side.call("traces")["threads"] for side in fresh) and time.monotonic() < end:
        time.sleep(0.05)
    after = [side.call("traces") for side in fresh]
    assert [trace["threads"] for trace in after] == [[], []]
    # The endpoint's own listener was counted before.
    assert [trace["descriptors"] for trace in after] == [count - 1 for count in before]
    silent.close()
