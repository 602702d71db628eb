"""Intel MPI: the same adaptor on the library of the `impi-rt` package.

That package and `mpich` both bring a libmpi.so.12 at the same place, so Intel's belongs into a prefix of its own:
pip install --prefix <environment>/impi impi-rt
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..errors import ConfigurationError
from .mpi import MpiVendor
from .mpi_world import in_package


def _locate() -> Path | None:
    apart = Path(sys.prefix) / "impi" / "lib" / "libmpi.so.12"
    return apart if apart.exists() else in_package("impi-rt", "libmpi.so.12")


def _environment(library: Path, one_host: bool) -> dict[str, str]:
    root = {"I_MPI_ROOT": str(library.parent.parent)}
    if one_host:
        return root | {"I_MPI_FABRICS": "shm"}
    provider = next(library.parent.rglob("libtcp-fi.so"), None)
    if provider is None:
        raise ConfigurationError(
            f"Intel MPI between hosts needs libfabric's tcp provider, which is not below {library.parent};"
            " pip install --prefix <environment>/impi libfabric"
        )
    return root | {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "FI_PROVIDER_PATH": str(provider.parent)}


vendor = MpiVendor("impi", "impi-rt", _locate, _environment)
