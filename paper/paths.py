"""Paths: how a number names its place in a data file.

A *selector* walks from the records: ``arm=global fp32 / test_loss`` keeps the records whose arm is that, and takes
their test loss. Its steps, separated by " / ", are

    name         the value under a key, of each item
    name=value   the items whose value under that key reads so; with != those where it does not
    *            every element of a list, or every value of a dict
    3, -1        one element of a list
    @            the provenance instead of the records; first step only

A *path* is arithmetic over reduced selectors, such as ``100 * sum('arm=a / wrong') / sum('arm=a / checked')``.
"""

import ast
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ampsim.core.theory import of_ceilings
from paper.sources import Refused, Source


def select(source: Source, selector: str) -> list[Any]:
    """What a selector finds, in the file's order.

    Raises:
        Refused: it finds nothing.
    """
    steps = selector.split(" / ")
    found: list[Any] = list(source.records)
    if steps[0] == "@":
        found, steps = [source.provenance], steps[1:]
    for number, step in enumerate(steps, 1):
        found = list(_walk(found, step))
        if not found:
            raise Refused(f"{source.file}: {' / '.join(steps[:number])!r} finds nothing")
    return found


def _walk(items: Sequence[Any], step: str) -> Iterable[Any]:
    for item in items:
        if step == "*":
            yield from item.values() if isinstance(item, Mapping) else item
        elif isinstance(item, list):
            if "=" in step:
                yield from (element for element in item if _fits(element, step))
            elif step.lstrip("-").isdigit() and -len(item) <= int(step) < len(item):
                yield item[int(step)]
        elif isinstance(item, Mapping) and step in item:  # keys may have = in them
            yield item[step]
        elif _fits(item, step):
            yield item


def _fits(item: Any, step: str) -> bool:
    name, equals, value = step.partition("=")
    wanted, name = not name.endswith("!"), name.removesuffix("!")
    return bool(equals) and isinstance(item, Mapping) and name in item and (str(item[name]) == value) is wanted


def the(values: Sequence[Any]) -> Any:
    """The value that all have in common."""
    if any(value != values[0] for value in values):
        raise Refused(f"the(): expected one value, found {sorted(set(map(str, values)))[:5]}")
    return values[0]


def _renewal(ceilings: Any, growth_interval: int) -> tuple[float, float]:
    """T3's skip rate and mean log2 scale from counted ceilings."""
    x, form = of_ceilings(dict(ceilings), growth_interval)
    return form.skip_rate, float(x @ form.levels)


REDUCERS: dict[str, Callable[..., Any]] = {
    "the": the,
    "mean": statistics.fmean,
    "sd": statistics.stdev,  # of the sample
    "median": statistics.median,
    "min": min,
    "max": max,
    "sum": sum,
    "count": len,
    "distinct": lambda values: len(set(map(str, values))),
    "listed": list,
    "known": lambda values: sum(value is not None for value in values),
    "above": lambda values, limit: sum(value > limit for value in values),
    "lengths": lambda lists: sum(map(len, lists)),
    "peaks_above": lambda lists, limit: sum(max(values) > limit for values in lists),
    "mean_level": lambda counted: statistics.fmean([k for k, _ in the(counted)], [n for _, n in the(counted)]),
    "t3_rate": lambda counted, interval: _renewal(the(counted), interval)[0],
    "t3_level": lambda counted, interval: _renewal(the(counted), interval)[1],
}
PLAIN: dict[str, Callable[..., Any]] = {"log2": math.log2, "abs": abs, "round": round, "max": max, "min": min}
_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARE = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq}


def evaluate(source: Source, path: str) -> Any:
    """The value of a path.

    Raises:
        Refused: a selector finds nothing, a name is unknown, or the arithmetic is impossible.
    """
    try:
        return _value(source, ast.parse(path, mode="eval").body)
    except (SyntaxError, TypeError, ArithmeticError, statistics.StatisticsError, LookupError, ValueError) as error:
        if isinstance(error, Refused):
            raise Refused(f"{path}: {error}") from None
        raise Refused(f"{path}: {type(error).__name__}: {error}") from error


def _value(source: Source, node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=parts):
            return [_value(source, part) for part in parts]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(source, operand)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(source, left), _value(source, right))
        case ast.Compare(left=left, ops=ops, comparators=rights):
            values = [_value(source, part) for part in (left, *rights)]
            return all(_COMPARE[type(op)](values[i], values[i + 1]) for i, op in enumerate(ops))
        case ast.BoolOp(op=op, values=parts):
            return (all if isinstance(op, ast.And) else any)(_value(source, part) for part in parts)
        case ast.Attribute(value=value, attr=name) if not name.startswith("_"):
            return getattr(_value(source, value), name)
        case ast.Subscript(value=value, slice=index):
            return _value(source, value)[_value(source, index)]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return _call(source, name, args, keywords)
    raise ValueError(f"{ast.unparse(node)}: expected arithmetic over reduced selectors")


def _call(source: Source, name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
    first, *more = [_value(source, arg) for arg in args] or [None]
    if isinstance(first, str) and name in REDUCERS and not source.names:
        return REDUCERS[name](select(source, first), *more)
    known = {**PLAIN, **source.names}
    if name not in known:
        raise ValueError(f"{name}(): expected one of {', '.join(sorted({*REDUCERS, *known}))}")
    values = [first, *more] if args else []
    return known[name](*values, **{str(k.arg): _value(source, k.value) for k in keywords})
