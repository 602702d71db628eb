"""A connection on its way to being trusted: connecting, then its handshake, without blocking."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable

from .handshake import Refused, Side, Step

Finish = Callable[["Opening", str | None, Exception | None], None]


class Opening:
    """One connection in its handshake. `advance` does what can be done now; `finish` is called once, at the end."""

    def __init__(
        self, connection: socket.socket, side: Side, deadline: float, connecting: bool, finish: Finish
    ) -> None:
        self.connection, self.deadline = connection, deadline
        self.connecting = connecting
        """Whether the kernel still makes the connection (of a dialler)."""
        self._side, self._finish = side, finish
        self._out, self._in, self._wanted = b"", b"", 0
        self.ended = False

    @property
    def writes(self) -> bool:
        """Whether it waits for room to write rather than for bytes to read."""
        return self.connecting or bool(self._out)

    def advance(self) -> None:
        """Move bytes until nothing more comes or the handshake ends."""
        try:
            if self.connecting:
                error = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error))
                self.connecting = False
                self._take(next(self._side))
            elif not self._wanted and not self._out:
                self._take(next(self._side))
            while not self.ended:
                if self._out:
                    self._out = self._out[self.connection.send(self._out) :]
                elif len(self._in) < self._wanted:
                    # Never more than was asked for: what follows belongs to the channel.
                    more = self.connection.recv(self._wanted - len(self._in))
                    if not more:
                        raise Refused("the connection ended in the handshake")
                    self._in += more
                else:
                    got, self._in = self._in, b""
                    self._take(self._side.send(got))
        except BlockingIOError:
            return
        except StopIteration as stop:
            self.end(stop.value, None)
        except Exception as error:  # whatever a stranger sends ends only its own connection
            self.end(None, error)

    def expire(self) -> None:
        """Its time is up."""
        self.end(None, TimeoutError(errno.ETIMEDOUT, "no answer in time"))

    def end(self, key: str | None, error: Exception | None) -> None:
        if not self.ended:
            self.ended = True
            self._side.close()
            self._finish(self, key, error)

    def _take(self, step: Step) -> None:
        self._out, self._wanted = step.data, step.count


def start_connecting(here: str, location: str) -> socket.socket:
    """A socket bound to `here` that connects to a location. Raises OSError."""
    host, port = split_location(location)
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        connection.bind((here, 0))
        with contextlib.suppress(BlockingIOError):
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def tune(connection: socket.socket) -> None:
    """Small messages leave at once. Buffers are the kernel's: it grows them beyond what SO_SNDBUF may ask for."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def split_location(location: str) -> tuple[str, int]:
    host, _, port = location.rpartition(":")
    return host.strip("[]"), int(port)


def seconds_left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
