"""Completes futures on threads of their own.

A callback of a future may wait for another collective (torch's PowerSGD hook does), so futures are completed neither
on the engine's thread nor on a single other one: there is always an idle completer, or a new one starts.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

_LINGER = 5.0
"""Seconds that an idle completer stays."""


class Completer:
    """Runs callables, none waiting for another."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def submit(self, task: Callable[[], None]) -> None:
        with self._lock:
            start = self._idle == 0
            self._idle += -1 if not start else 0
        self._tasks.put(task)
        if start:
            threading.Thread(target=self._run, name="hetccl-completer", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=_LINGER)
            except queue.Empty:
                with self._lock:
                    if self._idle == 0:
                        continue  # a task was promised to this thread and is about to arrive
                    self._idle -= 1
                return
            try:
                task()
            except Exception:
                logging.getLogger("hetccl").exception("a future's callback failed")
            with self._lock:
                self._idle += 1


completer = Completer()
"""One for the process."""
