"""The error tree. Every error of the library is a `HetcclError`.

HetcclError
├── ConfigurationError   a setting, topology file or environment that cannot be used (before any data moves)
├── UnsupportedError     an operation, dtype or reduction that nobody in the group can do (before any data moves)
├── ArgumentError        tensors that do not fit the call: sizes, devices, dtypes, roots (before any data moves)
├── DesyncError          ranks that called different things at the same place in the program
├── TimeoutError         something did not arrive within the deadline; also a builtin TimeoutError
├── PeerError            a rank died, or its connection closed in the middle of an operation
└── AbortedError         the group was aborted or destroyed while the operation was in flight
"""

from __future__ import annotations

import builtins


class HetcclError(RuntimeError):
    """Base of all errors that hetccl raises. A RuntimeError, as torch's own backends raise."""


class ConfigurationError(HetcclError):
    """A setting, file or environment that cannot be used."""


class UnsupportedError(HetcclError):
    """An operation, dtype or reduction that no part of the group can carry out."""


class ArgumentError(HetcclError, ValueError):
    """Arguments that do not fit the call or each other."""


class DesyncError(HetcclError):
    """Ranks disagree about the operation, its sizes, dtype, reduction or root."""


class TimeoutError(HetcclError, builtins.TimeoutError):
    """A deadline passed. The message starts with "Timed out" and names who did not arrive."""


class PeerError(HetcclError):
    """A peer died or closed its connection in the middle of an operation."""


class AbortedError(HetcclError):
    """The process group was aborted or destroyed while the operation was in flight."""
