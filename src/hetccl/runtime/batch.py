"""The handle on a batch of coalesced calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import HetcclError, TimeoutError


class Batch(dist._Work):
    """Done when all of several works are done, and failed if any of them failed."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self._works = tuple(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all are done, also where one failed: until then the tensors of the others are in use."""
        limit = time.monotonic() + timeout.total_seconds() if timeout else None
        for work in self._works:
            try:
                work.wait(None if limit is None else timedelta(seconds=max(1e-6, limit - time.monotonic())))
            except TimeoutError:
                if not work.is_completed():
                    raise
            except HetcclError:
                pass  # raised below, once no other is in flight
        if (error := self.exception()) is not None:
            raise error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[Any]:
        return [value for work in self._works for value in work.result()]

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of all results, in the order of the calls."""
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda done: [value for future in done.value() for value in future.value()]
        )
