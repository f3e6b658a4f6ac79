"""The ``ampsim`` command.

Exit status: 0 no findings, 1 findings, 2 usage error or unreadable file, 3 no result.

``ampsim`` imports only the module of the command that it runs.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Annotated, NoReturn

import typer

from ampsim import __version__
from ampsim.cli.terminal import out

OWN = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}
"""Settings of a command that parses its own arguments."""


RUN, TESTS, SCALERS = (
    "Diagnose a training run",
    "Test scalers and loops",
    "Simulate scalers",
)
# name -> panel in the help, and module:function (or Typer program); in the help's order
COMMANDS = {
    "explain": (RUN, "explain:explain_log"),
    "report": (RUN, "report:report_run"),
    "playground": (RUN, "playground:write_playground"),
    "check": (TESTS, "check:check_scalers"),
    "check-loop": (TESTS, "check_loop:check_loops"),
    "check-ranks": (TESTS, "check:check_ranks"),
    "emit-test": (TESTS, "emit:emit_test"),
    "lint": (TESTS, "lint:lint_files"),
    "dialects": (SCALERS, "compare:list_dialects"),
    "replay": (SCALERS, "replay:replay_history"),
    "sweep": (SCALERS, "sweep:sweep_folder"),
    "advise": (SCALERS, "advise:advise_run"),
    "traces": (SCALERS, "traces:app"),
}


def build(words: Iterable[str] = ()) -> typer.Typer:
    """Return the program with the commands that are among `words`; with all if none is."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(
        help="Test, simulate, and diagnose dynamic loss scaling in fp16 training."
    )(_options)
    words = {*words}
    for command in [name for name in COMMANDS if name in words] or COMMANDS:
        panel, home = COMMANDS[command]
        module, _, name = home.partition(":")
        target = getattr(importlib.import_module(f"ampsim.cli.{module}"), name)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=command, rich_help_panel=panel)
        else:
            settings = OWN if module == "lint" else None
            app.command(command, rich_help_panel=panel, context_settings=settings)(
                target
            )
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
