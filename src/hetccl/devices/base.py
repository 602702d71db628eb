"""The contract of a device runtime: streams and events, and the few entry points that torch lacks.

With it a rank on a device hands a whole operation to streams: copies into host memory that other processes share, and
the words in that memory by which the two sides take turns, are written and awaited by the device itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Stream = Any
Event = Any
"""The runtime's own."""


class Runtime(Protocol):
    name: str
    """Processes whose runtimes have one name can open each other's device memory."""

    def device(self) -> torch.device:
        """The one that this process uses."""

    def stream(self, device: torch.device) -> Stream:
        """A new stream of high priority, so that it shares no hardware queue with a user's stream that waits for it."""

    def current(self, device: torch.device) -> Stream: ...

    def using(self, stream: Stream) -> AbstractContextManager[Any]:
        """torch's operations and `current` use this stream inside."""

    def record(self, stream: Stream) -> Event: ...

    def after(self, stream: Stream, event: Event) -> None:
        """What comes on the stream waits for the event."""

    def done(self, event: Event) -> bool: ...

    def register(self, address: int, nbytes: int) -> int:
        """Let the device reach host memory; its address for the device. Raises RuntimeError where it can't."""

    def unregister(self, address: int) -> None: ...

    def copy(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        """Between any two addresses that the device reaches."""

    def write(self, address: int, value: int, stream: Stream) -> None:
        """Write a 32-bit word once all before it on the stream is done and visible."""

    def wait(self, address: int, value: int, stream: Stream) -> None:
        """What comes on the stream waits until the word is `value` or after it, in the circle of 32 bits."""
