"""Programs: one rank's part of a plan, lowered to operations on its own memory.

The executor, the reference, and the byte account all read programs, so what was proved is what runs.
Offsets and lengths are in elements of the named buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from .region import Region


@dataclass(frozen=True, slots=True)
class Piece:
    """A list of (offset, length) spans in one buffer, taken as one run of data."""

    buffer: str
    spans: tuple[tuple[int, int], ...]

    @property
    def length(self) -> int:
        return sum(length for _, length in self.spans)

    def part(self, start: int, stop: int) -> Piece:
        """The run of data between two positions of this one."""
        if len(self.spans) == 1:
            return Piece(self.buffer, ((self.spans[0][0] + start, stop - start),) if stop > start else ())
        found, at = [], 0
        for offset, length in self.spans:
            first, last = max(start, at), min(stop, at + length)
            if first < last:
                found.append((offset + first - at, last - first))
            at += length
        return Piece(self.buffer, tuple(found))


@dataclass(frozen=True, slots=True)
class Call:
    """A vendor collective among `members`, of which this rank has place `place`. kind, sources and targets:

    reduce_scatter  one source, cut by `parts` (a range of positions a member); one target: this member's
    all_gather      one source: this member's; one target, cut by `parts`
    all_reduce      one target
    reduce          one source, one target, kept at place `root`
    broadcast       one target, from place `root`
    exchange        sources to the members at `places[0]`, targets from the members at `places[1]`
    barrier         none
    """

    step: int
    kind: str
    members: tuple[int, ...]
    place: int = 0
    sources: tuple[Piece, ...] = ()
    targets: tuple[Piece, ...] = ()
    parts: tuple[tuple[int, int], ...] = ()
    root: int = 0
    places: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class Send:
    """One message to a rank of another cluster."""

    step: int
    peer: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Receive:
    """One message from a rank of another cluster."""

    step: int
    peer: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Reduce:
    """target = sources[0] ∘ sources[1] ∘ …, in this order."""

    step: int
    sources: tuple[Piece, ...]
    target: Piece


@dataclass(frozen=True, slots=True)
class Move:
    """Copy within this rank."""

    step: int
    source: Piece
    target: Piece


@dataclass(frozen=True, slots=True)
class Set:
    """Fill with the reduction's identity, or divide by the number of ranks."""

    step: int
    kind: str
    target: Piece


Op = Call | Send | Receive | Reduce | Move | Set


@dataclass(frozen=True)
class Program:
    """What one rank does. Operation i may begin when all of `waits[i]` are done.

    Vendor calls must in addition begin in program order (all members agree on it), and so must the messages to one
    peer, and those from one peer.
    """

    rank: int
    operations: tuple[Op, ...]
    waits: tuple[tuple[int, ...], ...]
    scratch: dict[str, int]
    """Elements of each scratch buffer."""
    extents: dict[str, Region]
    """The coordinates that each buffer holds, packed; for explanations and the reference."""


def touched(operation: Op) -> tuple[list[Piece], list[Piece]]:
    """(what it reads, what it writes)."""
    match operation:
        case Send():
            return [operation.piece], []
        case Receive():
            return [], [operation.piece]
        case Reduce():
            return list(operation.sources), [operation.target]
        case Move():
            return [operation.source], [operation.target]
        case Set():
            return ([operation.target] if operation.kind == "scale" else []), [operation.target]
        case Call(kind="reduce_scatter") | Call(kind="reduce"):
            # A library may use the other pieces as work space only where the result goes to the same buffer.
            clobbered = [p for p in operation.sources if any(t.buffer == p.buffer for t in operation.targets)]
            return list(operation.sources), [*operation.targets, *clobbered]
        case Call(kind="all_gather"):
            (whole,) = operation.targets
            start, stop = operation.parts[operation.place]
            return list(operation.sources), [whole.part(0, start), whole.part(stop, whole.length)]
        case Call():
            return [*operation.sources, *operation.targets], list(operation.targets)


def lane_of(operation: Op) -> tuple[str, int] | None:
    """The queue in which an operation must begin in order, if any."""
    match operation:
        case Call():
            return ("vendor", 0)
        case Send():
            return ("send", operation.peer)
        case Receive():
            return ("receive", operation.peer)
    return None
