"""The `hetccl` command: puts the subcommands together and turns the library's errors into one line."""

from __future__ import annotations

import sys

import typer

from ..config import SETTINGS
from ..errors import HetcclError
from .plan import plan
from .topo import topo

_SETTINGS_HELP = "\n\n".join(
    f"{setting.name}{f' [{setting.default}]' if setting.default else ''}: {setting.meaning}" for setting in SETTINGS
)

app = typer.Typer(
    help="Collective communication for jobs whose accelerators come from different vendors.",
    epilog=f"Environment variables:\n\n{_SETTINGS_HELP}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# A subcommand is a function in a file of its own, registered here.
app.command()(topo)
app.command()(plan)


def main() -> None:
    """Run the command line. A user's mistake is one line on stderr and exit status 2, never a traceback."""
    try:
        app()
    except HetcclError as error:
        print(f"hetccl: {error}", file=sys.stderr)
        sys.exit(2)
