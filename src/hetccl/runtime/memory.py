"""A rank's memory during one operation: its tensors, and scratch from a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..plan.program import Piece, Program


class Pool:
    """Scratch memory kept between operations, since fresh pages cost more than copying into old ones.

    Blocks are rounded up to powers of two and handed back whole. Not locked: the engine's lock protects it.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[torch.device, int], list[torch.Tensor]] = {}

    def take(self, nbytes: int, device: torch.device) -> torch.Tensor:
        size = 1 << max(6, (nbytes - 1).bit_length())
        blocks = self._free.get((device, size))
        return blocks.pop() if blocks else torch.empty(size, dtype=torch.uint8, device=device)

    def give(self, block: torch.Tensor) -> None:
        self._free.setdefault((block.device, block.numel()), []).append(block)

    def clear(self) -> None:
        self._free.clear()


class Memory:
    """The named buffers of a program, as flat tensors of one dtype."""

    def __init__(
        self, program: Program, given: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device, pool: Pool
    ) -> None:
        self._pool = pool
        self._blocks: list[torch.Tensor] = []
        self._buffers = dict(given)
        for name, length in program.scratch.items():
            block = self.temporary(length, dtype, device)
            self._buffers[name] = block
        self._dtype, self._device = dtype, device

    def temporary(self, length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Scratch that lives until `release`."""
        nbytes = length * dtype.itemsize
        if not nbytes:
            return torch.empty(0, dtype=dtype, device=device)
        block = self._pool.take(nbytes, device)
        self._blocks.append(block)
        return block[:nbytes].view(dtype)

    def views(self, piece: Piece) -> list[torch.Tensor]:
        """The spans of a piece, as they lie."""
        if not piece.spans:
            return []  # a rank without a share may have no such tensor
        buffer = self._buffers[piece.buffer]
        return [buffer[offset : offset + length] for offset, length in piece.spans]

    def bytes(self, piece: Piece) -> list[torch.Tensor]:
        """The same as bytes, for paths."""
        return [view.view(torch.uint8) for view in self.views(piece)]

    def load(self, piece: Piece) -> torch.Tensor:
        """The piece as one contiguous tensor: itself where it is one span, else a packed copy."""
        views = self.views(piece)
        if len(views) == 1:
            return views[0]
        packed = self.temporary(piece.length, self._dtype, self._device)
        if views:
            torch.cat(views, out=packed)
        return packed

    def room(self, piece: Piece) -> torch.Tensor:
        """A contiguous tensor to write the piece into; `store` then puts it in place."""
        views = self.views(piece)
        return views[0] if len(views) == 1 else self.temporary(piece.length, self._dtype, self._device)

    def store(self, piece: Piece, data: torch.Tensor) -> None:
        """Put what was written to `room(piece)` in place; nothing to do where it is in place."""
        views = self.views(piece)
        if len(views) > 1:
            for view, part in zip(views, data.split([view.numel() for view in views]), strict=True):
                view.copy_(part)

    def release(self) -> None:
        """Hand the scratch back. Only once nothing is in flight on it."""
        for block in self._blocks:
            self._pool.give(block)
        self._blocks = []
        self._buffers = {}


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as one dimension, sharing memory."""
    return tensor.view(-1)


def adjacent(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One flat view over tensors that lie one after the other in one storage; None where they don't."""
    first = tensors[0]
    if not all(t.is_contiguous() and t.dtype is first.dtype for t in tensors):
        return None
    storage, at = first.untyped_storage().data_ptr(), first.storage_offset()
    total = 0
    for tensor in tensors:
        if tensor.numel() and (tensor.untyped_storage().data_ptr() != storage or tensor.storage_offset() != at + total):
            return None
        total += tensor.numel()
    return torch.as_strided(first, (total,), (1,), at) if total else None
