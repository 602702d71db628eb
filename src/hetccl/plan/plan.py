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

VERSION = 2
"""Of the JSON form."""

_LAYOUTS: dict[str, Any] = {
    cls.__name__: cls for cls in (layouts.Borders, layouts.Shares, layouts.Single, layouts.Everyone)
}
_ACTIONS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (steps.Local, steps.Transfer, steps.Direct, steps.Combine, steps.Fill, steps.Scale, steps.Copy)
}
_JOBWIDE = (layouts.Shares, layouts.Everyone)
"""Layouts whose cluster may be None."""
_FIELDS = {name: tuple(f.name for f in fields(cls)) for name, cls in (_LAYOUTS | _ACTIONS).items()}


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
        """Canonical JSON: sorted keys, no spaces, integers and strings only.

        Many steps name one region, which may be thousands of intervals: regions are listed once, in the order in
        which the steps first name them, and steps give their number.
        """
        regions: dict[Region, int] = {}
        document = {
            "version": VERSION,
            "spec": {
                **{f.name: getattr(self.spec, f.name) for f in fields(self.spec)},
                "operation": self.spec.operation.value,
                "reduction": self.spec.reduction.value if self.spec.reduction else None,
            },
            "topology": self.topology,
            "algorithm": self.algorithm,
            "combine": self.combine,
            "chunks": self.chunks,
            "steps": [[step.chunk, step.stage, _encode(step.action, regions)] for step in self.steps],
            "regions": [region.intervals for region in regions],
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote. Raises ConfigurationError where the text is no such plan."""
        try:
            return _plan(json.loads(text))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
            raise ConfigurationError(f"this is not a plan in JSON as hetccl writes it: {error!r}") from error


def _encode(value: Any, regions: dict[Region, int]) -> Any:
    if isinstance(value, Region):
        return regions.setdefault(value, len(regions))
    name = type(value).__name__
    if name in _FIELDS:
        return {"type": name} | {field: _encode(getattr(value, field), regions) for field in _FIELDS[name]}
    return value


def _plan(document: Any) -> Plan:
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']!r}, this hetccl reads {VERSION}")
    spec = dict(document["spec"])
    spec["operation"] = Operation(spec["operation"])
    spec["reduction"] = Reduction(spec["reduction"]) if spec["reduction"] else None
    spec["sizes"] = tuple(_whole(size) for size in spec["sizes"])
    for name in ("ranks", "itemsize", "root", "peer"):
        _whole(spec[name])
    regions = [_region(intervals) for intervals in document["regions"]]
    return Plan(
        Spec(**spec),
        _word(document["topology"]),
        _word(document["algorithm"]),
        tuple(_word(mode) for mode in document["combine"]),
        _whole(document["chunks"]),
        tuple(
            Step(_decode(action, regions, _ACTIONS), _whole(chunk), _whole(stage))
            for chunk, stage, action in document["steps"]
        ),
    )


def _region(intervals: Any) -> Region:
    """A region that is what `Region.of` makes: ascending, apart, and not empty."""
    found = Region(tuple((_whole(start), _whole(stop)) for start, stop in intervals))
    if found != Region.of(found.intervals):
        raise ValueError(f"these intervals are no region: {intervals!r}")
    return found


def _decode(value: Any, regions: list[Region], classes: dict[str, Any]) -> Any:
    """A step's action, or its layouts; each field must be of the type that it is declared with."""
    made = classes[value["type"]]
    if value.keys() != {"type", *_FIELDS[value["type"]]}:
        raise ValueError(f"fields {sorted(value)} are not those of a {value['type']}")
    arguments: dict[str, Any] = {}
    for name in _FIELDS[value["type"]]:
        item = value[name]
        match name:
            case "region":
                arguments[name] = regions[_whole(item)]
            case "layout" | "source_layout" | "target_layout":
                arguments[name] = _decode(item, regions, _LAYOUTS)
            case "sources":
                arguments[name] = tuple(_word(source) for source in item)
            case "group" | "apart":
                if not isinstance(item, bool):
                    raise TypeError(f"{name} is {item!r}, not true or false")
                arguments[name] = item
            case "rotation" | "rank" | "cluster":
                arguments[name] = None if item is None and made in _JOBWIDE else _whole(item)
            case _:
                arguments[name] = _word(item)
    return made(**arguments)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value
