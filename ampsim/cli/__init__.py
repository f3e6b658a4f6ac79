"""The ``ampsim`` command. Exit status: 0 good, 1 a finding, 2 wrong use or an unreadable file."""

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from ampsim import __version__
from ampsim.cli import card, traces
from ampsim.cli.check import check_loops, check_ranks, check_scalers
from ampsim.cli.compare import list_dialects
from ampsim.cli.emit import emit_test
from ampsim.cli.explain import explain_log
from ampsim.cli.lint import OWN, lint_files
from ampsim.cli.playground import write_playground
from ampsim.cli.report import report_run
from ampsim.cli.sweep import sweep_folder
from ampsim.cli.terminal import drop_output, err, fail, open_output, out, settings
from ampsim.core import dialects
from ampsim.core.replay.fold import states

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def replay_history(
    dialect: Annotated[
        str, typer.Argument(metavar="DIALECT", help="A name from `ampsim dialects`.", show_default=False)
    ],
    history: Annotated[
        str, typer.Argument(metavar="HISTORY", help="One digit per update: 1 overflow, 0 clean.", show_default=False)
    ],
    parameters: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="name=value, e.g. -s interval=2", metavar="NAME=VALUE")
    ] = None,
) -> None:
    """Print the scale after each update of HISTORY.

    Example: ampsim replay torch.amp.GradScaler 00100 -s interval=2
    """
    if not history or set(history) - {"0", "1"}:
        fail(f"history {history!r}: expected digits 0 (clean) and 1 (overflow), e.g. 0001000")
    try:
        rule = dialects.get(dialect, **settings("--set", parameters))
    except (dialects.UnknownDialectError, TypeError, ValueError) as error:
        fail(str(error))
    try:
        for digit, state in zip(history, states(rule, [digit == "1" for digit in history]), strict=False):
            out.print(f"{'overflow' if digit == '1' else 'clean':8}  {state.scale!r}")
    except Exception as error:  # what the framework itself raises is a result, not a failure of ours
        out.print(f"raises    {type(error).__name__}: {error}", markup=False)


_PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "What did it do to my run?": {"explain": explain_log, "report": report_run, "playground": write_playground},
    "Is my scaler right?": {
        "check": check_scalers,
        "check-loop": check_loops,
        "check-ranks": check_ranks,
        "emit-test": emit_test,
    },
    "What do scalers do?": {"dialects": list_dialects, "replay": replay_history, "sweep": sweep_folder},
}
for _panel, _commands in _PANELS.items():
    for _name, _function in _commands.items():
        app.command(_name, rich_help_panel=_panel)(_function)
app.command("lint", rich_help_panel="Is my scaler right?", context_settings=OWN)(lint_files)
app.add_typer(card.app, name="card", rich_help_panel="Is my scaler right?")
app.add_typer(traces.app, name="traces", rich_help_panel="What do scalers do?")


def _say_version(wanted: bool) -> None:
    if wanted:
        out.print(f"ampsim {__version__}")
        raise typer.Exit


@app.callback(help="ampsim: is my loss scaler right, and what did it do to my run?")
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Say the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options of the program itself."""


def main() -> None:
    """Run the command line."""
    open_output()
    try:
        try:
            app(prog_name="ampsim")
        finally:
            sys.stdout.flush()
    except OSError as error:
        drop_output()
        err.print(f"ampsim: cannot write what was found: {error.strerror}; expected room for it", markup=False)
        sys.exit(2)
