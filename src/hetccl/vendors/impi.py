"""Intel MPI: the same adaptor on the library of the `impi-rt` package.

That package and `mpich` both bring a libmpi.so.12 at the same place, so Intel's belongs into a prefix of its own:
pip install --prefix <environment>/impi impi-rt.
"""

from __future__ import annotations

import sys
from pathlib import Path

from .mpi import MpiVendor, in_package


def _locate() -> Path | None:
    apart = Path(sys.prefix) / "impi" / "lib" / "libmpi.so.12"
    return apart if apart.exists() else in_package("impi-rt", "libmpi.so.12")


def _environment(library: Path) -> dict[str, str]:
    root = library.parent.parent
    providers = next(library.parent.rglob("libtcp-fi.so"), library)
    return {
        "I_MPI_ROOT": str(root),
        "I_MPI_FABRICS": "shm",
        "FI_PROVIDER_PATH": str(providers.parent),
        "FI_PROVIDER": "tcp",
    }


vendor = MpiVendor("impi", "impi-rt", _locate, _environment)
