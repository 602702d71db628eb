"""The torch ProcessGroup: torch.distributed's calls, translated to specs and flat buffers.

Method names differ between torch versions (`_allgather_base` in 2.11 is `all_gather_single` in 2.13); both are
defined. Every method returns at once with a `Work`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .errors import ArgumentError
from .plan.spec import Operation
from .runtime.caller import Caller, moving_spec, reducing_spec
from .runtime.group import Group, Request
from .runtime.marshal import as_bytes, check, for_reduction, reading, reduction_of, writing
from .runtime.work import Work

Tensors = Sequence[torch.Tensor]


def create(options: Any, backend_options: Any) -> ProcessGroup:
    """Called by torch, on all ranks of a new group, with its `_DistributedBackendOptions`."""
    members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    request = Request(
        name=str(options.group_id) or "world",
        store=options.store,
        rank=options.group_rank,
        size=options.group_size,
        timeout=options.timeout,
        members=members,
    )
    group = Group(request)
    if group.backend is None:
        return ProcessGroup(group)
    from .native import NativeGroup  # which is a ProcessGroup

    return NativeGroup(group)


class ProcessGroup(dist.ProcessGroup):
    """A process group whose ranks may belong to different vendor libraries."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self.group = group
        self._caller = Caller(group)
        self._batch: list[Work] | None = None
        self._names = {"name": group.request.name, "desc": "undefined"}

    # -- what torch asks of the object itself ---------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "hetccl"

    def name(self) -> str:
        return "hetccl"

    def getGroupName(self) -> str:
        return self._names["name"]

    def setGroupName(self, name: str) -> None:
        self._names["name"] = name

    def getGroupDesc(self) -> str:
        return self._names["desc"]

    def setGroupDesc(self, description: str) -> None:
        self._names["desc"] = description

    @property
    def group_name(self) -> str:
        return self._names["name"]

    def _set_group_name(self, name: str) -> None:
        self._names["name"] = name

    @property
    def group_desc(self) -> str:
        return self._names["desc"]

    def _set_group_desc(self, description: str) -> None:
        self._names["desc"] = description

    def set_timeout(self, timeout: timedelta) -> None:
        """The deadline of operations from now on."""
        self.group.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        self.group.close()

    def abort(self) -> None:
        """Release everything without waiting for peers; what is in flight fails with AbortedError."""
        self.group.close(abandon=True)

    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> Any:
        works, self._batch = self._batch or [], None
        return works[-1] if works else None

    # -- reductions -----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._all_reduce(list(tensors), opts, "all_reduce")

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._all_reduce(list(tensors), opts, "all_reduce_coalesced")

    def _all_reduce(self, tensors: list[torch.Tensor], opts: Any, name: str) -> Work:
        operation = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        title = self._title(name, tensors, f", {_name(operation)}")
        target = writing(tensors, filled=True)
        data, reduction = for_reduction(target.data, reduction_of(operation, title), title)
        spec = reducing_spec(Operation.ALL_REDUCE, self.size(), (data.numel(),), data, reduction)
        return self._note(self._caller.collective(spec, title, None, data, tensors, target.back))

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        (tensor,) = tensors
        root = self._root(opts.rootRank, "reduce")
        title = self._title("reduce", [tensor], f", {_name(opts.reduceOp)}, root {root}")
        source = reading([tensor])
        data, reduction = for_reduction(source.data, reduction_of(opts.reduceOp, title), title)
        spec = reducing_spec(Operation.REDUCE, self.size(), (data.numel(),), data, reduction, root)
        if self.rank() != root:
            return self._note(self._caller.collective(spec, title, data, None, [tensor]))
        # The root's input is its output: the result is written only after the input was used, but a vendor reduce
        # needs both, so the sum has a place of its own.
        total = torch.empty_like(data)

        def back() -> None:
            data.copy_(total)
            if data.data_ptr() != tensor.data_ptr():
                raw = source.data.view(tensor.shape) if source.data.dtype is tensor.dtype else data.view(tensor.dtype)
                tensor.detach().copy_(raw.view(tensor.shape))

        return self._note(self._caller.collective(spec, title, data, total, [tensor], back))

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        ((output,), (parts,)) = (outputs, inputs)
        return self._reduce_scatter([output], list(parts), opts, "reduce_scatter", uneven=True)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        return self._reduce_scatter([output], [source], opts, "reduce_scatter_tensor")

    _reduce_scatter_base = reduce_scatter_single

    def _reduce_scatter(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        opts: Any,
        name: str,
        uneven: bool = False,
        then: Callable[[], None] | None = None,
    ) -> Work:
        operation = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        title = self._title(name, inputs, f", {_name(operation)}")
        check([*outputs, *inputs], self.group.vendor.devices, self.group.vendor.name, title)
        sizes = tuple(part.numel() for part in inputs) if uneven else (outputs[0].numel(),)
        total = sum(sizes) if uneven else sizes[0] * self.size()
        given = sum(part.numel() for part in inputs)
        mine = sizes[self.rank()] if len(sizes) == self.size() else sizes[0]
        if (uneven and len(inputs) != self.size()) or given != total or outputs[0].numel() != mine:
            raise ArgumentError(
                f"{title} on rank {self.rank()}: the input has {given} elements in {len(inputs)} tensors and the output"
                f" {outputs[0].numel()}; the input needs one part of the output's size for each of {self.size()} ranks"
            )
        source, target = reading(inputs), writing(outputs)
        data, reduction = for_reduction(source.data, reduction_of(operation, title), title)
        out, _ = for_reduction(target.data, reduction_of(operation, title), title)
        factor = data.numel() // given if given else 1  # complex numbers are two elements
        spec = reducing_spec(
            Operation.REDUCE_SCATTER, self.size(), tuple(factor * size for size in sizes), data, reduction
        )
        return self._note(self._caller.collective(spec, title, data, out, outputs, then or target.back))

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """One plan for the batch: the inputs' parts for each rank are put side by side."""
        ranks = self.size()
        parts = [source.reshape(ranks, -1) for source in inputs]
        whole = torch.cat(parts, dim=1)
        combined = whole.new_empty(whole.shape[1])
        back = _unpack(combined, outputs)
        return self._reduce_scatter([combined], [whole], opts, "reduce_scatter_tensor_coalesced", then=back)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- movement -------------------------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        root = self._root(opts.rootRank, "broadcast")
        title = self._title("broadcast", tensors, f", root {root}")
        target = writing(list(tensors), filled=self.rank() == root)
        data = as_bytes(target.data)
        spec = moving_spec(Operation.BROADCAST, self.size(), (data.numel(),), root)
        return self._note(self._caller.collective(spec, title, None, data, list(tensors), target.back))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        ((source,), (targets,)) = (inputs, outputs)
        return self._all_gather(list(targets), [source], "all_gather", outputs=list(outputs))

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Work:
        if output.numel() != source.numel() * self.size():
            raise ArgumentError(
                f"all_gather_into_tensor on rank {self.rank()}: the output has {output.numel()} elements; it needs"
                f" {source.numel()} for each of {self.size()} ranks"
            )
        return self._all_gather([output], [source], "all_gather_into_tensor")

    _allgather_base = all_gather_single

    def _all_gather(
        self,
        targets: list[torch.Tensor],
        sources: list[torch.Tensor],
        name: str,
        outputs: list[Any] | None = None,
        then: Callable[[], None] | None = None,
    ) -> Work:
        title = self._title(name, targets)
        check([*targets, *sources], self.group.vendor.devices, self.group.vendor.name, title)
        given = sum(source.numel() for source in sources)
        many = outputs is not None
        if many and (len(targets) != self.size() or targets[self.rank()].numel() != given):
            raise ArgumentError(
                f"{title} on rank {self.rank()}: the input has {given} elements; the output needs {self.size()}"
                f" tensors, of which number {self.rank()} has that size"
            )
        width = sources[0].element_size()
        sizes = {target.numel() * width for target in targets} if many else {given * width}
        shares = tuple(target.numel() * width for target in targets) if len(sizes) > 1 else (given * width,)
        source, target = reading(sources), writing(targets)
        spec = moving_spec(Operation.ALL_GATHER, self.size(), shares)
        return self._note(
            self._caller.collective(
                spec,
                title,
                as_bytes(source.data),
                as_bytes(target.data),
                outputs or targets,
                then or target.back,
            )
        )

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """One plan for the batch: all inputs travel as one."""
        joined = torch.cat([source.detach().reshape(-1) for source in inputs])
        gathered = joined.new_empty(self.size(), joined.numel())
        widths = [source.numel() for source in inputs]

        def back() -> None:
            for output, part in zip(outputs, gathered.split(widths, dim=1), strict=True):
                output.detach().copy_(part.reshape(output.shape))

        return self._all_gather([gathered], [joined], "all_gather_into_tensor_coalesced", then=back)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        """`outputs[r][i]` gets rank r's input i."""
        joined = torch.cat([source.detach().reshape(-1) for source in inputs])
        gathered = joined.new_empty(self.size(), joined.numel())

        def back() -> None:
            for row, targets in zip(gathered, outputs, strict=True):
                _unpack(row, targets)()

        return self._all_gather([gathered], [joined], "all_gather_coalesced", then=back)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        (source,), root = inputs, self._root(opts.rootRank, "gather")
        title = self._title("gather", [source], f", root {root}")
        targets = list(outputs[0]) if self.rank() == root else []
        self._equal(targets, source, title)
        data, target = reading([source]), writing(targets) if targets else None
        spec = moving_spec(Operation.GATHER, self.size(), (source.numel() * source.element_size(),), root)
        out = as_bytes(target.data) if target else None
        back = target.back if target else None
        return self._note(self._caller.collective(spec, title, as_bytes(data.data), out, list(outputs), back))

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        (output,), root = outputs, self._root(opts.rootRank, "scatter")
        title = self._title("scatter", [output], f", root {root}")
        sources = list(inputs[0]) if self.rank() == root else []
        self._equal(sources, output, title)
        data, target = reading(sources) if sources else None, writing([output])
        spec = moving_spec(Operation.SCATTER, self.size(), (output.numel() * output.element_size(),), root)
        given = as_bytes(data.data) if data else None
        return self._note(self._caller.collective(spec, title, given, as_bytes(target.data), [output], target.back))

    def _equal(self, many: list[torch.Tensor], one: torch.Tensor, title: str) -> None:
        """At the root: one tensor of the same size a rank."""
        check([one, *many], self.group.vendor.devices, self.group.vendor.name, title)
        if many and (len(many) != self.size() or any(t.numel() != one.numel() for t in many)):
            raise ArgumentError(
                f"{title} on rank {self.rank()}: the root's list has {[t.numel() for t in many]} elements; it needs"
                f" {self.size()} tensors of {one.numel()}"
            )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        title = self._title("all_to_all", inputs)
        for tensors, side in ((inputs, "input"), (outputs, "output")):
            if len(tensors) != self.size():
                raise ArgumentError(f"{title}: the {side} list has {len(tensors)} tensors for {self.size()} ranks")
        check([*inputs, *outputs], self.group.vendor.devices, self.group.vendor.name, title)
        width = inputs[0].element_size()
        source, target = reading(list(inputs)), writing(list(outputs))
        return self._note(
            self._caller.uneven_all_to_all(
                title,
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
        title = self._title("all_to_all_single", [source])
        check([source, output], self.group.vendor.devices, self.group.vendor.name, title)
        given, target = reading([source]), writing([output])
        data, out = as_bytes(given.data), as_bytes(target.data)
        if not input_splits and not output_splits:
            if source.numel() != output.numel() or (source.shape[0] if source.shape else 1) % self.size():
                raise ArgumentError(
                    f"{title}: input and output need the same size, a multiple of {self.size()} in the first dimension"
                )
            spec = moving_spec(Operation.ALL_TO_ALL, self.size(), (data.numel() // self.size(),))
            return self._note(self._caller.collective(spec, title, data, out, [output], target.back))
        return self._note(
            self._caller.uneven_all_to_all(
                title,
                data,
                out,
                self._splits(source, input_splits, title, "input"),
                self._splits(output, output_splits, title, "output"),
                [output],
                target.back,
            )
        )

    alltoall_base = all_to_all_single

    def _splits(self, tensor: torch.Tensor, splits: list[int], title: str, side: str) -> list[int]:
        """Bytes for each rank out of splits of the first dimension."""
        rows = tensor.shape[0] if tensor.shape else 1
        counts = list(splits) or [rows // self.size()] * self.size()
        if len(counts) != self.size() or sum(counts) != rows or min(counts) < 0:
            raise ArgumentError(
                f"{title}: the {side} splits {counts} need {self.size()} numbers that add up to {rows} rows"
            )
        width = tensor.numel() // rows * tensor.element_size() if rows else 0
        return [count * width for count in counts]

    def barrier(self, opts: Any = None) -> Work:
        spec = moving_spec(Operation.BARRIER, self.size(), (0,))
        return self._note(self._caller.collective(spec, "barrier()", None, None, []))

    # -- point to point -------------------------------------------------------------------------------------------

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        (tensor,) = tensors
        title = self._title("send", [tensor], f", to rank {self._peer(peer, 'send')}, tag {tag}")
        return self._note(self._caller.send(title, reading([tensor]).data, peer, tag))

    def recv(self, tensors: Tensors, peer: int, tag: int = 0) -> Work:
        title = self._title("recv", tensors, f", from rank {self._peer(peer, 'recv')}, tag {tag}")
        target = writing(list(tensors))
        return self._note(self._caller.receive(title, target.data, peer, tag, target.back))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        title = self._title("recv", tensors, f", from any rank, tag {tag}")
        target = writing(list(tensors))
        return self._note(self._caller.receive(title, target.data, None, tag, target.back))

    def _peer(self, peer: int, name: str) -> int:
        if not 0 <= peer < self.size() or peer == self.rank():
            raise ArgumentError(f"{name} on rank {self.rank()}: rank {peer} is not another one of {self.size()} ranks")
        return peer

    # -- helpers --------------------------------------------------------------------------------------------------

    def _title(self, name: str, tensors: Tensors, detail: str = "") -> str:
        title = self._caller.title(name, tensors, detail)
        check(tensors, self.group.vendor.devices, self.group.vendor.name, f"{title} on rank {self.rank()}")
        return title

    def _root(self, root: int, name: str) -> int:
        if not 0 <= root < self.size():
            raise ArgumentError(f"{name} on rank {self.rank()}: the root {root} is not among {self.size()} ranks")
        return root

    def _note(self, work: Work) -> Work:
        if self._batch is not None:
            self._batch.append(work)
        return work


def _unpack(data: torch.Tensor, targets: Tensors) -> Callable[[], None]:
    """Cut a flat tensor over the targets."""

    def back() -> None:
        parts = data.split([target.numel() for target in targets])
        for target, part in zip(targets, parts, strict=True):
            target.detach().copy_(part.view(target.shape))

    return back


def _name(operation: Any) -> str:
    return str(getattr(operation, "op", operation)).rpartition(".")[2]
