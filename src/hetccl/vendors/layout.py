"""Tensors that a library wants as one: seen as one where they lie side by side, packed where they don't.

Which of the two is a matter of this member alone. Nothing that the members must agree on may depend on it, since the
same call finds its tensors placed differently on each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8: libraries move any dtype in this form."""
    return tensor.detach().view(torch.uint8)


def run(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One view over tensors that follow each other in one storage, or None where they don't."""
    filled = [tensor for tensor in tensors if tensor.numel()]
    if not filled:
        return tensors[0][:0]
    first = filled[0]
    storage, at = first.untyped_storage().data_ptr(), first.storage_offset()
    for tensor in filled:
        if tensor.storage_offset() != at or tensor.untyped_storage().data_ptr() != storage:
            return None
        at += tensor.numel()
    return torch.as_strided(first.detach(), (at - first.storage_offset(),), (1,))


def gathered(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensors as one: the view where there is one, else a copy."""
    whole = run(tensors)
    return torch.cat([tensor.detach() for tensor in tensors]) if whole is None else whole


class Room:
    """One tensor for a library to write to in place of several. `settle` puts the result where it belongs."""

    def __init__(self, targets: Sequence[torch.Tensor]) -> None:
        view = run(targets)
        self._targets = targets
        self.packed = view is None
        total = sum(target.numel() for target in targets)
        self.whole = targets[0].new_empty(total) if view is None else view

    def settle(self) -> None:
        if self.packed:
            at = 0
            for target in self._targets:
                target.copy_(self.whole[at : at + target.numel()])
                at += target.numel()
