"""A listener that admits only this job's ranks, and the connections dialled to others'."""

from __future__ import annotations

import builtins
import contextlib
import socket
import threading
import time
from collections import defaultdict, deque

from ..errors import PeerError, TimeoutError
from . import handshake

_HANDSHAKE = 10.0
"""Seconds a connection may take to prove the secret."""
_STRANGERS = 64
"""Connections that may be in their handshake at once; more wait in the kernel's queue."""


class Dial:
    """A connection on its way; `connection` once `test` is true."""

    def __init__(self, endpoint: Endpoint, location: str, key: str, deadline: float) -> None:
        self._here, self._location, self._key, self._deadline = endpoint, location, key, deadline
        self._connection: socket.socket | None = None
        self._error: Exception | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="hetccl-dial", daemon=True).start()

    @property
    def connection(self) -> socket.socket:
        assert self._connection is not None
        return self._connection

    def test(self) -> bool:
        if not self._ended.is_set():
            return False
        if self._error is not None:
            raise self._error
        return True

    def describe(self) -> str:
        return f"a connection to {self._location}"

    def _run(self) -> None:
        try:
            self._connection = self._connect()
        except Exception as error:
            self._error = error
        self._ended.set()

    def _connect(self) -> socket.socket:
        left = self._deadline - time.monotonic()
        where = f"from {self._here.address} to {self._location}"
        try:
            connection = socket.create_connection(
                split_location(self._location), max(0.001, left), (self._here.address, 0)
            )
        except builtins.TimeoutError:
            raise TimeoutError(
                f"Timed out connecting {where}; check that the address is right (HETCCL_INTERFACE) and no firewall"
                " is between"
            ) from None
        except OSError as error:
            raise PeerError(f"cannot connect {where}: {error.strerror or error}") from error
        try:
            connection.settimeout(max(0.001, min(left, _HANDSHAKE)))
            handshake.dial(connection, self._here.secret, self._key)
        except (OSError, handshake.Refused) as error:
            connection.close()
            raise PeerError(f"the handshake {where} failed: {error}") from error
        tune(connection)
        return connection


class Endpoint:
    """Listens on one address; keeps what authenticated peers dialled until somebody asks for it by key."""

    def __init__(self, address: str, secret: bytes, ports: range | None = None) -> None:
        """Binds to `address` only, on a free port of `ports` (any where None). Raises PeerError where none is."""
        self.address, self.secret = address, secret
        self._lock = threading.Lock()
        self._connections: dict[str, deque[socket.socket]] = defaultdict(deque)
        self._strangers = threading.Semaphore(_STRANGERS)
        self._pending: set[socket.socket] = set()
        self._closed = False
        self._listener = self._bind(ports)
        self._listener.settimeout(0.2)
        self._thread = threading.Thread(target=self._accept, name="hetccl-endpoint", daemon=True)
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

    @property
    def location(self) -> str:
        """Where peers dial: "10.0.0.1:4711" or "[fd00::1]:4711"."""
        host, port = self._listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def dial(self, location: str, key: str, deadline: float) -> Dial:
        """Connect to another endpoint; `deadline` on the monotonic clock."""
        return Dial(self, location, key, deadline)

    def accepted(self, key: str) -> socket.socket | None:
        """A connection that a peer dialled with this key, if one has come."""
        with self._lock:
            waiting = self._connections.get(key)
            return waiting.popleft() if waiting else None

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        self._listener.close()
        with self._lock:
            for connection in [*self._pending, *(c for queue in self._connections.values() for c in queue)]:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
                connection.close()
            self._connections.clear()

    def _accept(self) -> None:
        while not self._closed:
            if not self._strangers.acquire(timeout=0.2):
                continue
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._strangers.release()
                continue
            with self._lock:
                self._pending.add(connection)
            threading.Thread(target=self._admit, args=(connection,), name="hetccl-admit", daemon=True).start()

    def _admit(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_HANDSHAKE)
            key = handshake.answer(connection, self.secret)
            tune(connection)
            with self._lock:
                self._pending.discard(connection)
                if not self._closed:
                    self._connections[key].append(connection)
                    return
            connection.close()
        except (OSError, handshake.Refused, UnicodeDecodeError):
            with self._lock:
                self._pending.discard(connection)
            connection.close()
        finally:
            self._strangers.release()


def tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def split_location(location: str) -> tuple[str, int]:
    host, _, port = location.rpartition(":")
    return host.strip("[]"), int(port)
