"""Plans: pure data, the same on every rank, with a JSON form and a canonical hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from ..errors import ConfigurationError
from ..reduction import Reduction
from . import layouts, steps
from .region import Region
from .spec import Operation, Spec
from .steps import Step

_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        layouts.Borders,
        layouts.Shares,
        layouts.Single,
        layouts.Everyone,
        steps.Local,
        steps.Transfer,
        steps.Combine,
        steps.Fill,
        steps.Scale,
        steps.Copy,
    )
}


@dataclass(frozen=True)
class Plan:
    """A collective as cluster-level steps, for one topology (whose digest it carries)."""

    spec: Spec
    topology: str
    algorithm: str
    combine: tuple[str, ...]
    """The combine mode of each cluster as an owner; empty where nothing is combined across clusters."""
    chunks: int
    steps: tuple[Step, ...]

    @cached_property
    def digest(self) -> str:
        """Equal on all ranks that computed the same plan."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @cached_property
    def fingerprint(self) -> int:
        """The digest as a 64-bit number, as messages carry it."""
        return int(self.digest, 16)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, integers and strings only."""
        document = {
            "version": 1,
            "spec": {
                **{f.name: getattr(self.spec, f.name) for f in fields(self.spec)},
                "operation": self.spec.operation.value,
                "reduction": self.spec.reduction.value if self.spec.reduction else None,
            },
            "topology": self.topology,
            "algorithm": self.algorithm,
            "combine": self.combine,
            "chunks": self.chunks,
            "steps": [[step.chunk, step.stage, _encode(step.action)] for step in self.steps],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote. Raises ConfigurationError where the text is no such plan."""
        try:
            document = json.loads(text)
            spec = dict(document["spec"])
            spec["operation"] = Operation(spec["operation"])
            spec["reduction"] = Reduction(spec["reduction"]) if spec["reduction"] else None
            spec["sizes"] = tuple(spec["sizes"])
            return cls(
                Spec(**spec),
                document["topology"],
                document["algorithm"],
                tuple(document["combine"]),
                document["chunks"],
                tuple(Step(_decode(action), chunk, stage) for chunk, stage, action in document["steps"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(f"this is not a plan in JSON as hetccl writes it: {error!r}") from error


def _encode(value: Any) -> Any:
    if isinstance(value, Region):
        return value.intervals
    if type(value).__name__ in _CLASSES:
        return {"type": type(value).__name__} | {f.name: _encode(getattr(value, f.name)) for f in fields(value)}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        arguments = {name: _decode(item) for name, item in value.items() if name != "type"}
        if "region" in value:
            arguments["region"] = Region(tuple((start, stop) for start, stop in value["region"]))
        if "sources" in value:
            arguments["sources"] = tuple(value["sources"])
        return _CLASSES[value["type"]](**arguments)
    return value
