"""broadcast, gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..plan.spec import Operation
from ..runtime.call import Call
from ..runtime.caller import moving_spec
from ..runtime.marshal import as_bytes, reading, writing
from ..runtime.work import Work
from .base import Base, Tensors


class Rooted(Base):
    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        root = opts.rootRank
        call = self._rooted("broadcast", tensors, opts)
        target = writing(list(tensors), filled=self.rank() == root)
        data = as_bytes(target.data)
        spec = moving_spec(Operation.BROADCAST, self.size(), (data.numel(),), root)
        return self._note(self._caller.collective(spec, call, None, data, list(tensors), target.back))

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        (source,), root = inputs, opts.rootRank
        call = self._rooted("gather", [source], opts)
        targets = list(outputs[0]) if self.rank() == root else []
        if self.rank() == root:
            self._equal(targets, source, call)
        data, target = reading([source]), writing(targets) if targets else None
        spec = moving_spec(Operation.GATHER, self.size(), (source.numel() * source.element_size(),), root)
        out = as_bytes(target.data) if target else None
        back = target.back if target else None
        return self._note(self._caller.collective(spec, call, as_bytes(data.data), out, list(outputs), back))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        (output,), root = outputs, opts.rootRank
        call = self._rooted("scatter", [output], opts)
        sources = list(inputs[0]) if self.rank() == root else []
        if self.rank() == root:
            self._equal(sources, output, call)
        data, target = reading(sources) if sources else None, writing([output])
        spec = moving_spec(Operation.SCATTER, self.size(), (output.numel() * output.element_size(),), root)
        given = as_bytes(data.data) if data else None
        return self._note(self._caller.collective(spec, call, given, as_bytes(target.data), [output], target.back))

    def _equal(self, many: list[torch.Tensor], one: torch.Tensor, call: Call) -> None:
        """At the root: one tensor of the same size a rank."""
        self._check([one, *many], call)
        if len(many) != self.size() or any(tensor.numel() != one.numel() for tensor in many):
            raise call.refusal(
                f"the root's list has tensors of {[tensor.numel() for tensor in many]} elements; pass"
                f" {self.size()} tensors of {one.numel()}"
            )
