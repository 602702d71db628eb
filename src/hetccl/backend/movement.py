"""all_gather in all its forms, and barrier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..plan.spec import Operation
from ..runtime.call import Call
from ..runtime.caller import moving_spec
from ..runtime.marshal import as_bytes, reading, writing
from ..runtime.work import Work
from .base import Base, Tensors


class Movement(Base):
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        ((source,), (targets,)) = (inputs, outputs)
        call = self._call("all_gather", targets, opts)
        self._check([*targets, source], call)
        if len(targets) != self.size():
            raise call.refusal(f"the list has {len(targets)} outputs; pass one for each of {self.size()} ranks")
        if targets[self.rank()].numel() != source.numel():
            raise call.refusal(
                f"the input has {source.numel()} elements and output number {self.rank()}, which is for it,"
                f" {targets[self.rank()].numel()}; give both one size"
            )
        shares = tuple(target.numel() * target.element_size() for target in targets)
        uneven = shares if len(set(shares)) > 1 else shares[:1]
        return self._all_gather(call, list(targets), source, uneven, list(outputs))

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        call = self._call("all_gather_into_tensor", [output], opts)
        self._fits_gather(output, source, call)
        return self._all_gather(call, [output], source, (source.numel() * source.element_size(),), [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """One plan for the batch: all inputs travel as one, as bytes, so that their dtypes may differ."""
        call = self._batched("all_gather_into_tensor_coalesced", inputs)
        if len(outputs) != len(inputs):
            raise call.refusal(f"there are {len(outputs)} outputs for {len(inputs)} inputs; pass as many of each")
        for output, source in zip(outputs, inputs, strict=True):
            self._fits_gather(output, source, call)
        joined, gathered, widths = self._joined(inputs)

        def back() -> None:
            for output, part in zip(outputs, gathered.split(widths, dim=1), strict=True):
                output.detach().copy_(part.reshape(-1).view(output.dtype).view(output.shape))

        return self._all_gather(call, [gathered], joined, (joined.numel(),), list(outputs), back)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """`outputs[r][i]` gets rank r's input i."""
        call = self._batched("all_gather_coalesced", inputs)
        if len(outputs) != self.size():
            raise call.refusal(f"there are {len(outputs)} output lists; pass one for each of {self.size()} ranks")
        for number, targets in enumerate(outputs):
            if [target.numel() for target in targets] != [source.numel() for source in inputs]:
                raise call.refusal(f"output list number {number} needs tensors of the sizes of the inputs")
            for target, source in zip(targets, inputs, strict=True):
                self._check([source, target], call)
        joined, gathered, widths = self._joined(inputs)

        def back() -> None:
            for row, targets in zip(gathered, outputs, strict=True):
                for target, part in zip(targets, row.split(widths), strict=True):
                    target.detach().copy_(part.clone().view(target.dtype).view(target.shape))

        return self._all_gather(call, [gathered], joined, (joined.numel(),), list(outputs), back)

    def barrier(self, opts: Any = None) -> Work:
        spec = moving_spec(Operation.BARRIER, self.size(), (0,))
        return self._note(self._caller.collective(spec, self._call("barrier", [], opts), None, None, []))

    def _all_gather(
        self,
        call: Call,
        targets: list[torch.Tensor],
        given: torch.Tensor,
        shares: tuple[int, ...],
        result: list[Any],
        then: Callable[[], None] | None = None,
    ) -> Work:
        """`shares` in bytes: one of each rank, or a single one where all are equal."""
        source, target = as_bytes(reading([given]).data), writing(targets)
        spec = moving_spec(Operation.ALL_GATHER, self.size(), shares)
        return self._note(
            self._caller.collective(spec, call, source, as_bytes(target.data), result, then or target.back)
        )

    def _batched(self, name: str, inputs: Tensors) -> Call:
        """A call of several tensors, each of its own dtype."""
        call = self._caller.call(self._caller.title(name, inputs))
        for source in inputs:
            self._check([source], call)
        return call

    def _joined(self, inputs: Tensors) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """The inputs as one run of bytes, room for everyone's, and the inputs' sizes in bytes."""
        parts = [as_bytes(source.detach().reshape(-1)) for source in inputs]
        joined = torch.cat(parts)
        return joined, joined.new_empty(self.size(), joined.numel()), [part.numel() for part in parts]

    def _fits_gather(self, output: torch.Tensor, source: torch.Tensor, call: Call) -> None:
        self._check([output, source], call)
        if output.numel() != source.numel() * self.size():
            raise call.refusal(
                f"the output has {output.numel()} elements and the input {source.numel()}; the output needs the input's"
                f" size for each of {self.size()} ranks, {source.numel() * self.size()} elements"
            )
