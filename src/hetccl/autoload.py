"""Registration: makes `init_process_group("hetccl")` known to torch.

torch calls `register` when it is imported (entry point group `torch.backends`), so that scripts need not import
hetccl. An exception here would break `import torch` for everyone: nothing heavy happens, and nothing is let out.
"""

from __future__ import annotations

import logging
from typing import Any

DEVICES = ["cpu", "cuda", "xpu", "npu", "mlu", "musa", "hpu", "maca"]


def register() -> None:
    """Register the backend for every device type. Idempotent; never raises."""
    try:
        import torch.distributed as dist

        if dist.is_available() and "hetccl" not in dist.Backend.backend_list:
            dist.Backend.register_backend("hetccl", _create, extended_api=True, devices=list(DEVICES))
    except Exception:
        logging.getLogger("hetccl").exception("hetccl could not be registered with torch.distributed")


def _create(options: Any, backend_options: Any) -> Any:
    """Called by torch for each new group; imports the rest of the library on first use."""
    from .backend import create

    return create(options, backend_options)
