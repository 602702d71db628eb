"""The listener: who is let in, what strangers may cost, and what is left after close."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from transport_peers import SECRET, complete

from hetccl.errors import AbortedError, PeerError, TimeoutError
from hetccl.transports import endpoint as module
from hetccl.transports import handshake, opening
from hetccl.transports.endpoint import Dial, Endpoint, split_location

pytestmark = [pytest.mark.timeout(30), pytest.mark.filterwarnings("error")]


@pytest.fixture
def here() -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1", SECRET)
    yield made
    made.close()


@pytest.fixture
def there() -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1", SECRET)
    yield made
    made.close()


def awaited(endpoint: Endpoint, key: str) -> socket.socket:
    end = time.monotonic() + 5
    while (connection := endpoint.accepted(key)) is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    return connection


def dialled(here: Endpoint, there: Endpoint, key: str, seconds: float = 5) -> Dial:
    return here.dial(there.location, key, time.monotonic() + seconds)


def meet(here: Endpoint, there: Endpoint, key: str = "key") -> None:
    dial = dialled(here, there, key)
    complete([dial])
    with dial.connection as mine, awaited(there, key) as theirs:
        mine.send(b"hello")
        theirs.setblocking(True)
        assert theirs.recv(10) == b"hello"


def test_connections_are_told_apart_by_their_key(here: Endpoint, there: Endpoint) -> None:
    dials = [dialled(here, there, key) for key in ("a", "b", "", "ä" * 200)]
    complete(dials)
    for dial, key in zip(dials, ("a", "b", "", "ä" * 200), strict=True):
        with dial.connection as mine, awaited(there, key) as theirs:
            assert mine.getsockname() == theirs.getpeername()
    assert there.accepted("a") is None


def test_ipv6() -> None:
    try:
        one, two = Endpoint("::1", SECRET), Endpoint("::1", SECRET)
    except PeerError:
        pytest.skip("no IPv6 here")
    assert one.location.startswith("[::1]:")
    meet(one, two)
    one.close()
    two.close()


def test_ports_are_kept_to(here: Endpoint) -> None:
    taken = split_location(here.location)[1]
    with pytest.raises(PeerError, match="cannot listen"):
        Endpoint("127.0.0.1", SECRET, range(taken, taken + 1))


def test_a_wrong_secret_is_refused(there: Endpoint) -> None:
    stranger = Endpoint("127.0.0.1", b"x" * 32)
    for way in ((stranger, there), (there, stranger)):
        with pytest.raises(PeerError, match=r"handshake from 127\.0\.0\.1 to 127"):
            complete([dialled(*way, "key")])
        assert way[1].accepted("key") is None
    stranger.close()


def test_a_key_too_long_is_refused_by_both_sides(here: Endpoint, there: Endpoint) -> None:
    with pytest.raises(ValueError, match="512"):
        dialled(here, there, "k" * 513)


def test_nobody_there(here: Endpoint, there: Endpoint) -> None:
    there.close()
    with pytest.raises(PeerError, match="cannot connect from 127"):
        complete([dialled(here, there, "key")])


def test_no_answer_ends_at_the_deadline(here: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        location = f"127.0.0.1:{silent.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(TimeoutError, match=rf"^Timed out connecting from 127\.0\.0\.1 to {location}"):
            complete([here.dial(location, "key", start + 0.3)])
        assert 0.25 < time.monotonic() - start < 1


def test_many_silent_strangers_delay_a_peer_by_little(here: Endpoint, there: Endpoint) -> None:
    strangers = [socket.create_connection(split_location(there.location)) for _ in range(module._STRANGERS + 20)]
    meet(here, there)
    assert threading.active_count() < 10
    for stranger in strangers:
        stranger.close()


def test_a_stranger_who_drips_is_dropped(there: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HANDSHAKE", 0.4)
    start = time.monotonic()
    with socket.create_connection(split_location(there.location)) as stranger:
        with pytest.raises(OSError):  # noqa: PT012 - whichever byte it is that fails
            for byte in b"hetccl/1" + bytes(32):
                stranger.sendall(bytes([byte]))
                time.sleep(0.05)
        assert time.monotonic() - start < 1.5


@pytest.mark.parametrize("text", [b"GET / HTTP/1.1\r\n\r\n" * 9, b"hetccl/1" + bytes(64), b"hetccl/1" + bytes(9)])
def test_garbage_ends_only_its_own_connection(here: Endpoint, there: Endpoint, text: bytes) -> None:
    with socket.create_connection(split_location(there.location)) as stranger:
        with contextlib.suppress(OSError):  # it may have been dropped already
            stranger.sendall(text)
            stranger.shutdown(socket.SHUT_WR)
        meet(here, there)


def test_many_dial_at_once(here: Endpoint, there: Endpoint) -> None:
    dials = [dialled(here, there, f"{number}") for number in range(200)]
    complete(dials)
    for number, dial in enumerate(dials):
        dial.connection.close()
        awaited(there, f"{number}").close()


def test_close_ends_everything_at_once() -> None:
    before = threading.active_count()
    endpoint, other = Endpoint("127.0.0.1", SECRET), Endpoint("127.0.0.1", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = endpoint.dial(f"127.0.0.1:{silent.getsockname()[1]}", "key", time.monotonic() + 60)
        untaken = dialled(endpoint, other, "nobody asks")
        complete([untaken])
        start = time.monotonic()
        endpoint.close()
        endpoint.close()
        other.close()
        assert time.monotonic() - start < 1
        with pytest.raises(AbortedError):
            hanging.test()
        with pytest.raises(AbortedError):
            endpoint.dial(other.location, "key", start + 60).test()
    assert threading.active_count() == before


def test_a_dial_given_up_leaves_nothing(here: Endpoint, there: Endpoint) -> None:
    dial = dialled(here, there, "key")
    dial.close()
    dial.close()
    with pytest.raises(AbortedError):
        dial.test()
    meet(here, there, "other")


def play(listener: bytes, dialler: bytes, key: str) -> str:
    """Both sides of a handshake without a socket."""
    one, two = handshake.dial(dialler, key), handshake.answer(listener)
    asks, gives = next(two), next(one)
    wire, back = gives.data, b""
    while True:
        while len(wire) >= asks.count:
            got, wire = wire[: asks.count], wire[asks.count :]
            try:
                asks = two.send(got)
            except StopIteration as stop:
                return str(stop.value)
            back += asks.data
        assert len(back) >= gives.count
        got, back = back[: gives.count], back[gives.count :]
        gives = one.send(got)
        wire += gives.data


def test_the_handshake_proves_the_secret_both_ways() -> None:
    assert play(b"a", b"a", "group/3/collective") == "group/3/collective"
    with pytest.raises(handshake.Refused, match="listener"):
        play(b"a", b"b", "key")


def test_a_listener_does_not_answer_with_the_diallers_own_proof() -> None:
    # Proofs carry their role: one reflected to whoever made it proves nothing.
    side = handshake.dial(SECRET, "key")
    opened = next(side)
    nonce = opened.data[-32:]
    with pytest.raises(handshake.Refused):
        side.send(nonce + handshake._proof(SECRET, b"dialler", nonce, nonce))
    assert opening.split_location("[fd00::1]:4711") == ("fd00::1", 4711)
