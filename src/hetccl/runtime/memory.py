"""A rank's memory during one operation: its tensors, and scratch from a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..arrays import array
from ..plan.program import Piece, Program
from ..transports.base import Data


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
    """The named buffers of a program, as flat tensors of one dtype: its scratch, and the tensors given for a run."""

    def __init__(self, program: Program, dtype: torch.dtype, device: torch.device, pool: Pool) -> None:
        self.dtype, self.device = dtype, device
        self._pool, self._host = pool, device.type == "cpu"
        self._blocks: list[torch.Tensor] = []
        self._buffers: dict[str, torch.Tensor] = {}
        self._raw: dict[str, Data] = {}
        for name, length in program.scratch.items():
            self._buffers[name] = self.temporary(length)
        self._lasting = len(self._blocks)
        self.nbytes = sum(block.numel() for block in self._blocks)
        """Of the scratch."""

    def lend(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take in the user's tensors for one run."""
        for name, tensor in tensors.items():
            self._buffers[name] = tensor
            self._raw.pop(name, None)

    def temporary(self, length: int) -> torch.Tensor:
        """Scratch that lives until the end of the run."""
        nbytes = length * self.dtype.itemsize
        if not nbytes:
            return torch.empty(0, dtype=self.dtype, device=self.device)
        block = self._pool.take(nbytes, self.device)
        self._blocks.append(block)
        return block[:nbytes].view(self.dtype)

    def views(self, piece: Piece) -> list[torch.Tensor]:
        """The spans of a piece, as they lie."""
        if not piece.spans:
            return []  # a rank without a share may have no such tensor
        buffer = self._buffers[piece.buffer]
        whole = ((0, buffer.numel()),)
        if piece.spans == whole:
            return [buffer]
        return [buffer[offset : offset + length] for offset, length in piece.spans]

    def bytes(self, piece: Piece) -> list[Data]:
        """The same as bytes, for paths: slices of one array where that is possible, which cost the least."""
        if not piece.spans:
            return []
        raw, width = self.raw(piece.buffer), self.dtype.itemsize
        return [raw[width * offset : width * (offset + length)] for offset, length in piece.spans]

    def raw(self, buffer: str) -> Data:
        """All of a buffer as bytes."""
        raw = self._raw.get(buffer)
        if raw is None:
            data = self._buffers[buffer].view(torch.uint8)
            raw = self._raw[buffer] = array(data) if self._host else data
        return raw

    def load(self, piece: Piece) -> torch.Tensor:
        """The piece as one contiguous tensor: itself where it is one span, else a packed copy."""
        views = self.views(piece)
        if len(views) == 1:
            return views[0]
        packed = self.temporary(piece.length)
        if views:
            torch.cat(views, out=packed)
        return packed

    def room(self, piece: Piece) -> torch.Tensor:
        """A contiguous tensor to write the piece into; `store` then puts it in place."""
        views = self.views(piece)
        return views[0] if len(views) == 1 else self.temporary(piece.length)

    def store(self, piece: Piece, data: torch.Tensor) -> None:
        """Put what was written to `room(piece)` in place; nothing to do where it is in place."""
        views = self.views(piece)
        if len(views) > 1:
            for view, part in zip(views, data.split([view.numel() for view in views]), strict=True):
                view.copy_(part)

    def rest(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """End a run, keeping the scratch for the next: forget its tensors. Only once nothing is in flight."""
        for name in tensors:
            del self._buffers[name]
            self._raw.pop(name, None)
        self._give_back(self._lasting)

    def release(self) -> None:
        """Hand everything back. Only once nothing is in flight on it."""
        self._give_back(0)
        self._buffers, self._raw = {}, {}

    def _give_back(self, first: int) -> None:
        for block in self._blocks[first:]:
            self._pool.give(block)
        del self._blocks[first:]


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
