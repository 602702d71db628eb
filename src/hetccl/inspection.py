"""A look inside a group: what was found, what would be done, what crossed the borders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from .errors import ArgumentError
from .explanation import Explanation, describe
from .plan.spec import Operation, Spec
from .reduction import Reduction
from .runtime.group import Group
from .topo.model import Topology

_SHARED = {Operation.ALL_GATHER, Operation.GATHER, Operation.REDUCE_SCATTER, Operation.SCATTER, Operation.ALL_TO_ALL}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Payload bytes that this rank moved over paths, by peer rank, since the group was made."""

    sent: dict[int, int]
    received: dict[int, int]
    cross_sent: int
    """Sent to ranks of other clusters, all operations together."""


def topology(group: dist.ProcessGroup | None = None) -> Topology:
    """Hosts, ranks, clusters and borders of a group (the default one where None); the same on every rank."""
    return _group(group).topology


def explain(
    operation: str,
    numel: int,
    dtype: torch.dtype = torch.float32,
    group: dist.ProcessGroup | None = None,
    reduction: str = "sum",
    root: int = 0,
) -> Explanation:
    """What a collective would do, without doing it: steps, bytes per cluster and link, bounds, predicted time.

    `numel` is the size of the whole tensor, in elements: for all_gather and gather the result, for reduce_scatter and
    scatter the input, for all_to_all one rank's input; it is divided over the ranks, rounded up.
    """
    inside = _group(group)
    spec = spec_of(operation, numel, dtype, inside.size, reduction, root)
    return describe(inside.planner.plan(spec), inside.topology)


def spec_of(operation: str, numel: int, dtype: torch.dtype, ranks: int, reduction: str = "sum", root: int = 0) -> Spec:
    """The spec of a call described in words; see `explain`. Raises ArgumentError for what is not known."""
    try:
        kind = Operation(operation)
        reducing = Reduction(reduction)
    except ValueError:
        raise ArgumentError(
            f"there is no operation {operation!r} with reduction {reduction!r}; operations are"
            f" {', '.join(o.value for o in Operation)}, reductions {', '.join(r.value for r in Reduction)}"
        ) from None
    if numel < 0 or not 0 <= root < ranks:
        raise ArgumentError(f"the size {numel} must not be negative and the root {root} be one of {ranks} ranks")
    size = numel
    if kind in _SHARED:
        size = -(-numel // ranks)
    spec = Spec(kind, ranks, (size,), str(dtype).removeprefix("torch."), dtype.itemsize, None, root, (root + 1) % ranks)
    return replace(spec, reduction=reducing) if spec.reduces else spec


def traffic(group: dist.ProcessGroup | None = None) -> Traffic:
    """What this rank sent and received so far over the paths between ranks."""
    inside = _group(group)
    sent, received = dict(inside.fabric.sent), dict(inside.fabric.received)
    crossed = sum(size for peer, size in sent.items() if inside.topology.cluster_of(peer) is not inside.cluster)
    return Traffic(sent, received, crossed)


def _group(group: Any) -> Group:
    found = group if group is not None else dist.group.WORLD
    inside = getattr(found, "group", None)
    if not isinstance(inside, Group):
        raise ArgumentError(
            f"the process group {found} is not of hetccl; make it with init_process_group('hetccl') or"
            " new_group(backend='hetccl')"
        )
    return inside
