"""The shape of a job: who takes part, where, and what connects them.

`model` holds the data, `host` looks at this machine, `discovery` exchanges what each rank sees, `clusters`
derives clusters and borders from it, `file` reads and writes the YAML form (imported on demand: it needs
pydantic and yaml).
"""

from .model import Border, Cluster, Interface, Rank, Topology, assemble

__all__ = ["Border", "Cluster", "Interface", "Rank", "Topology", "assemble"]
