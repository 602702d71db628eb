"""The settings, and the only reader of the environment.

`SETTINGS` is the one table of names, defaults and meanings: `Config.read` follows it, and so do `hetccl
--help` and the documentation. Settings are read each time that a group is made, so a script may set them for
each rank.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import ConfigurationError

logger = logging.getLogger("hetccl")

PREFIX = "HETCCL_"
COMBINE_MODES = ("auto", "border", "fill", "add")
ALGORITHMS = ("auto", "bandwidth", "latency")


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `shared` settings must be equal on all ranks, because plans depend on them."""

    name: str
    field: str
    default: str
    meaning: str
    parse: Callable[[str], object]
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of one rank, as `SETTINGS` describes them; empty text or tuple means "choose for me"."""

    vendor: str = ""
    cluster: str = ""
    combine: str = "auto"
    algorithm: str = "auto"
    paths: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    host: str = ""
    topology: str = ""
    chunks: int = 0
    mpi_library: str = ""

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """The settings in `environ`. Raises ConfigurationError for bad values; logs unknown HETCCL_ names."""
        values: dict[str, object] = {}
        for setting in SETTINGS:
            text = environ.get(setting.name, "").strip() or setting.default
            if not text:
                continue
            try:
                values[setting.field] = setting.parse(text)
            except ValueError as error:
                raise ConfigurationError(
                    f"The environment variable {setting.name} is {text!r}, but {error}; correct or unset it."
                ) from None
        known = {setting.name for setting in SETTINGS}
        for name in environ:
            if name.startswith(PREFIX) and name not in known:
                _warn_unknown(name)
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Launch:
    """What torchrun told this process."""

    rank: int
    size: int
    address: str
    port: int

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Launch | None:
        """The launch that this process is part of, or None where it was started by hand."""
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if not all(environ.get(name) for name in names):
            return None
        rank, size, address, port = (environ[name] for name in names)
        try:
            return cls(int(rank), int(size), address, int(port))
        except ValueError:
            raise ConfigurationError(
                f"RANK={rank!r}, WORLD_SIZE={size!r} and MASTER_PORT={port!r} must be whole numbers; "
                "start the job with torchrun, which sets them."
            ) from None


@functools.cache
def _warn_unknown(name: str) -> None:
    """Once a process: groups are made many times."""
    near = difflib.get_close_matches(name, [setting.name for setting in SETTINGS], n=1, cutoff=0)[0]
    logger.warning("hetccl has no setting %s and ignores it; the nearest name is %s.", name, near)


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]*", text):
        raise ValueError("only letters, digits and . _ : - may stand there")
    return text


def _words(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not words:
        raise ValueError("a comma-separated list needs at least one name")
    return tuple(_word(word) for word in words)


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            near = difflib.get_close_matches(text, choices, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"it must be one of {', '.join(choices)}{hint}")
        return text

    return parse


def _interfaces(text: str) -> tuple[str, ...]:
    entries = tuple(dict.fromkeys(entry.strip() for entry in text.split(",") if entry.strip()))
    if not entries:
        raise ValueError("it must name an interface or a subnet")
    for entry in entries:
        if "/" in entry:
            try:
                ipaddress.ip_network(entry, strict=False)
            except ValueError:
                raise ValueError(f"{entry!r} is no subnet such as 10.0.0.0/8") from None
        elif not re.fullmatch(r"[^\s/]{1,63}", entry):
            raise ValueError(f"{entry!r} is no interface name")
    return entries


def _chunks(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError("it must be a whole number, 0 to let the cost model choose")
    return int(text)


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "HETCCL_VENDOR",
        "vendor",
        "",
        "Adaptor of this rank's vendor library (gloo, mpi, nccl, …); chosen by the device where unset.",
        _word,
    ),
    Setting(
        "HETCCL_CLUSTER",
        "cluster",
        "",
        "A label: ranks of one vendor with different labels are different clusters.",
        _word,
    ),
    Setting(
        "HETCCL_COMBINE",
        "combine",
        "auto",
        "How partial results of several clusters are combined: auto (by "
        "cost), border, fill or add. Equal on all ranks.",
        _one_of(COMBINE_MODES),
        shared=True,
    ),
    Setting(
        "HETCCL_ALGORITHM",
        "algorithm",
        "auto",
        "bandwidth (the fewest bytes between clusters), latency (the fewest steps, for small messages) or auto: the "
        "shorter predicted time. Equal on all ranks.",
        _one_of(ALGORITHMS),
        shared=True,
    ),
    Setting(
        "HETCCL_PATHS",
        "paths",
        "",
        "Comma-separated list of the paths that may be used between ranks, such as tcp; all that work where unset.",
        _words,
    ),
    Setting(
        "HETCCL_INTERFACE",
        "interfaces",
        "",
        "Comma-separated list of the network interfaces to use, each a "
        "name or a subnet such as 10.0.0.0/8; by the route to the job's store where unset.",
        _interfaces,
    ),
    Setting("HETCCL_HOST", "host", "", "The identity of this host, so that one machine can act as several.", _word),
    Setting(
        "HETCCL_TOPOLOGY",
        "topology",
        "",
        "A YAML file whose clusters, borders and bandwidths replace those found. The same content on all ranks.",
        str,
    ),
    Setting(
        "HETCCL_CHUNKS",
        "chunks",
        "0",
        "Chunks that a collective is pipelined in; 0 lets the cost model choose. Equal on all ranks.",
        _chunks,
        shared=True,
    ),
    Setting(
        "HETCCL_MPI_LIBRARY",
        "mpi_library",
        "",
        "Path of the libmpi that the MPI adaptors load; that of the installed wheel where unset.",
        str,
    ),
)
