"""A process group of all operations."""

from __future__ import annotations

from .exchange import Exchange
from .messaging import Messaging
from .movement import Movement
from .reductions import Reductions
from .rooted import Rooted


class ProcessGroup(Reductions, Movement, Rooted, Exchange, Messaging):
    """A process group whose ranks may belong to different vendor libraries."""
