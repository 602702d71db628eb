"""Messages of a rank to itself, kept as copies until they are received."""

from __future__ import annotations

import threading
from collections import defaultdict, deque

import torch

from ..errors import DesyncError
from ..request import Done, Request


class _Receipt:
    """A receive that waits for its message."""

    def __init__(self, data: torch.Tensor, tag: int) -> None:
        self.data, self._tag, self._done = data, tag, False
        self._error: DesyncError | None = None

    def fill(self, letter: torch.Tensor) -> None:
        if letter.numel() == self.data.numel():
            self.data.copy_(letter)
        else:
            self._error = DesyncError(
                f"this rank sent itself {letter.numel()} bytes with tag {self._tag} where it receives"
                f" {self.data.numel()}; give both tensors one size"
            )
        self._done = True

    def test(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._done

    def describe(self) -> str:
        return f"{self.data.numel()} bytes with tag {self._tag} from this rank itself"


class Loopback:
    """In order per tag, whichever of send and receive is called first."""

    def __init__(self) -> None:
        self._sent: dict[int, deque[torch.Tensor]] = defaultdict(deque)
        self._awaited: dict[int, deque[_Receipt]] = defaultdict(deque)
        self._lock = threading.Lock()  # receives from any rank are posted by whoever drives the engine

    def send(self, data: torch.Tensor, tag: int) -> Request:
        with self._lock:
            if self._awaited[tag]:
                self._awaited[tag].popleft().fill(data)
            else:
                self._sent[tag].append(data.clone())
        return Done()

    def receive(self, data: torch.Tensor, tag: int) -> Request:
        receipt = _Receipt(data, tag)
        with self._lock:
            if self._sent[tag]:
                receipt.fill(self._sent[tag].popleft())
            else:
                self._awaited[tag].append(receipt)
        return receipt

    def arrived(self, tag: int) -> bool:
        """Whether a message lies there that no receive has taken."""
        return bool(self._sent[tag])
