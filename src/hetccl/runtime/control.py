"""The control plane of a group: who is alive, who called what, and why it failed.

A star: every rank keeps one authenticated connection to the group's rank 0. Off the critical path it carries the
fingerprint of each collective, compared by rank 0 in order, so that ranks that called different things learn what each
one called; the death of a rank (its connection ends without a goodbye); and faults, passed on to all.

Frames are a length and JSON text; nothing is pickled.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import DesyncError, HetcclError, PeerError, TimeoutError

_PERIOD = 0.02
_LONGEST = 1 << 20
_ERRORS: dict[str, type[HetcclError]] = {"peer": PeerError, "desync": DesyncError, "timeout": TimeoutError}


class _Wire:
    """Framed JSON over one socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self._buffer = connection, b""
        connection.settimeout(2.0)

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        with contextlib.suppress(OSError):  # the reading side notices the end of the connection
            self.socket.sendall(struct.pack("!I", len(data)) + data)

    def read(self) -> list[dict[str, Any]] | None:
        """The messages that have come; None at the end of the connection."""
        try:
            data = self.socket.recv(1 << 16)
        except (builtins.TimeoutError, BlockingIOError):
            return []
        except OSError:
            return None
        if not data:
            return None
        self._buffer += data
        messages = []
        while len(self._buffer) >= 4:
            (length,) = struct.unpack_from("!I", self._buffer)
            if length > _LONGEST:
                return None
            if len(self._buffer) < 4 + length:
                break
            messages.append(json.loads(self._buffer[4 : 4 + length]))
            self._buffer = self._buffer[4 + length :]
        return messages


class Control:
    """One rank's end of the star. `fail` is called, on the control thread, with the fault that ends the group."""

    def __init__(
        self,
        rank: int,
        titles: list[str],
        connections: dict[int, socket.socket],
        fail: Callable[[HetcclError], None],
    ) -> None:
        """`connections`: at rank 0 one to each other rank, elsewhere one to rank 0. `titles` name the ranks."""
        self._rank, self._titles, self._fail = rank, titles, fail
        self._wires = {peer: _Wire(connection) for peer, connection in connections.items()}
        self._records: deque[tuple[int, int, str]] = deque()
        self._hub = _Hub(len(titles), titles) if rank == 0 else None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._verdict = threading.Event()
        self._verdict_error: HetcclError | None = None
        self._thread = threading.Thread(target=self._run, name="hetccl-control", daemon=True)
        self._thread.start()

    def record(self, sequence: int, fingerprint: int, title: str) -> None:
        """Note a call; it is sent with the next batch."""
        self._records.append((sequence, fingerprint, title))

    def explain(self, sequence: int | None, error: HetcclError, patience: float = 1.0) -> HetcclError:
        """Report a local failure to all; returns the group's verdict, which may know more than this rank."""
        if not self._wires or self._closing.is_set():
            return error
        kind = next((kind for kind, cls in _ERRORS.items() if isinstance(error, cls)), "peer")
        report = {"fault": kind, "text": str(error), "sequence": sequence, "rank": self._rank}
        time.sleep(3 * _PERIOD)  # a death or a disagreement, if that is the cause, is about to be known
        if not self._verdict.is_set():
            if self._hub is not None:
                self._judge(report)
            else:
                for wire in self._wires.values():
                    wire.send(report)
        if not self._verdict.wait(patience):
            # Only rank 0 knows who did not come; that it is silent is what can be said without it.
            silent = type(error)(f"{error}; {self._titles[0]}, which compares the ranks' calls, doesn't answer")
            silent.__cause__ = error.__cause__
            return self._verdict_error or silent
        return self._verdict_error or error

    def close(self) -> None:
        """Say goodbye and end. Peers then don't take the end of the connection for a death."""
        self._flush()
        self._closing.set()
        for wire in self._wires.values():
            wire.send({"bye": True})
        self._thread.join(timeout=2)
        for wire in self._wires.values():
            wire.socket.close()

    def _run(self) -> None:
        live = dict(self._wires)
        while not self._closing.is_set():
            if not live:
                self._closing.wait(_PERIOD)
                continue
            readable, _, _ = select.select([wire.socket for wire in live.values()], [], [], _PERIOD)
            self._flush()
            for peer, wire in list(live.items()):
                if wire.socket not in readable:
                    continue
                messages = wire.read()
                if messages is None:
                    del live[peer]
                    if not self._closing.is_set():
                        self._lost(peer)
                    continue
                for message in messages:
                    if "bye" in message:
                        live.pop(peer, None)
                    else:
                        self._take(peer, message)

    def _flush(self) -> None:
        with self._lock:
            batch = [self._records.popleft() for _ in range(len(self._records))]
        if not batch:
            return
        if self._hub is not None:
            self._take(0, {"calls": batch})
            return
        for wire in self._wires.values():
            wire.send({"calls": batch})

    def _take(self, peer: int, message: dict[str, Any]) -> None:
        if "verdict" in message:
            self._announce(message)
        elif self._hub is not None:
            if "fault" in message:
                self._judge(message)
            for sequence, fingerprint, title in message.get("calls", ()):
                if conflict := self._hub.note(peer, sequence, fingerprint, title):
                    self._judge({"fault": "desync", "text": conflict, "sequence": sequence, "rank": 0})

    def _lost(self, peer: int) -> None:
        if self._hub is not None:
            last = self._hub.last(peer)
            text = f"{self._titles[peer]} died: its connection ended without a goodbye; {last}"
            self._judge({"fault": "peer", "text": text, "sequence": None, "rank": 0})
        else:
            self._announce(
                {"verdict": "peer", "text": f"{self._titles[0]} died: its connection ended without a goodbye"}
            )

    def _judge(self, report: dict[str, Any]) -> None:
        """At rank 0: complete a fault with what the hub knows, tell all."""
        assert self._hub is not None
        if self._verdict.is_set():
            return
        text = report["text"]
        if report["fault"] == "timeout" and report["sequence"] is not None:
            text += self._hub.laggards(report["sequence"])
        if report["fault"] != "desync" and report["rank"] != 0:
            text = f"{text} [reported by {self._titles[report['rank']]}]"
        message = {"verdict": report["fault"], "text": text}
        for wire in self._wires.values():
            wire.send(message)
        self._announce(message)

    def _announce(self, message: dict[str, Any]) -> None:
        with self._lock:
            if self._verdict.is_set():
                return
            self._verdict_error = _ERRORS.get(message["verdict"], PeerError)(message["text"])
            self._verdict.set()
        self._fail(self._verdict_error)


class _Hub:
    """What rank 0 knows of everyone's calls."""

    def __init__(self, size: int, titles: list[str]) -> None:
        self._size, self._titles = size, titles
        self._open: dict[int, dict[int, tuple[int, str]]] = {}
        self._last: dict[int, tuple[int, str]] = {}

    def note(self, rank: int, sequence: int, fingerprint: int, title: str) -> str | None:
        """Take in a call; the sentence that shows all ranks' calls, once two differ."""
        self._last[rank] = (sequence, title)
        calls = self._open.setdefault(sequence, {})
        calls[rank] = (fingerprint, title)
        if len({value for value, _ in calls.values()}) > 1:
            listing = "; ".join(f"{self._titles[r]}: {calls[r][1]}" for r in sorted(calls))
            return f"the ranks called different things as operation {sequence}: {listing}"
        if len(calls) == self._size:
            del self._open[sequence]
        return None

    def last(self, rank: int) -> str:
        if rank not in self._last:
            return "it had not called any collective"
        sequence, title = self._last[rank]
        return f"its last call was operation {sequence}, {title}"

    def laggards(self, sequence: int) -> str:
        """The ranks that did not call an operation, by name."""
        missing = [rank for rank in range(self._size) if self._last.get(rank, (-1, ""))[0] < sequence]
        if not missing:
            return "; all ranks had called it"
        names = "; ".join(f"{self._titles[rank]} ({self.last(rank)})" for rank in missing)
        return f"; did not call it: {names}"
