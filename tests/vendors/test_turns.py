"""The order in which a communicator's calls reach its library (`vendors/turns.py`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hetccl.errors import PeerError
from hetccl.request import Request
from hetccl.vendors.turns import Phases, Turns


class Manual:
    """A request that is done when the test says so."""

    def __init__(self) -> None:
        self.done = False

    def test(self) -> bool:
        return self.done

    def describe(self) -> str:
        return "the test"


class Library:
    """Notes what is started, in order."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.requests: dict[str, Manual] = {}

    def starter(self, name: str) -> Callable[[], Request]:
        def start() -> Request:
            self.started.append(name)
            self.requests[name] = Manual()
            return self.requests[name]

        return start

    def phases(self, *names: str) -> Callable[[], Phases]:
        def phases() -> Phases:
            for name in names:
                yield self.starter(name)()

        return phases

    def finish(self, name: str) -> None:
        self.requests[name].done = True


def test_single_calls_are_in_flight_together() -> None:
    library, turns = Library(), Turns()
    first, second = (turns.call(library.starter(name), name) for name in "ab")
    assert library.started == ["a", "b"]
    library.finish("b")
    assert second.test()
    assert not first.test()


def test_a_call_of_several_phases_holds_back_whatever_comes_later() -> None:
    library, turns = Library(), Turns()
    held = turns.hold(library.phases("a1", "a2"), "a")
    single = turns.call(library.starter("b"), "b")
    other = turns.hold(library.phases("c1"), "c")
    last = turns.call(library.starter("d"), "d")
    assert library.started == ["a1"]
    assert single.describe() == "the turn of b"
    library.finish("a1")
    assert not last.test()  # whoever is asked, the turn at the head goes on
    assert library.started == ["a1", "a2"]
    library.finish("a2")
    assert not other.test()
    assert library.started == ["a1", "a2", "b", "c1"]  # b is under way, which is enough for c to start
    assert held.test()
    library.finish("c1")
    assert not last.test()
    assert library.started[-1] == "d"
    for name in "bd":
        library.finish(name)
    assert single.test()
    assert last.test()


def test_after_a_failure_nothing_more_reaches_the_library() -> None:
    library, turns = Library(), Turns()

    def broken() -> Phases:
        yield library.starter("a")()
        raise PeerError("rank 3 is gone")

    held = turns.hold(broken, "a")
    later = turns.call(library.starter("b"), "b")
    library.finish("a")
    for request in (later, held, later):
        with pytest.raises(PeerError, match="rank 3"):
            request.test()
    assert library.started == ["a"]
