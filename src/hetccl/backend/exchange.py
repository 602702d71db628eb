"""all_to_all in all its forms."""

from __future__ import annotations

from typing import Any

import torch

from ..plan.spec import Operation
from ..runtime.call import Call
from ..runtime.caller import moving_spec
from ..runtime.marshal import as_bytes, reading, writing
from ..runtime.work import Work
from .base import Base, Tensors


class Exchange(Base):
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        call = self._call("all_to_all", inputs, opts)
        for tensors, side in ((inputs, "input"), (outputs, "output")):
            if len(tensors) != self.size():
                raise call.refusal(
                    f"the {side} list has {len(tensors)} tensors; pass one for each of {self.size()} ranks"
                )
        self._check([*inputs, *outputs], call)
        width = inputs[0].element_size()
        source, target = reading(list(inputs)), writing(list(outputs))
        return self._note(
            self._caller.uneven_all_to_all(
                call,
                as_bytes(source.data),
                as_bytes(target.data),
                [tensor.numel() * width for tensor in inputs],
                [tensor.numel() * width for tensor in outputs],
                list(outputs),
                target.back,
            )
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Work:
        call = self._call("all_to_all_single", [source], opts)
        self._check([source, output], call)
        given, target = reading([source]), writing([output])
        data, out = as_bytes(given.data), as_bytes(target.data)
        if not input_splits and not output_splits:
            if source.numel() != output.numel() or (source.shape[0] if source.shape else 1) % self.size():
                raise call.refusal(
                    f"the input has the shape {list(source.shape)} and the output {list(output.shape)}; without splits"
                    f" both need the same size, a multiple of {self.size()} in the first dimension"
                )
            spec = moving_spec(Operation.ALL_TO_ALL, self.size(), (data.numel() // self.size(),))
            return self._note(self._caller.collective(spec, call, data, out, [output], target.back))
        return self._note(
            self._caller.uneven_all_to_all(
                call,
                data,
                out,
                self._splits(source, input_splits, call, "input"),
                self._splits(output, output_splits, call, "output"),
                [output],
                target.back,
            )
        )

    alltoall_base = all_to_all_single

    def _splits(self, tensor: torch.Tensor, splits: list[int], call: Call, side: str) -> list[int]:
        """Bytes for each rank out of splits of the first dimension."""
        rows = tensor.shape[0] if tensor.shape else 1
        counts = list(splits) or [rows // self.size()] * self.size()
        if len(counts) != self.size() or sum(counts) != rows or min(counts) < 0:
            raise call.refusal(f"the {side} splits are {counts}; pass {self.size()} numbers that add up to {rows} rows")
        width = tensor.numel() // rows * tensor.element_size() if rows else 0
        return [count * width for count in counts]
