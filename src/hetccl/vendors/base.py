"""The contract of a vendor: how to recognise it, and a communicator over its collective library.

A vendor adaptor is one short file that exposes `vendor`, a `Vendor`, found through the entry point group
`hetccl.vendors`. The executor speaks only to `Communicator`; what a library lacks (a dtype, a reduction, uneven
sizes) is made up for in `emulate`, so every communicator offers the whole set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
from torch.distributed import Store

from ..reduction import Reduction
from ..request import Request


@dataclass(frozen=True, slots=True)
class Library:
    """The vendor library as found on this machine: its name and version, as shown to users."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Setup:
    """What a vendor needs to build a communicator; the same on all its members but `index`.

    `name` is unique in the job (run, group, cluster, purpose). `ranks` are the members' ranks in the job's
    outermost group, in communicator order; `index` is this rank's place among them. `store` is private to the
    communicator. `address` is the IP address of this rank's chosen network interface.
    """

    name: str
    ranks: tuple[int, ...]
    index: int
    store: Store
    timeout: timedelta
    address: str


class Communicator(Protocol):
    """Collectives among `size` ranks of one vendor. This rank has place `index`.

    Tensors are flat and contiguous, on the vendor's device. Every call returns at once with a request; tensors
    must live until it is done. All members issue the same calls in the same order. Zero-length tensors are
    allowed everywhere. Results of `all_reduce` are bit-identical on all members.
    """

    size: int
    index: int

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> Request:
        """In place."""

    def reduce(self, source: torch.Tensor, target: torch.Tensor, reduction: Reduction, root: int) -> Request:
        """`target` (at the root; may be `source`, ignored elsewhere) gets the reduction; `source` is kept elsewhere."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> Request:
        """In place."""

    def all_gather(self, targets: Sequence[torch.Tensor], source: torch.Tensor) -> Request:
        """`targets[i]` gets member i's source; sizes may differ. `targets[index]` may be `source` itself."""

    def reduce_scatter(self, target: torch.Tensor, sources: Sequence[torch.Tensor], reduction: Reduction) -> Request:
        """`target` gets the reduction of all members' `sources[index]`; it may be `sources[index]` itself.

        Other `sources` may be clobbered. Sizes may differ between pieces and may be zero.
        """

    def all_to_all(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Request:
        """`targets[i]` gets member i's `sources[index]`; any sizes."""

    def exchange(
        self, sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]
    ) -> Request:
        """Point to point among members: tensor and peer place; per ordered pair, in order."""

    def barrier(self) -> Request: ...

    def release(self) -> None:
        """After a fault: let a device's streams go on that wait for members. From any thread, and at once."""

    def close(self, abandon: bool) -> None:
        """Release everything. With `abandon`, peers may be dead: do nothing that waits for them."""


class Vendor(Protocol):
    """One vendor library."""

    name: str
    devices: tuple[str, ...]
    """torch device types whose tensors the library takes, most specific first: ("cuda",), ("cpu",)."""

    def library(self) -> Library:
        """The library on this machine. Raises ConfigurationError that says how to install it when absent."""

    def supports(self, reduction: Reduction, dtype: torch.dtype) -> bool:
        """Whether the library itself reduces this dtype so (others are emulated with its all_to_all)."""

    def communicator(self, setup: Setup) -> Communicator:
        """Collective over the members; returns when the communicator is ready. Raises within setup.timeout."""
