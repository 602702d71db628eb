"""hetccl: collective communication for PyTorch jobs whose accelerators come from different vendors.

    torch.distributed.init_process_group("hetccl")

is all a script needs; importing this package is optional. It offers a look inside: `topology` tells what was found,
`explain` what would be done, `traffic` what crossed the borders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .autoload import register
from .errors import (
    AbortedError,
    ArgumentError,
    ConfigurationError,
    DesyncError,
    HetcclError,
    PeerError,
    TimeoutError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from .inspection import Traffic, explain, topology, traffic

__all__ = [
    "AbortedError",
    "ArgumentError",
    "ConfigurationError",
    "DesyncError",
    "HetcclError",
    "PeerError",
    "TimeoutError",
    "Traffic",
    "UnsupportedError",
    "explain",
    "topology",
    "traffic",
]

register()


def __getattr__(name: str) -> object:
    """The tools import torch.distributed, which takes a second; only their users pay."""
    if name in {"Traffic", "explain", "topology", "traffic"}:
        from . import inspection

        return getattr(inspection, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
