"""Memory that two processes of a host share, handed over an authenticated connection.

The sender of a channel makes the memory, without a name, and tells the receiver which of its descriptors it is; the
receiver opens it through /proc. The connection stays: its end tells of the other's death.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import PeerError
from .base import Link
from .channel import Channel
from .endpoint import Dial
from .ring import ORDERED

_INVITATION = struct.Struct("!QQ")  # process, descriptor
_PATIENCE = 64
"""Fruitless looks at the memory between two looks at the connection."""


class Shared(Channel):
    """One end of a channel over shared memory. `attach` gets the memory's descriptor, and may keep no hold of it."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.socket: socket.socket | None = None
        self._misses = 0

    def attach(self, descriptor: int) -> None:
        """Map the memory. Raises OSError, ValueError or RuntimeError where that fails."""
        raise NotImplementedError

    def gone(self) -> bool:
        """Whether the other end has gone; looked up now and then, since it costs a system call."""
        self._misses += 1
        if self._misses % _PATIENCE:
            return False
        return self._read(1, socket.MSG_PEEK) == b""

    def closed(self) -> PeerError:
        return PeerError(f"{self.link.peer} closed its connection")

    def _read(self, count: int, flags: int = 0) -> bytes | None:
        """Bytes from the connection: None where there are none yet, empty at its end."""
        assert self.socket is not None
        try:
            return self.socket.recv(count, flags)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        super().close()
        if self.socket is not None:
            self.socket.close()


class Giver(Shared):
    """The end that makes the memory: the sender."""

    def __init__(self, link: Link, create: Callable[[], int]) -> None:
        """`create` returns a descriptor of new memory."""
        super().__init__(link)
        self._create = create
        self._dial: Dial | None = None
        self._descriptor = -1

    def connect(self) -> bool:
        """Get on with connecting; True once `attach` was called."""
        if self.socket is None:
            if self._dial is None:
                deadline = time.monotonic() + self.link.timeout
                self._dial = self.link.endpoint.dial(self.link.location, self.link.key, deadline)
            if not self._dial.test():
                return False
            self.socket = self._dial.connection
            self._descriptor = self._create()
            try:
                # A fresh connection has room for these few bytes.
                self.socket.sendall(_INVITATION.pack(os.getpid(), self._descriptor))
            except OSError as error:
                raise PeerError(f"the connection to {self.link.peer} failed: {error.strerror}") from error
        taken = self._read(1)
        if taken is None:
            return False
        if taken != b"\x01":
            raise PeerError(f"{self.link.peer} could not open the shared memory; HETCCL_PATHS=tcp avoids it")
        self.attach(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        return True

    def close(self) -> None:
        super().close()
        if self._dial is not None:
            self._dial.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Taker(Shared):
    """The end that opens the memory: the receiver."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._invitation = b""

    def connect(self) -> bool:
        """Get on with connecting; True once `attach` was called."""
        if self.socket is None:
            self.socket = self.link.endpoint.accepted(self.link.key)
            if self.socket is None:
                return False
        more = self._read(_INVITATION.size - len(self._invitation))
        if more is None:
            return False
        if not more:
            raise self.closed()
        self._invitation += more
        if len(self._invitation) < _INVITATION.size:
            return False
        process, descriptor = _INVITATION.unpack(self._invitation)
        try:
            opened = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
            try:
                self.attach(opened)
            finally:
                os.close(opened)
            self.socket.send(b"\x01")
        except (OSError, ValueError, RuntimeError) as error:
            self.socket.close()  # which tells the sender
            raise PeerError(
                f"the shared memory of {self.link.peer} cannot be opened ({error}); HETCCL_PATHS=tcp avoids it"
            ) from error
        return True


def reach() -> str | None:
    """What two processes must have in common to share memory so: kernel, namespaces, user. None where none can."""
    if not (sys.platform.startswith("linux") and ORDERED):
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "user"))
    except OSError:
        return None
    return f"{boot} {spaces} {os.getuid()}"
