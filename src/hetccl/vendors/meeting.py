"""Waiting for the members before a library starts, whose own wait would have no end, or would name nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import TimeoutError
from .base import Setup

T = TypeVar("T")


def meet(setup: Setup, purpose: str, note: str = "here") -> list[str]:
    """Wait until all members have come, and return their notes. TimeoutError names the ranks that did not."""
    keys = _keys(setup, purpose)
    setup.store.set(keys[setup.index], note)
    # Asking again and again, as the store's own wait writes to stderr when it times out.
    end, pause = time.monotonic() + setup.timeout.total_seconds(), 0.001
    while not setup.store.check(keys):
        if time.monotonic() > end:
            raise late(setup, purpose, "never came")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return [bytes(setup.store.get(key)).decode() for key in keys]


def within(setup: Setup, purpose: str, call: Callable[[], T]) -> T:
    """Run a call that waits for the other members, for no longer than setup.timeout.

    The call that comes too late is left behind on its thread: a library gives no way to take it back.
    """
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, name=f"hetccl-{purpose}", daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(setup.timeout.total_seconds())
    if failure:
        raise failure[0]
    if not outcome:
        raise late(setup, purpose, f"did not get through it in {time.monotonic() - began:.0f} s")
    setup.store.set(_keys(setup, purpose)[setup.index], "done")
    return outcome[0]


def late(setup: Setup, purpose: str, what: str) -> TimeoutError:
    """The error for members that have not set their key for `purpose`."""
    keys = _keys(setup, purpose)
    missing = [
        rank
        for place, (rank, key) in enumerate(zip(setup.ranks, keys, strict=True))
        if place != setup.index and not setup.store.check([key])
    ]
    who = f"ranks {missing} {what}" if missing else "all ranks came, too late"
    return TimeoutError(
        f"Timed out after {setup.timeout.total_seconds():g} s in {purpose} of communicator {setup.name}: {who}"
    )


def _keys(setup: Setup, purpose: str) -> list[str]:
    return [f"{purpose}/{place}" for place in range(len(setup.ranks))]
