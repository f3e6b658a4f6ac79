"""``ampsim dialects``: list the scalers, or compare two of them."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from ampsim.cli.options import Values
from ampsim.cli.terminal import (
    bold_table,
    fail,
    out,
    print_table,
    settings,
    usage_errors,
)
from ampsim.core import dialects
from ampsim.core.differences import Search, in_words, shortest_separation
from ampsim.core.formats import far_power
from ampsim.core.machine import Rule, init
from ampsim.core.replay.fold import states
from ampsim.core.validation import nearest

ALIKE = {"init_scale": 1024.0, "growth_interval": 2}
"""Settings of a search: equal defaults and a short interval, so that differences show early."""


def list_dialects(
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B", help="Compare two dialects.", autocompletion=dialects.names
        ),
    ] = None,
    parameters: Values = None,
) -> None:
    """List the simulated loss scalers, or compare two of them.

    The list has the name, the parameters with defaults, and the source of each. With --diff A B:
    show how the rules differ, and the shortest overflow sequence after which the scales diverge.

    Example: ampsim dialects --diff torch.amp.GradScaler flax.DynamicScale -s growth_interval=3
    """
    if diff is not None:
        _compare(*diff, parameters or ())
        return
    if parameters:
        fail(
            "--set: expected --diff A B; to run one dialect with settings use `ampsim replay`"
        )
    table = bold_table("dialect", "parameters", "source")
    for name in dialects.names():
        dialect = dialects.ALL[name]
        table.add_row(name, ", ".join(_defaults(dialect)), dialect.source)
    print_table(table)


def _defaults(dialect: dialects.Dialect) -> Iterator[str]:
    """Yield each parameter with the framework's default, in the syntax of -s."""
    values = dict[str, object]()
    for name, field in dialect.parameters.items():
        # One factor may stand for both of a rule.
        attribute = "growth_factor" if field == "factor" else field
        values[name] = getattr(dialect.rule, attribute)
    for name, value in [*values.items(), *dialect.options.items()]:
        power = far_power(value, 10) if isinstance(value, float) else None
        yield f"{name}={power or str(value).lower()}"


def _compare(a: str, b: str, parameters: Sequence[str]) -> None:
    with usage_errors(dialects.UnknownDialectError, TypeError):
        given = settings("--set", parameters)
        pair = [_dialect(a), _dialect(b)]
        known = set[str]().union(*map(_settings_of, pair))
        for name in given.keys() - known:
            raise ValueError(
                f"--set {name}: neither dialect has it: {nearest(name, known)}"
            )
        alike = ALIKE | given
        default = [_rule(dialect, given) for dialect in pair]
        searched = [_rule(dialect, alike) for dialect in pair]
    title = "with these settings" if given else "by default"
    table = bold_table(title, a, b)
    for row in in_words(*default):
        table.add_row(*row)
    if table.row_count:
        print_table(table)
    else:
        out.print(f"The rules are equal {title}.")
    search = shortest_separation(searched[0], searched[1])
    shown = ", ".join(f"{name}={value}" for name, value in alike.items())
    out.print(f"\nWith {shown}, where a dialect has it: {_result(search, searched)}")


def _dialect(name: str) -> dialects.Dialect:
    dialects.get(name)  # raises for an unknown one
    return dialects.ALL[name]


def _settings_of(dialect: dialects.Dialect) -> set[str]:
    return {*dialect.parameters, *dialect.options}


def _rule(dialect: dialects.Dialect, given: dict[str, Any]) -> Rule:
    """Return the rule of a dialect with those settings that it has."""
    return dialect(
        **{name: given[name] for name in given.keys() & _settings_of(dialect)}
    )


def _result(search: Search, rules: Sequence[Rule]) -> str:
    """Return after which overflow sequence two rules diverge, and their scales then."""
    if search.history is None:
        bound = "" if search.exhausted else f" of up to {search.length} updates"
        return f"no overflow sequence{bound} separates them"
    runs = itertools.groupby(search.history)
    words = [f"{len([*same])} x {_EVENTS[flag]}" for flag, same in runs]
    after = f"after {', '.join(words)}" if words else "from the start"
    scales = [_last(rule, search.history) for rule in rules]
    return f"they diverge {after}: {' and '.join(scales)}"


_EVENTS = ("finite", "overflow")


def _last(rule: Rule, history: Sequence[bool]) -> str:
    try:
        scales = [init(rule).scale, *(state.scale for state in states(rule, history))]
    except Exception as error:  # an error of the framework is a result
        return f"raises {type(error).__name__}"
    return repr(scales[-1])
