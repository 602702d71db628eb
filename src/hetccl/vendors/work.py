"""c10d works as requests. They keep their tensors alive."""

from __future__ import annotations

import threading
from typing import Any

from ..completer import completer
from ..errors import PeerError


class Polled:
    """A work that tells by itself that it is done."""

    def __init__(self, work: Any, what: str, keep: object) -> None:
        self._work, self._what, self._keep = work, what, keep

    def test(self) -> bool:
        if self._work is None:
            return True
        if not self._work.is_completed():
            return False
        try:
            self._work.wait()
        except Exception as error:
            raise PeerError(f"{self._what} failed: {error}") from error
        self._work = self._keep = None
        return True

    def describe(self) -> str:
        return self._what


class Placed:
    """A work on a device: what comes on the current stream waits for it, and no processor does."""

    def __init__(self, work: Any, what: str, keep: object) -> None:
        self._work, self._what, self._keep = work, what, keep

    def test(self) -> bool:
        if self._work is not None:
            try:
                self._work.wait()
            except Exception as error:
                raise PeerError(f"{self._what} failed: {error}") from error
            self._work = None
        return True

    def describe(self) -> str:
        return self._what


class Waited:
    """A work that only ends inside wait(): it is waited for on a thread of its own."""

    def __init__(self, work: Any, what: str, keep: object) -> None:
        self._what, self._keep = what, keep
        self._error: Exception | None = None
        self._ended = threading.Event()
        completer.submit(lambda: self._wait(work))

    def _wait(self, work: Any) -> None:
        try:
            work.wait()
        except Exception as error:
            self._error = error
        self._ended.set()

    def test(self) -> bool:
        if not self._ended.is_set():
            return False
        if self._error is not None:
            raise PeerError(f"{self._what} failed: {self._error}") from self._error
        self._keep = None
        return True

    def describe(self) -> str:
        return self._what
