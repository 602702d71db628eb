"""Requests: work that was started and is asked, without blocking, whether it is done."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol


class Request(Protocol):
    """Something in flight. `test` makes progress and never blocks."""

    def test(self) -> bool:
        """True once done. Raises the failure if it failed; stays true (or raising) afterwards."""

    def describe(self) -> str:
        """What is awaited and from whom, for an error message: "64 KiB from rank 3"."""


class Done:
    """A request that was complete when it was made."""

    def test(self) -> bool:
        return True

    def describe(self) -> str:
        return "nothing"


class Together:
    """Done when all of several requests are done."""

    def __init__(self, requests: list[Request]) -> None:
        self._pending = requests

    def test(self) -> bool:
        # Every one is polled each time: each needs its own progress.
        self._pending = [request for request in self._pending if not request.test()]
        return not self._pending

    def describe(self) -> str:
        return "; ".join(request.describe() for request in self._pending) or "nothing"


class Script:
    """A request made of phases: a generator that yields the requests to wait for in turn."""

    def __init__(self, phases: Generator[Request, None, None]) -> None:
        self._phases = phases
        self._current: Request | None = Done()
        self._error: Exception | None = None

    def test(self) -> bool:
        if self._error is not None:
            raise self._error
        try:
            while self._current is not None:
                if not self._current.test():
                    return False
                self._current = next(self._phases, None)
        except Exception as error:
            self._error = error
            raise
        return True

    def describe(self) -> str:
        return self._current.describe() if self._current is not None else "nothing"
