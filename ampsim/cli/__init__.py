"""The ``ampsim`` command. Exit status: 0 good, 1 a finding, 2 wrong use or an unreadable file.

A command's module is imported when the command is run, or its own help is asked for: ``ampsim --help`` and a mistyped
name need none of them.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from ampsim import __version__
from ampsim.cli.terminal import out

OWN = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""The settings of a command that reads its own arguments."""


RUN, RIGHT, SCALERS = "What did it do to my run?", "Is my scaler right?", "What do scalers do?"
COMMANDS = {  # in the help's order: its panel there, and the module and the name of its function or program
    "explain": (RUN, "explain:explain_log"),
    "report": (RUN, "report:report_run"),
    "playground": (RUN, "playground:write_playground"),
    "check": (RIGHT, "check:check_scalers"),
    "check-loop": (RIGHT, "check:check_loops"),
    "check-ranks": (RIGHT, "check:check_ranks"),
    "emit-test": (RIGHT, "emit:emit_test"),
    "lint": (RIGHT, "lint:lint_files"),
    "dialects": (SCALERS, "compare:list_dialects"),
    "replay": (SCALERS, "replay:replay_history"),
    "sweep": (SCALERS, "sweep:sweep_folder"),
    "traces": (SCALERS, "traces:app"),
}


def line_of(module: str, name: str) -> str:
    """Return a command's line in the help, read off its source: how its docstring, or its program's help, begins."""
    source = Path(__file__).with_name(f"{module}.py").read_text("utf-8")
    begins = (
        r'^app = typer.Typer\(\s*help="(.*?)"'
        if name == "app"
        else rf'^def {name}\(.*?"""(.*?)(?:\n\n|""")'
    )
    found = re.search(begins, source, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def build(loaded: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the program, with the modules of these commands imported; of the others it knows name and line."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(help="ampsim: is my loss scaler right, and what did it do to my run?")(_options)
    for command, (panel, home) in COMMANDS.items():
        module, _, name = home.partition(":")
        settings = OWN if module == "lint" else None
        if command not in loaded:
            app.command(
                command,
                help=line_of(module, name),
                rich_help_panel=panel,
                context_settings=settings,
            )(_unloaded)
            continue
        found = getattr(importlib.import_module(f"ampsim.cli.{module}"), name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=command, rich_help_panel=panel)
        else:
            app.command(command, rich_help_panel=panel, context_settings=settings)(found)
    return app


def __getattr__(name: str) -> object:
    if name == "app":  # the whole program, for those who run it in their own process
        return build()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _unloaded() -> None:
    """Take the place of a command that this call of the program does not run."""


def _say_version(wanted: bool) -> None:
    if wanted:
        out.print(f"ampsim {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say the version and exit.", callback=_say_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options of the program itself."""


def main() -> NoReturn:
    """Run the command line, and leave with its exit status."""
    completing = "_AMPSIM_COMPLETE" in os.environ  # a shell asks, and the words are not in argv
    build(COMMANDS if completing else sys.argv[1:])(prog_name="ampsim")
    sys.exit(0)
