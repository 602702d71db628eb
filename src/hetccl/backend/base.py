"""What torch asks of the process group itself, and what all its operations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..runtime.batch import Batch
from ..runtime.call import Call
from ..runtime.caller import Caller
from ..runtime.group import Group
from ..runtime.marshal import check

Tensors = Sequence[torch.Tensor]
T = TypeVar("T")


class Base(dist.ProcessGroup):
    """A group without operations."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)  # type: ignore[call-arg]
        self.group = group
        self._caller = Caller(group)
        self._batch: list[Any] | None = None
        self._names = {"name": group.request.name, "desc": "undefined"}

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
        return Batch(works) if works else None

    # -- for the operations ---------------------------------------------------------------------------------------

    def _call(self, name: str, tensors: Tensors, opts: Any, detail: str = "", numbered: bool = True) -> Call:
        """The call as errors name it, once its tensors are such as can be sent."""
        awaited = not getattr(opts, "asyncOp", True)
        call = self._caller.call(self._caller.title(name, tensors, detail), awaited, numbered)
        self._check(tensors, call)
        return call

    def _rooted(self, name: str, tensors: Tensors, opts: Any, detail: str = "") -> Call:
        root = opts.rootRank
        call = self._call(name, tensors, opts, f"{detail}, root {root}")
        if not 0 <= root < self.size():
            raise call.refusal(f"the root is not among the group's ranks; pass one of 0 to {self.size() - 1}")
        return call

    def _check(self, tensors: Tensors, call: Call) -> None:
        check(tensors, self.group.vendor.devices, self.group.vendor.name, call)

    def _note(self, work: T) -> T:
        """Hand out a work; a batch of coalesced calls keeps it, too."""
        if self._batch is not None:
            self._batch.append(work)
        return work


def unpack(data: torch.Tensor, targets: Tensors) -> Callable[[], None]:
    """Cut a flat tensor over the targets."""

    def back() -> None:
        parts = data.split([target.numel() for target in targets])
        for target, part in zip(targets, parts, strict=True):
            target.detach().copy_(part.view(target.shape))

    return back
