"""The ``ampsim`` command.

``ampsim`` imports only the module of the command that it runs.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from ampsim import __version__
from ampsim.cli.options import STATUS
from ampsim.cli.terminal import out

# name -> module:function, or Typer program; in the order of the help
COMMANDS = {
    "explain": "explain:explain_log",
    "report": "report:report_run",
    "playground": "playground:write_playground",
    "check": "check:check_scalers",
    "check-loop": "check_loop:check_loops",
    "check-ranks": "check_ranks:check_ranks",
    "emit-test": "emit:emit_test",
    "lint": "lint:lint_files",
    "dialects": "compare:list_dialects",
    "replay": "replay:replay_history",
    "sweep": "sweep:sweep_trace",
    "advise": "advise:advise_run",
    "traces": "traces:app",
}


class Command(TyperCommand):
    """A command whose usage errors show the example of its help."""

    def get_usage(self, ctx: Any) -> str:
        example = (self.help or "").rpartition("Example: ")[2]
        return f"{super().get_usage(ctx)}\nExample: {example}"


def build(words: Iterable[str] = ()) -> typer.Typer:
    """Return the program with the commands that are among `words`; with all if none is."""
    # Plain help: rich prints a type for each flag.
    app = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.callback(
        help="Test, simulate, and diagnose dynamic loss scaling in fp16 training."
    )(_options)
    words = {*words}
    for command in [name for name in COMMANDS if name in words] or COMMANDS:
        module, _, name = COMMANDS[command].partition(":")
        target = getattr(importlib.import_module(f"ampsim.cli.{module}"), name)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=command)
        else:
            app.command(command, cls=Command, epilog=STATUS)(target)
    return app


def __getattr__(name: str) -> object:
    if name == "app":  # the whole program, to run it in-process
        return build()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"ampsim {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Parse the options of the program itself."""


def main() -> NoReturn:
    """Run the command line and exit with its status."""
    completing = (
        "_AMPSIM_COMPLETE" in os.environ
    )  # the shell passes the words in the environment
    build(() if completing else sys.argv[1:])(prog_name="ampsim")
    sys.exit(0)
