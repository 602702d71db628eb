"""The engine of one group: what is in flight, and who drives it.

Collectives run one after the other in the order of the calls; point-to-point operations run beside them. Whoever
waits drives the engine itself, which saves two thread switches a call; a background thread drives it for those who
don't wait.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import AbortedError, HetcclError, PeerError, TimeoutError


class Task(Protocol):
    """What the engine drives: an `Execution`, or a direct vendor call."""

    def advance(self) -> bool:
        """Make progress without blocking; True when done."""

    def describe(self) -> str:
        """What is awaited."""


class Operation:
    """One call by the user: its task, its place in the program, and its outcome."""

    def __init__(
        self,
        task: Task,
        title: str,
        sequence: int,
        timeout: float,
        finish: Callable[[], None] | None = None,
    ) -> None:
        """`title` is the call in words; `finish` runs once the task is done (copies results out).

        `sequence` is the number that all ranks count alike; 0 for point to point, which is in no order.
        """
        self.task, self.title, self.sequence, self.ordered = task, title, sequence, sequence > 0
        self.timeout, self.finish = timeout, finish
        self.deadline = time.monotonic() + timeout
        self.done = False
        self.error: BaseException | None = None
        self.settled: Callable[[], bool] | None = getattr(task, "settled", None)
        """Of a task on streams: whether what is on them has come true."""
        self.event: Any = None
        """Of a task on streams: its end, once all is on them."""
        self._callbacks: list[Callable[[Operation], None]] = []
        self._lock = threading.Lock()

    def then(self, callback: Callable[[Operation], None]) -> None:
        """Call back when done, at once if it is."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback(self)

    def complete(self, error: BaseException | None) -> None:
        with self._lock:
            if self.done:
                return
            self.error = error
            self.done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class Engine:
    """Drives a group's operations. `explain` may turn a local failure into a better-informed one."""

    def __init__(
        self,
        name: str,
        explain: Callable[[str, int, HetcclError], HetcclError],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """After a fault `release` frees streams that wait for a peer."""
        self._name, self.explain, self._release = name, explain, release
        self._lock = threading.Lock()
        self._wake = threading.Condition()
        self._stirred = False
        self._ordered: deque[Operation] = deque()
        self._beside: list[Operation] = []
        self._landing: list[Operation] = []
        """On streams, and not yet come true."""
        self._waiters = 0
        self._thread: threading.Thread | None = None
        self._closed = False
        self.fault: HetcclError | None = None

    def submit(self, operation: Operation, awaited: bool = False) -> None:
        """Queue an operation. After a fault every operation fails with it at once.

        `awaited`: the caller waits for it right away, and so drives it; the thread need not wake.
        """
        with self._wake:
            if self.fault is None and not self._closed:
                (self._ordered if operation.ordered else self._beside).append(operation)
                if not awaited:
                    self._rouse()
                return
        operation.complete(self.fault or AbortedError("the process group was destroyed"))

    def look(self) -> None:
        """One round of progress, unless somebody else is at it."""
        if self._lock.acquire(blocking=False):
            try:
                self._drive()
            finally:
                self._lock.release()

    def rouse(self) -> None:
        """Have the thread drive what is in flight, as somebody looks at it without waiting."""
        with self._wake:
            if not self.idle():
                self._rouse()

    def _rouse(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"hetccl-{self._name}", daemon=True)
            self._thread.start()
        self._stirred = True
        self._wake.notify()

    def wait(self, operation: Operation, timeout: float | None, placed: bool = False) -> bool:
        """Drive until the operation is done; False where `timeout` seconds pass before.

        With `placed`, only until all of it is on streams.
        """
        limit = None if timeout is None else time.monotonic() + timeout
        self._waiters += 1
        pause = Pause()
        try:
            while not (operation.done or (placed and operation.event is not None)):
                if limit is not None and time.monotonic() >= limit:
                    return False
                if self._lock.acquire(timeout=0.001):
                    try:
                        moved = self._drive()
                    finally:
                        self._lock.release()
                    pause.after(moved)
        finally:
            self._waiters -= 1
            if not self.idle():
                self.rouse()
        return True

    def quiet(self) -> bool:
        """Whether no operation is in flight that others must come after."""
        return not self._ordered

    def about(self, title: str) -> HetcclError:
        """The fault that ended the group, as the error of one more call."""
        assert self.fault is not None
        return _about(self.fault, title)

    def idle(self) -> bool:
        return not self._ordered and not self._beside and not self._landing

    def fail(self, error: HetcclError) -> None:
        """Fail all that is in flight and all that comes. The first fault stays."""
        with self._wake:
            if self.fault is None:
                self.fault = error
            pending = [*self._ordered, *self._beside, *self._landing]
            self._ordered.clear()
            self._beside.clear()
            self._landing.clear()
            self._wake.notify()
        for operation in pending:
            operation.complete(_about(self.fault, operation.title))
        self._release()

    def drain(self) -> None:
        """See what is on streams to its end, since peers may still wait for a part of it; each has its deadline."""
        while self._landing:
            with self._lock:
                self._drive()
            time.sleep(0.0001)

    def close(self) -> None:
        """End the thread. What is in flight fails with AbortedError."""
        self._closed = True
        if not self.idle():
            self.fail(AbortedError("the process group was destroyed with this operation in flight"))
        with self._wake:
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        pause = Pause()
        while not self._closed:
            with self._wake:
                if self.idle() or self._waiters or not self._stirred:
                    self._stirred = False
                    self._wake.wait(timeout=0.05 if self._waiters else None)
                    continue
            with self._lock:
                moved = self._drive()
            pause.after(moved)

    def _drive(self) -> bool:
        """One round of progress, under the lock; whether anything ended."""
        ended = bool(self._ordered) and self._advance(self._ordered[0])
        if self._beside:
            for operation in list(self._beside):
                ended |= self._advance(operation)
        if self._landing:
            for operation in list(self._landing):
                ended |= self._advance(operation)
        return ended

    def _advance(self, operation: Operation) -> bool:
        """Drive one operation; whether it ended. A failure is the whole group's."""
        try:
            step = operation.task.advance if operation.event is None else operation.settled
            assert step is not None
            if not step():
                if time.monotonic() < operation.deadline:
                    return False
                raise TimeoutError(f"Timed out after {operation.timeout:g} s in {operation.task.describe()}")
            if operation.finish is not None:
                operation.finish()
        except HetcclError as error:
            self.fail(self.explain(operation.title, operation.sequence, error))
            return True
        except Exception as error:
            wrapped = PeerError(f"{operation.title} failed in {operation.task.describe()}: {error}")
            wrapped.__cause__ = error
            self.fail(self.explain(operation.title, operation.sequence, wrapped))
            return True
        with self._wake:
            if operation.ordered:
                if self._ordered and self._ordered[0] is operation:
                    self._ordered.popleft()
            elif operation in self._beside:
                self._beside.remove(operation)
            if operation.settled is not None and operation.event is None:
                operation.event = getattr(operation.task, "event", None)
                self._landing.append(operation)
                return True
            if operation in self._landing:
                self._landing.remove(operation)
        operation.complete(None)
        return True


class Pause:
    """Spin a little, then sleep, since a blocking wake-up costs more than anything else on short waits."""

    def __init__(self) -> None:
        self._misses = 0

    def after(self, moved: bool) -> None:
        if moved:
            self._misses = 0
            return
        self._misses += 1
        if self._misses < _SPINS:
            _yield()
        else:
            time.sleep(min(0.001, 20e-6 * (self._misses - _SPINS)))


_SPINS = 500
_yield = ctypes.CDLL(None).sched_yield
"""Gives up the processor, for peers that share it, and, being called through ctypes, the interpreter too.
time.sleep(0) would do the same at four times the latency."""


def _about(fault: HetcclError, title: str) -> HetcclError:
    """The fault as one operation's error: each gets its own instance, so tracebacks don't pile up."""
    text = str(fault)
    if title not in text:
        text = f"{text} (while in {title})"
    error = type(fault)(text)
    error.__cause__ = fault.__cause__
    return error
