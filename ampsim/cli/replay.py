"""``ampsim replay``: print the scale after each update of an overflow sequence."""

from typing import Annotated

import typer

from ampsim.cli.options import Dialect, Values
from ampsim.cli.terminal import fail, out, settings, usage_errors
from ampsim.core import dialects
from ampsim.core.replay.fold import states


def replay_history(
    dialect: Dialect,
    history: Annotated[
        str,
        typer.Argument(
            metavar="OVERFLOWS",
            help="One digit per update: 1 for an overflow, 0 for a finite step.",
        ),
    ],
    parameters: Values = None,
) -> None:
    """Print the scale after each update of an overflow sequence.

    Example: ampsim replay torch.amp.GradScaler 00100 -s growth_interval=2
    """
    if not history or set(history) - {"0", "1"}:
        fail(
            f"overflows {history!r}: expected digits 0 (finite) and 1 (overflow), e.g. 0001000"
        )
    with usage_errors(dialects.UnknownDialectError, TypeError):
        rule = dialects.get(dialect, **settings("--set", parameters))
    try:
        flags = [digit == "1" for digit in history]
        for overflows, state in zip(flags, states(rule, flags), strict=False):
            out.print(f"{'overflow' if overflows else 'finite':8}  {state.scale!r}")
    except Exception as error:  # an error of the framework is a result
        out.print(f"raises    {type(error).__name__}: {error}")
