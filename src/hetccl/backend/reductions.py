"""all_reduce, reduce and reduce_scatter in all their forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ..plan.spec import Operation
from ..runtime.call import Call
from ..runtime.caller import reducing_spec
from ..runtime.marshal import for_reduction, reading, scale_of, writing
from ..runtime.work import Work
from .base import Base, Tensors, unpack


class Reductions(Base):
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._all_reduce(list(tensors), opts, "all_reduce")

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._all_reduce(list(tensors), opts, "all_reduce_coalesced")

    def _all_reduce(self, tensors: list[torch.Tensor], opts: Any, name: str) -> Work:
        operation = _operation(opts)
        call = self._call(name, tensors, opts, f", {name_of(operation)}")
        target = writing(tensors, filled=True)
        data, reduction = for_reduction(target.data, operation, call)
        if (scale := scale_of(operation)) is not None:
            data.mul_(scale)  # in place, as the result will be
        spec = reducing_spec(Operation.ALL_REDUCE, self.size(), (data.numel(),), data, reduction)
        return self._note(self._caller.collective(spec, call, None, data, tensors, target.back))

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        (tensor,), root = tensors, opts.rootRank
        call = self._rooted("reduce", [tensor], opts, f", {name_of(opts.reduceOp)}")
        given = reading([tensor])
        data, reduction = for_reduction(given.data, opts.reduceOp, call)
        spec = reducing_spec(Operation.REDUCE, self.size(), (data.numel(),), data, reduction, root)
        source = _scaled(data, opts.reduceOp)
        if self.rank() != root:
            return self._note(self._caller.collective(spec, call, source, None, [tensor]))
        # The root's input is its output: the result is written only after the input was used, but a vendor reduce
        # needs both, so the sum has a place of its own.
        total = torch.empty_like(data)

        def back() -> None:
            data.copy_(total)
            if data.data_ptr() != tensor.data_ptr():
                raw = given.data.view(tensor.shape) if given.data.dtype is tensor.dtype else data.view(tensor.dtype)
                tensor.detach().copy_(raw.view(tensor.shape))

        return self._note(self._caller.collective(spec, call, source, total, [tensor], back))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        ((output,), (parts,)) = (outputs, inputs)
        call = self._call("reduce_scatter", parts, opts, f", {name_of(_operation(opts))}")
        self._check([*parts, output], call)
        if len(parts) != self.size():
            raise call.refusal(f"the list has {len(parts)} inputs; pass one for each of {self.size()} ranks")
        if output.numel() != parts[self.rank()].numel():
            raise call.refusal(
                f"the output has {output.numel()} elements; give it {parts[self.rank()].numel()}, as input number"
                f" {self.rank()} has"
            )
        return self._reduce_scatter(call, [output], list(parts), opts, tuple(part.numel() for part in parts))

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        call = self._call("reduce_scatter_tensor", [source], opts, f", {name_of(_operation(opts))}")
        self._fits(output, source, call)
        return self._reduce_scatter(call, [output], [source], opts, (output.numel(),))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """One plan for the batch: the inputs' parts for each rank are put side by side."""
        call = self._call("reduce_scatter_tensor_coalesced", inputs, opts, f", {name_of(_operation(opts))}")
        if len(outputs) != len(inputs):
            raise call.refusal(f"there are {len(outputs)} outputs for {len(inputs)} inputs; pass as many of each")
        for output, source in zip(outputs, inputs, strict=True):
            self._fits(output, source, call)
        parts = [source.detach().reshape(self.size(), source.numel() // self.size()) for source in inputs]
        whole = torch.cat(parts, dim=1).view(-1)
        combined = whole.new_empty(whole.numel() // self.size())
        then = unpack(combined, outputs)
        return self._reduce_scatter(call, [combined], [whole], opts, (combined.numel(),), then)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _fits(self, output: torch.Tensor, source: torch.Tensor, call: Call) -> None:
        self._check([source, output], call)
        if source.numel() != output.numel() * self.size():
            raise call.refusal(
                f"the input has {source.numel()} elements and the output {output.numel()}; the input needs the output's"
                f" size for each of {self.size()} ranks, {output.numel() * self.size()} elements"
            )

    def _reduce_scatter(
        self,
        call: Call,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        opts: Any,
        sizes: tuple[int, ...],
        then: Callable[[], None] | None = None,
    ) -> Work:
        operation = _operation(opts)
        source, target = reading(inputs), writing(outputs)
        data, reduction = for_reduction(source.data, operation, call)
        out, _ = for_reduction(target.data, operation, call)
        factor = data.numel() // source.data.numel() if source.data.numel() else 1  # complex numbers are two elements
        spec = reducing_spec(
            Operation.REDUCE_SCATTER, self.size(), tuple(factor * size for size in sizes), data, reduction
        )
        given = _scaled(data, operation)
        return self._note(self._caller.collective(spec, call, given, out, outputs, then or target.back))


def _operation(opts: Any) -> Any:
    return opts.reduceOp if opts is not None else dist.ReduceOp.SUM


def _scaled(data: torch.Tensor, operation: Any) -> torch.Tensor:
    """PREMUL_SUM scales the input, which is the user's and stays as it is."""
    scale = scale_of(operation)
    return data if scale is None else data.clone().mul_(scale)


def name_of(operation: Any) -> str:
    return str(getattr(operation, "op", operation)).rpartition(".")[2]
