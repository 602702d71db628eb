"""The cost model's constants, in seconds and bytes per second.

They are stated here so that every rank predicts alike; link and fabric bandwidths come from the topology.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step costs besides its bytes."""

    call: float = 150e-6
    """Starting and finishing a vendor call."""
    message: float = 60e-6
    """Starting and finishing a message between clusters."""
    post: float = 8e-6
    """The work of one message at one of its ends, where a rank has many of them at once."""
    touch: float = 20e-6
    """Starting an elementwise operation or a copy."""
    memory: float = 8e9
    """Bytes per second that one rank copies or combines."""


DEFAULT = Cost()
