"""The ``ampsim`` command.

Exit status: 0 no findings, 1 findings, 2 usage error or unreadable file, 3 no result.

``ampsim`` imports the module of a command only to run the command or to print its help.
``ampsim --help`` and a mistyped name import no such module.
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
"""Settings of a command that parses its own arguments."""


RUN, TESTS, SCALERS = "Diagnose a training run", "Test scalers and loops", "Simulate scalers"
COMMANDS = {  # name -> panel in the help, and module:function (or Typer program); in the help's order
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


def line_of(module: str, name: str) -> str:
    """Return a command's line in the help: the start of its docstring or of its program's help.

    The text is read from the source, so the module is not imported.
    """
    source = Path(__file__).with_name(f"{module}.py").read_text("utf-8")
    pattern = (
        r'^app = typer.Typer\(\s*help="(.*?)"'
        if name == "app"
        else rf'^def {name}\(.*?"""(.*?)(?:\n\n|""")'
    )
    match = re.search(pattern, source, re.MULTILINE | re.DOTALL)
    return match[1] if match else ""


def build(loaded: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the program; only the modules of the commands in `loaded` are imported."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(help="Test, simulate, and diagnose dynamic loss scaling in fp16 training.")(
        _options
    )
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
        target = getattr(importlib.import_module(f"ampsim.cli.{module}"), name)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=command, rich_help_panel=panel)
        else:
            app.command(command, rich_help_panel=panel, context_settings=settings)(target)
    return app


def __getattr__(name: str) -> object:
    if name == "app":  # the whole program, to run it in-process
        return build()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _unloaded() -> None:
    """Stand in for a command that this call does not run."""


def _print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"ampsim {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Parse the options of the program itself."""


def main() -> NoReturn:
    """Run the command line and exit with its status."""
    completing = "_AMPSIM_COMPLETE" in os.environ  # the shell passes the words in the environment
    build(COMMANDS if completing else sys.argv[1:])(prog_name="ampsim")
    sys.exit(0)
