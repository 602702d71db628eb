"""What the channels of every built-in path share: failing once and for all, and checking what arrives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from ..arrays import array
from ..errors import AbortedError, DesyncError, HetcclError
from .base import Bytes, Data, Link


class Channel:
    """A channel that fails for good: after one failure nothing later on it may look as if it had succeeded."""

    immediate = False

    def put(self, data: Bytes, tag: int) -> bool:
        raise NotImplementedError

    def take(self, data: Bytes, tag: int) -> bool:
        raise NotImplementedError

    def __init__(self, link: Link) -> None:
        self.link = link
        self._error: HetcclError | None = None

    def pump(self) -> None:
        """Move what can be moved now. Raises the channel's failure, also when asked again."""
        if self._error is not None:
            raise self._error
        try:
            self._pump()
        except HetcclError as error:
            self._error = error
            raise

    def _pump(self) -> None:
        raise NotImplementedError

    def fail(self, error: HetcclError) -> NoReturn:
        """Raise an error, now and whenever the channel is used again."""
        self._error = error
        raise error

    def release(self) -> None:
        """Let streams go on that wait for the other side; nothing to do for a path without streams."""

    def close(self) -> None:
        """Release everything; requests still in flight raise AbortedError. May be called again."""
        if self._error is None:
            self._error = AbortedError(f"the channel with {self.link.peer} was closed")


def expect(tag: int, length: int, wanted_tag: int, wanted_length: int, link: Link) -> None:
    """Raise DesyncError where a message is not the one awaited."""
    if (tag, length) != (wanted_tag, wanted_length):
        raise mismatch(tag, length, wanted_tag, wanted_length, link)


def mismatch(tag: int, length: int, wanted_tag: int, wanted_length: int, link: Link) -> DesyncError:
    return DesyncError(
        f"{link.peer} sent a message of {length} bytes (tag {tag:016x}) where this rank awaits one of"
        f" {wanted_length} (tag {wanted_tag:016x}): the two ranks called different things"
    )


def size(pieces: Sequence[Data]) -> int:
    """Bytes of a message of these pieces."""
    return sum(piece.nbytes for piece in pieces)


def arrays(pieces: Sequence[Data]) -> list[Bytes]:
    """Pieces of CPU memory as arrays, without the empty ones."""
    return [piece if isinstance(piece, np.ndarray) else array(piece) for piece in pieces if piece.nbytes]
