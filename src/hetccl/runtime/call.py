"""One call by the user as errors name it: what was called, on which rank, and its place in the program."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArgumentError, HetcclError


@dataclass(frozen=True, slots=True)
class Call:
    """`sequence` is the number that the call gets if it is accepted; 0 for point to point, which has none."""

    title: str
    rank: str
    sequence: int
    awaited: bool = False
    """Whether the caller waits for it right away."""

    def refusal(self, reason: str, kind: type[HetcclError] = ArgumentError) -> HetcclError:
        """The error of a call that is refused before any data moves. `reason` says what is wrong and how to mend it."""
        number = f" (operation {self.sequence})" if self.sequence else ""
        return kind(f"{self.title}{number} on {self.rank}: {reason}")
