"""The order in which a communicator's calls reach its library.

A library matches the calls of its members by their order alone. A call of several phases starts its later phases
whenever this member gets round to asking, so with two of them in flight the members would start them in different
orders, and sum one's data into the other's. Hence such a call holds the communicator until its end, and later calls
wait for their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

from ..request import Request, Script

Phases = Generator[Request, None, None]


class Turns:
    """One communicator's queue. Empty, and free of cost, while no call of several phases is in flight."""

    def __init__(self) -> None:
        self._queue: deque[_Turn] = deque()

    def call(self, start: Callable[[], Request], what: str) -> Request:
        """A call of one phase: started at once unless the communicator is held."""
        return self._enter(_Turn(self, start, what, holds=False)) if self._queue else start()

    def hold(self, phases: Callable[[], Phases], what: str) -> Request:
        """A call of several phases, each started when the one before is done."""
        return self._enter(_Turn(self, lambda: Script(phases()), what, holds=True))

    def _enter(self, turn: _Turn) -> Request:
        self._queue.append(turn)
        self.progress()
        return turn

    def progress(self) -> None:
        """Start whatever has its turn. A failure stays at the head: a communicator that failed is of no more use."""
        while self._queue:
            head = self._queue[0]
            request = head.begin()
            if head.holds and not request.test():
                return
            self._queue.popleft()


class _Turn:
    """A call that has, or waits for, its turn."""

    def __init__(self, turns: Turns, start: Callable[[], Request], what: str, holds: bool) -> None:
        self._turns, self._start, self._what, self.holds = turns, start, what, holds
        self._request: Request | None = None
        self._error: Exception | None = None

    def begin(self) -> Request:
        if self._error is not None:
            raise self._error
        if self._request is None:
            try:
                self._request = self._start()
            except Exception as error:
                self._error = error
                raise
        return self._request

    def test(self) -> bool:
        self._turns.progress()
        return self._request is not None and self._request.test()

    def describe(self) -> str:
        return self._request.describe() if self._request is not None else f"the turn of {self._what}"
