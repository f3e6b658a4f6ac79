"""``ampsim dialects``: list the scalers, or compare two of them."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from ampsim.cli.terminal import fail, out, print_table, settings
from ampsim.core import dialects
from ampsim.core.differences import Search, in_words, shortest_separation
from ampsim.core.machine import Rule, init
from ampsim.core.replay.fold import states
from ampsim.core.validation import nearest

ALIKE = {"init_scale": 1024.0, "growth_interval": 2}
"""Settings of a search: equal defaults and a short interval, so that differences show early."""
SHOWN = 8


def list_dialects(
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Compare two dialects.", autocompletion=dialects.names),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            help="With --diff: parameter of both, or of the one that has it.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    longest: Annotated[
        int,
        typer.Option(
            help="With --diff: longest overflow sequence to try, in updates.", min=1, max=10**6
        ),
    ] = 2000,
) -> None:
    """List the loss scalers that ampsim simulates: name, parameters with defaults, source.

    With --diff A B: show how the rules differ, and the shortest overflow sequence after which the scales diverge.
    Example: ampsim dialects --diff torch.amp.GradScaler flax.DynamicScale -s growth_interval=3
    """
    if diff is not None:
        _compare(*diff, parameters or (), longest)
        return
    if parameters:
        fail("--set: expected --diff A B; to run one dialect with settings use `ampsim replay`")
    table = Table("dialect", "parameters", "source", box=None, pad_edge=False, header_style="bold")
    for name in dialects.names():
        dialect = dialects.ALL[name]
        table.add_row(name, ", ".join(_defaults(dialect)), dialect.source)
    print_table(table)


def _defaults(dialect: dialects.Dialect) -> Iterator[str]:
    """Yield each parameter with the framework's default, in the syntax of -s."""
    for name, target in dialect.parameters.items():
        yield f"{name}={_typed(getattr(dialect.rule, 'growth_factor' if target == 'factor' else target))}"
    for name, default in dialect.options.items():
        yield f"{name}={_typed(default)}"


def _typed(value: object) -> str:
    if isinstance(value, float) and value > 0:
        mantissa, exponent = math.frexp(value)
        if mantissa == 0.5 and abs(exponent) > 10:
            return f"2**{exponent - 1}"
        return short if float(short := f"{value:g}") == value else repr(value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _compare(a: str, b: str, parameters: Sequence[str], longest: int) -> None:
    names = a, b
    try:
        given = settings("--set", parameters)
        for name in names:
            dialects.get(name)
        known = {
            name: {*dialects.ALL[name].parameters, *dialects.ALL[name].options} for name in names
        }
        for name in given:
            if name not in known[a] | known[b]:
                raise ValueError(
                    f"--set {name}: neither dialect has it: {nearest(name, known[a] | known[b])}"
                )
        default = [dialects.get(name, **_of(known[name], given)) for name in names]
        searched = [dialects.get(name, **_of(known[name], ALIKE | given)) for name in names]
    except (dialects.UnknownDialectError, TypeError, ValueError) as error:
        fail(str(error))
    _print_words(names, default, given)
    search = shortest_separation(searched[0], searched[1], longest)
    out.print(f"\n{_settings(names, known, ALIKE | given)}: {_result(search)}")
    if search.history is not None:
        _print_history(names, searched, search.history)


def _of(known: set[str], given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in known}


def _print_words(names: tuple[str, str], rules: Sequence[Rule], given: dict[str, Any]) -> None:
    title = "with these settings" if given else "by default"
    table = Table(title, *names, box=None, pad_edge=False, header_style="bold")
    for row in in_words(*rules):
        table.add_row(*row)
    if table.row_count:
        print_table(table)
    else:
        out.print(f"The rules are equal {title}.")


def _settings(names: tuple[str, str], known: dict[str, set[str]], given: dict[str, Any]) -> str:
    """Return the settings of a search as text; name the dialect where only one has a parameter."""

    def setting(name: str) -> str:
        having = [dialect for dialect in dict.fromkeys(names) if name in known[dialect]]
        return f"{name}={given[name]}" + (
            "" if len(having) == len({*names}) else f" ({having[0]} only)"
        )

    return "With " + (
        ", ".join(setting(name) for name in given if name in known[names[0]] | known[names[1]])
        or "no settings"
    )


def _result(search: Search) -> str:
    if search.history is not None:
        runs = [(flag, len([*same])) for flag, same in itertools.groupby(search.history)]
        words = ", ".join(
            f"{count} {'overflow' if flag else 'finite step'}{'s' * (count > 1)}"
            for flag, count in runs
        )
        return f"they diverge after {words}" if words else "they differ before any update"
    if search.exhausted:
        return "no overflow sequence separates them"
    return f"no overflow sequence of up to {search.length} updates separates them"


def _print_history(names: tuple[str, str], rules: Sequence[Rule], history: Sequence[bool]) -> None:
    """Print the scales of both, up to the first difference."""
    table = Table("update", "", *names, box=None, pad_edge=False, header_style="bold")
    sides = [[f"{init(rule).scale!r}", *_scales(rule, history)] for rule in rules]
    flags = ["", *("overflow" if flag else "finite" for flag in history)]
    rows = [*zip(itertools.count(-1), flags, *sides, strict=False)]
    for number, flag, *scales in rows if len(rows) <= SHOWN + 1 else [("...",) * 4, *rows[-SHOWN:]]:
        table.add_row("" if number == -1 else str(number), flag, *scales)
    print_table(table)


def _scales(rule: Rule, history: Sequence[bool]) -> Iterator[str]:
    try:
        for state in states(rule, history):
            yield repr(state.scale)
    except Exception as error:  # an error of the framework is a result
        yield f"raises {type(error).__name__}"
