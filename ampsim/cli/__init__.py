"""The ``ampsim`` command. Exit status: 0 good, 1 a finding, 2 wrong use or an unreadable file.

A command's module is imported when the command is run, or its own help is asked for: ``ampsim --help`` and a mistyped
name need none of them.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from ampsim import __version__
from ampsim.cli.terminal import out

OWN = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""The settings of a command that reads its own arguments."""


class Command(NamedTuple):
    """A command before its module is imported: its panel in the help, where it is, and its line in the help."""

    panel: str
    home: str
    line: str
    settings: dict[str, Any] | None = None

    def load(self) -> Any:
        """Import the function, or the program of several commands."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(f"ampsim.cli.{module}"), name)


RUN, RIGHT, SCALERS = "What did it do to my run?", "Is my scaler right?", "What do scalers do?"
COMMANDS = {
    "explain": Command(
        RUN, "explain:explain_log", "Say in plain words what LOG bears about its loss scale, and what to try."
    ),
    "report": Command(
        RUN,
        "report:report_run",
        "Write one page of HTML: what the loss scale did in RUN, in words and in charts. It opens without a network.",
    ),
    "playground": Command(
        RUN,
        "playground:write_playground",
        "Write a page that opens anywhere: every scaler over real runs, or over a log that you paste.",
    ),
    "check": Command(
        RIGHT,
        "check:check_scalers",
        "Judge a loss scaler by the laws: a class with torch's constructor, make(rule), or a Subject.",
    ),
    "check-loop": Command(
        RIGHT,
        "check:check_loops",
        "Judge a training loop by the laws: make(scaler) returns a Loop, and is called on ranks if it takes a group.",
    ),
    "check-ranks": Command(
        RIGHT,
        "check:check_ranks",
        "Judge scalers that agree over a process group by the laws: one verdict, one scale, one count of steps.",
    ),
    "emit-test": Command(
        RIGHT,
        "emit:emit_test",
        "Write a failure of LAW by TARGET as a pytest file that imports the peer alone, to paste into an issue.",
    ),
    "lint": Command(
        RIGHT,
        "lint:lint_files",
        "Read training loops without running them, and name what breaks a law. Exit status 1: there are findings.",
        OWN,
    ),
    "adapt": Command(
        RIGHT,
        "lint:adapt_file",
        "Write a loop as a module for check-loop, as far as its source has it. Exit status 1: TODO marks the rest.",
        OWN,
    ),
    "card": Command(
        RIGHT, "card:app", "Look at a CUDA card: probes of loss scaling on it, into one file that can be verified."
    ),
    "dialects": Command(
        SCALERS,
        "compare:list_dialects",
        "List the loss scalers that the reference machine speaks: name, parameters with their defaults, source.",
    ),
    "replay": Command(SCALERS, "replay:replay_history", "Print the scale after each update of HISTORY."),
    "sweep": Command(
        SCALERS,
        "sweep:sweep_folder",
        "Say what DIALECT would have done over the runs in DIR, at every combination of values.",
    ),
    "traces": Command(
        SCALERS, "traces:app", "Recorded runs of scalers: check them, export them, judge a program in any language."
    ),
}


def build(loaded: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the program, with the modules of these commands imported; of the others it knows name and line."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(help="ampsim: is my loss scaler right, and what did it do to my run?")(_options)
    for name, command in COMMANDS.items():
        found = command.load() if name in loaded else _unloaded
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, rich_help_panel=command.panel)
        else:
            line = command.line if found is _unloaded else None
            app.command(name, help=line, rich_help_panel=command.panel, context_settings=command.settings)(found)
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
        bool, typer.Option("--version", help="Say the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options of the program itself."""


def main() -> NoReturn:
    """Run the command line, and leave with its exit status."""
    completing = "_AMPSIM_COMPLETE" in os.environ  # a shell asks, and the words are not in argv
    build(COMMANDS if completing else sys.argv[1:])(prog_name="ampsim")
    sys.exit(0)
