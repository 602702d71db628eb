"""The torch ProcessGroup: torch.distributed's calls, translated to specs and flat buffers.

Method names differ between torch versions (`_allgather_base` in 2.11 is `all_gather_single` in 2.13); both are
defined. Every method returns at once with a `Work`. Arguments are checked before a call takes its sequence number, so
a call that one rank refuses does not shift that rank against the others.
"""

from __future__ import annotations

from typing import Any

from ..runtime.group import Group, Request
from .group import ProcessGroup
from .hosted import hosted
from .native import NativeGroup

__all__ = ["NativeGroup", "ProcessGroup", "create"]


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
    kind = ProcessGroup if group.backend is None else NativeGroup
    return (kind if group.streams is None else hosted(kind, group.streams.device))(group)
