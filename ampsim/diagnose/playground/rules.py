"""Rules as plain data that JavaScript reads: the fields of a `Rule`, its quirks by name; inf is written as text."""

import math

from ampsim.core import dialects
from ampsim.core.dialects import Dialect
from ampsim.core.machine import Rule
from ampsim.core.vectors import as_data

Data = dict[str, object]


def rule_data(rule: Rule) -> Data:
    """Return a rule as JSON can hold it: field -> number, text, list, or an object of these."""
    return as_data(rule, lambda x: "inf" if x == math.inf else x)


def dialect_data(dialect: Dialect) -> Data:
    """Return a dialect: its default rule, its parameters, and what becomes of an interval and a first scale in it."""
    data: Data = {"name": dialect.name, "source": dialect.source, "parameters": dict(dialect.parameters)}
    data["rule"] = rule_data(dialect())
    data["clamps_init"] = "init" not in dialect.parameters or dialect(init=2.0**60).init_scale < 2.0**60
    if "interval" in dialect.parameters:
        made = dialect(interval=7)
        data["interval"] = "spread" if made.growth_factor != dialect().growth_factor else made.growth_interval - 7
    return data


def all_dialects() -> list[Data]:
    """Return every dialect, in alphabetical order."""
    return [dialect_data(dialects.ALL[name]) for name in dialects.names()]
