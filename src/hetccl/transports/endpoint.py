"""A listener that admits only this job's ranks, and the connections dialled to others'.

One thread carries every handshake, in both directions, so that strangers cost neither threads nor time: each has
`_HANDSHAKE` seconds in all, and when `_STRANGERS` of them are there at once those that dawdle make room.
"""

from __future__ import annotations

import builtins
import contextlib
import selectors
import socket
import threading
import time
import weakref
from collections import defaultdict, deque

from ..errors import AbortedError, PeerError, TimeoutError
from . import handshake
from .opening import Opening, seconds_left, split_location, start_connecting, tune

__all__ = ["Dial", "Endpoint", "split_location"]

_HANDSHAKE = 10.0
"""Seconds a connection may take to prove the secret."""
_DAWDLE = 1.0
"""Seconds after which a connection in its handshake is dropped where others wait for its place."""
_STRANGERS = 64
"""Connections that may be in their handshake at once; more wait in the kernel's queue."""


class Dial:
    """A connection on its way; `connection` once `test` is true, and then the caller's to close."""

    def __init__(self, here: str, location: str) -> None:
        self._where, self._location = f"from {here} to {location}", location
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._error: Exception | None = None
        self._taken = False

    @property
    def connection(self) -> socket.socket:
        assert self._connection is not None
        self._taken = True
        return self._connection

    def test(self) -> bool:
        if self._error is not None:
            raise self._error
        if self._connection is not None:
            return True
        # Whoever spins here holds the interpreter's lock, which the endpoint's thread needs to get on: without this
        # each of its system calls waits for the switch interval, 5 ms.
        time.sleep(0)
        return False

    def describe(self) -> str:
        return f"a connection to {self._location}"

    def close(self) -> None:
        """Give up: the connection, unless taken, is closed now or when it comes."""
        with self._lock:
            if self._error is None and not self._taken:
                self._error = AbortedError(f"the connection {self._where} was given up")
                if self._connection is not None:
                    self._connection.close()

    def end(self, connection: socket.socket | None, error: Exception | None) -> None:
        """The endpoint's thread tells the outcome."""
        with self._lock:
            if self._error is not None:
                if connection is not None:
                    connection.close()
            elif error is None:
                self._connection = connection
            else:
                self._error = self._explain(error)

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, AbortedError):
            return error
        if isinstance(error, builtins.TimeoutError):
            return TimeoutError(
                f"Timed out connecting {self._where}; check that the address is right (HETCCL_INTERFACE) and that no"
                " firewall is between"
            )
        if isinstance(error, handshake.Refused):
            return PeerError(f"the handshake {self._where} failed: {error}")
        return PeerError(f"cannot connect {self._where}: {getattr(error, 'strerror', None) or error}")


class Endpoint:
    """Listens on one address; keeps what authenticated peers dialled until somebody asks for it by key."""

    def __init__(self, address: str, secret: bytes, ports: range | None = None) -> None:
        """Binds to `address` only, on a free port of `ports` (any where None). Raises PeerError where none is."""
        self.address, self.secret = address, secret
        self._lock = threading.Lock()
        self._connections: dict[str, deque[socket.socket]] = defaultdict(deque)
        self._dials: weakref.WeakSet[Dial] = weakref.WeakSet()
        self._fresh: deque[Opening] = deque()
        self._strangers: dict[Opening, float] = {}  # in order of arrival, with its time
        self._closed = False
        self._listener = self._bind(ports)
        self._listener.setblocking(False)
        self.location = self._locate()
        """Where peers dial: "10.0.0.1:4711" or "[fd00::1]:4711"."""
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="hetccl-endpoint", daemon=True)
        self._thread.start()

    def _bind(self, ports: range | None) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        for port in ports or (0,):
            listener = socket.socket(family, socket.SOCK_STREAM)
            try:
                listener.bind((self.address, port))
                listener.listen(1024)
                return listener
            except OSError as error:
                listener.close()
                last = error
        raise PeerError(f"cannot listen on {self.address}: {last.strerror}; see HETCCL_INTERFACE")

    def _locate(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def dial(self, location: str, key: str, deadline: float) -> Dial:
        """Connect to another endpoint; `deadline` on the monotonic clock. Failures are raised by the dial's `test`."""
        dial = Dial(self.address, location)
        side = handshake.dial(self.secret, key)
        try:
            connection = start_connecting(self.address, location)
        except OSError as error:
            dial.end(None, error)
            return dial

        def finish(opening: Opening, _key: str | None, error: Exception | None) -> None:
            if error is None:
                tune(opening.connection)
                dial.end(opening.connection, None)
            else:
                opening.connection.close()
                dial.end(None, error)

        opening = Opening(connection, side, deadline, True, finish)
        with self._lock:
            if self._closed:
                opening.end(None, AbortedError("the endpoint is closed"))
                return dial
            self._dials.add(dial)
            self._fresh.append(opening)
        self._nudge()
        return dial

    def accepted(self, key: str) -> socket.socket | None:
        """A connection that a peer dialled with this key, if one has come; non-blocking, and the caller's to close."""
        with self._lock:
            waiting = self._connections.get(key)
            if not waiting:
                return None
            connection = waiting.popleft()
            if not waiting:
                del self._connections[key]
            return connection

    def close(self) -> None:
        """End the thread, the listener, and every connection that nobody has taken. May be called again."""
        with self._lock:
            self._closed = True
        self._nudge()
        self._thread.join()
        for dial in list(self._dials):
            dial.close()
        with self._lock:
            for queue in self._connections.values():
                for connection in queue:
                    connection.close()
            self._connections.clear()
        self._listener.close()
        self._wake.close()

    def _nudge(self) -> None:
        # A full pipe wakes as well; a closed one has nobody to wake.
        with contextlib.suppress(OSError):
            self._wake.send(b"\x00")

    def _run(self) -> None:
        openings: set[Opening] = set()
        with self._selector as selector:
            while True:
                with self._lock:
                    fresh, closed = list(self._fresh), self._closed
                    self._fresh.clear()
                openings.update(fresh)
                for opening in fresh:
                    selector.register(opening.connection, selectors.EVENT_WRITE, opening)
                if closed:
                    break
                for key, _ in selector.select(self._patience(openings)):
                    if key.data is not None:
                        self._advance(key.data)
                    elif key.fileobj is self._woken:
                        with contextlib.suppress(BlockingIOError):
                            self._woken.recv(4096)
                    else:
                        openings.update(self._accept())
                now = time.monotonic()
                for opening in [o for o in openings if not o.ended and o.deadline <= now]:
                    self._forget(opening)
                    opening.expire()
                openings = {opening for opening in openings if not opening.ended}
            for opening in openings:
                opening.end(None, AbortedError("the endpoint was closed"))
        self._woken.close()

    def _patience(self, openings: set[Opening]) -> float | None:
        """How long to wait for the next event; listens for strangers only where there is room for one."""
        listening = self._listener in self._selector.get_map()
        oldest = next(iter(self._strangers.values()), 0.0)
        full = len(self._strangers) >= _STRANGERS and oldest + _DAWDLE > time.monotonic()
        if full and listening:
            self._selector.unregister(self._listener)
        elif not full and not listening:
            self._selector.register(self._listener, selectors.EVENT_READ)
        ends = [opening.deadline for opening in openings]
        if full:
            ends.append(oldest + _DAWDLE)
        return seconds_left(min(ends)) if ends else None

    def _accept(self) -> list[Opening]:
        """The next stranger, in the place of one that dawdles where all are taken."""
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return []
        except OSError:
            time.sleep(0.05)  # out of descriptors, say: not at full speed
            return []
        connection.setblocking(False)
        if len(self._strangers) >= _STRANGERS:
            oldest = next(iter(self._strangers))
            self._forget(oldest)
            oldest.expire()
        now = time.monotonic()
        opening = Opening(connection, handshake.answer(self.secret), now + _HANDSHAKE, False, self._admit)
        self._strangers[opening] = now
        self._selector.register(connection, selectors.EVENT_READ, opening)
        return [opening]

    def _advance(self, opening: Opening) -> None:
        if opening.ended:
            return
        # Taken out first: once it ends, its socket belongs to somebody else.
        self._selector.unregister(opening.connection)
        opening.advance()
        if opening.ended:
            self._strangers.pop(opening, None)
        else:
            event = selectors.EVENT_WRITE if opening.writes else selectors.EVENT_READ
            self._selector.register(opening.connection, event, opening)

    def _forget(self, opening: Opening) -> None:
        self._strangers.pop(opening, None)
        self._selector.unregister(opening.connection)

    def _admit(self, opening: Opening, key: str | None, error: Exception | None) -> None:
        if key is None or error is not None:
            opening.connection.close()
            return
        tune(opening.connection)
        with self._lock:
            self._connections[key].append(opening.connection)
