"""The conditions of a loop: what must hold on the way to a statement."""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from ampsim.lint.event import ASKS, Guard
from ampsim.lint.names import AVERAGE, SCHEDULE, kind_by_name, leaf, name_of, words_of

_HIDES = re.compile(
    r"(^|_)(stepped|called|ran|did|updated|should|do|done|ok|success|good|bad|valid|finite|last|end)(_|$)|finite|"
    r"^(update|step)(_|$)",
    re.I,
)
_CONFIG = re.compile(r"(cfg|config|conf|args|opts?|hparams|hps?|params|flags|options)$", re.I)
_SETTING = re.compile(r"rank|master|main_process|is_main|mode|interval|type|name|policy|sched", re.I)


class Scope(Protocol):
    """A function, and what is known of its names."""

    @property
    def env(self) -> Mapping[str, str]:
        """What a name stands for."""

    @property
    def words(self) -> Mapping[str, frozenset[str]]:
        """The words of what a name was assigned."""

    @property
    def opaque(self) -> set[str]:
        """The names of what was computed."""


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Return whether statements end by going on to the next iteration, or out; an exception ends the run instead."""
    match body[-1] if body else None:
        case ast.Continue() | ast.Break() | ast.Return():
            return True
        case ast.If(body=yes, orelse=no):
            return leaves(yes) and leaves(no)
    return False


def negated(test: ast.expr) -> ast.expr:
    """Return the condition that holds where another does not."""
    return ast.UnaryOp(ast.Not(), test)


def guards_of(test: ast.expr, scope: Scope, *, holds: bool = True) -> tuple[Guard, ...]:
    """Return what must hold where a test does, or does not."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return guards_of(operand, scope, holds=not holds)
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == holds:
            return tuple(guard for value in values for guard in guards_of(value, scope, holds=holds))
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=None | True | False as value)]):
            if isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
                same = isinstance(op, ast.Is | ast.Eq) == bool(value)
                return guards_of(left, scope, holds=holds == same)
        case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
            return guards_of(ast.Compare(left, [ast.Eq()], [right]), scope, holds=not holds)
    text = name_of(test, scope.env)
    text = ast.unparse(test) if "?" in text else text
    return (Guard(text, holds, words_of(test, scope.words), is_benign(test, scope)),)


def is_benign(test: ast.expr, scope: Scope) -> bool:
    """Return whether a condition asks for a setting, or where training is, in a way that is plain."""
    if any(map(ASKS.search, words_of(test, scope.words))):
        return False
    match test:
        case ast.Name() | ast.Attribute() if kind_by_name(name_of(test, {})) in (AVERAGE, SCHEDULE):
            return not _HIDES.search(leaf(name_of(test, {})))
        case ast.BoolOp(values=values):
            return all(is_benign(value, scope) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return is_benign(operand, scope)
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE()], comparators=[right]):
            return is_place(left, scope) and is_place(right, scope)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=value)]):
            named = isinstance(value, str) or _SETTING.search(ast.unparse(left))
            return bool(named) and is_setting(left, scope)
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() | ast.Is() | ast.IsNot()]):
            return is_setting(left, scope) or isinstance(left, ast.Constant)
        case ast.Call(func=ast.Name(id="hasattr" | "isinstance" | "callable"), args=[first, *_]):
            return is_setting(first, scope)
        case ast.Call(func=func):
            return bool(re.search(r"is_main|is_master|is_rank|get_rank|is_enabled", ast.unparse(func)))
    return is_setting(test, scope)


def is_place(node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a number that a run is told or counts, as in ``epoch < args.warmup``."""
    return isinstance(node, ast.Constant) or is_setting(node, scope)


def is_setting(node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a constant, a parameter or a field, whose name hints at no verdict."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return (name not in scope.opaque or bool(_CONFIG.match(name))) and not _HIDES.search(name)
        case ast.Attribute(value=value, attr=attr):
            return not _HIDES.search(attr) and is_setting(value, scope)
        case ast.Subscript(value=value, slice=ast.Constant()):
            return is_setting(value, scope)
        case ast.Call(func=ast.Name(id="bool" | "int" | "float" | "getattr"), args=[first, *_]):
            return is_setting(first, scope)
        case ast.Call(func=func):
            return bool(
                re.search(r"Scheduler|LR$|ema|EMA|Averaged|scaler|Scaler|\.get$|argparse|parse_args", ast.unparse(func))
            )
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp() | ast.IfExp():
            parts = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
            return all(is_setting(each, scope) for each in parts)
    return False
