"""The contract of a path (`transports/base.py`), between two real processes."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest
from transport_peers import Failed, Process, pair

from hetccl.transports.endpoint import split_location

PATHS = ("shm", "tcp", "tcp*3", "hostmap")
RING = 256 * 1024
SIZES = (0, 1, 63, RING - 1, RING, RING + 1, 8 * RING, 8 * RING + 1, 5 << 20)

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
def test_two_channels_of_one_pair_are_apart(sides: tuple[Process, Process], path: str) -> None:
    left, right = sides
    one, two = next(_keys), next(_keys)
    for way in ((left, right), (right, left)):
        sender, receiver = way
        sender.start("move_on_two", path, [(one, [[5 << 20], [1]]), (two, [[63], [3 << 20]])], True)
        receiver.start("move_on_two", path, [(two, [[63], [3 << 20]]), (one, [[5 << 20], [1]])], False)
        assert sender.result()
        assert receiver.result()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("polled", [False, True])
@pytest.mark.parametrize(("length", "tag"), [(100, 8), (99, 7), (101, 7), (0, 7)])
def test_a_message_that_is_not_the_one_awaited(
    sides: tuple[Process, Process], path: str, length: int, tag: int, polled: bool
) -> None:
    left, right = sides
    key = next(_keys)
    left.start("send", path, key, 100, 7)
    right.call("begin", path, key, polled)
    right.start("finish", length, tag)
    left.result()
    awaits = rf"rank 9 sent a message of 100 bytes \(tag 0*7\) .* {length} \(tag 0*{tag}\)"
    with pytest.raises(Failed, match=awaits) as caught:
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


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_death_in_mid_message_is_noticed(fresh: tuple[Process, Process], path: str, victim: str) -> None:
    # The receiver sees the message begin and takes nothing, so that the sender is stuck in the middle of it.
    left, right = fresh
    left.start("send", path, "key", 64 << 20, 0)
    right.call("begin", path, "key", True)
    time.sleep(0.2)
    dying, other = (left, right) if victim == "sender" else (right, left)
    assert dying.process.pid is not None
    os.kill(dying.process.pid, signal.SIGKILL)
    killed = time.monotonic()
    if victim == "sender":
        right.start("finish", 64 << 20, 0)
    with pytest.raises(Failed, match="rank 9") as caught:
        other.result()
    assert caught.value.kind == "PeerError"
    assert time.monotonic() - killed < 2


@pytest.mark.parametrize("path", PATHS)
def test_what_is_in_flight_at_close_is_aborted(sides: tuple[Process, Process], path: str) -> None:
    left, _ = sides
    assert left.call("leave", path, next(_keys)) == ["AbortedError", "AbortedError"]


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
    left, right = fresh
    for _ in range(2):
        key, back = next(_keys), next(_keys)
        left.start("move", path, (key, [[3 << 20]]), (back, [[10]]))
        right.start("move", path, (back, [[10]]), (key, [[3 << 20]]))
        assert left.result()
        assert right.result()
        left.call("leave", path, next(_keys))
    assert not [name for name in os.listdir("/dev/shm") if "hetccl" in name]
    silent = socket.create_connection(split_location(right.call("locate")))
    time.sleep(0.1)
    for side in fresh:
        side.call("close")
        assert side.call("traces") == {"threads": [], "descriptors": 0, "unraisable": []}
    silent.close()
