"""What the names of a function stand for at a statement, and what its conditions ask."""

import ast
import re
from dataclasses import dataclass, field, replace
from typing import Self, TypeGuard

from ampsim.lint.event import ASKS, PARTLY, Guard
from ampsim.lint.names import (
    AVERAGE,
    SCALER,
    SCHEDULE,
    called,
    has,
    is_wrapper,
    kind_by_name,
    leaf,
    name_of,
)
from ampsim.lint.source import Function, Source

_HIDES = re.compile(  # of names that may hold a verdict
    r"(^|_)(stepped|called|ran|did|updated|should|do|done|ok|success|good|bad|valid|finite|last|end)(_|$)|finite|"
    r"^(update|step)(_|$)",
    re.I,
)
_COUNTS = re.compile(
    r"^(update|step)s?(_(start|begin|after)\w*)?$"
)  # where training is, and no flag if compared
CONFIG = re.compile(r"(cfg|config|conf|args|opts?|hparams|hps?|params|flags|options)$", re.I)
_SETTING = re.compile(
    r"rank|master|main_process|is_main|mode|interval|type|name|policy|sched", re.I
)
_MAKES = re.compile(
    r"Scheduler|LR$|ema|EMA|Averaged|scaler|Scaler|\.get$|argparse|parse_args|is_(main|master|rank|enabled)|get_rank"
)
_OF_FIRST = {"bool", "int", "float", "getattr", "hasattr", "isinstance", "callable"}


def is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    """Return whether a node is a name that is assigned."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


@dataclass(frozen=True)
class Value:
    """The meaning of a name: another name, words, and the scaler by which it is scaled.

    `computed` is what is no setting; `made` is the class of this file that it is an instance of;
    `known` is whether it is true, where that is written.
    """

    name: str
    words: frozenset[str] = frozenset()
    scaler: str = ""
    computed: bool = False
    made: str = ""
    known: bool | None = None


@dataclass
class Frame:
    """A function that is walked: its file, its names, the functions defined in it."""

    source: Source
    values: dict[str, Value] = field(default_factory=dict)
    nested: dict[str, Function] = field(default_factory=dict)

    def name(self, node: ast.AST) -> str:
        """Return the name of what an expression stands for."""
        plain = name_of(node)
        if plain in self.values:
            return self.values[plain].name
        head = re.split(r"[.\[(]", plain, maxsplit=1)[0]
        return self.values[head].name + plain[len(head) :] if head in self.values else plain

    def words(self, node: ast.AST) -> frozenset[str]:
        """Return the words in an expression and in what its names were assigned."""
        said, partly = self.source.said(node), {PARTLY} if self.partly_scaled(node) else ()
        return said.union(
            partly, *(self.values[word].words for word in said if word in self.values)
        )

    def partly_scaled(self, node: ast.AST) -> bool:
        """Return whether one term of a sum is scaled and another is not."""
        match node:
            case ast.Call(func=ast.Attribute(value=value), args=[]):  # backward(), mean()
                return self.partly_scaled(value)
            case ast.BinOp(op=ast.Add() | ast.Sub(), left=left, right=right):
                other = right if self.scaler(left) else left
                alone = not isinstance(other, ast.Constant) and not has(
                    self.words(other), "scal|^backward$"
                )
                return bool(self.scaler(node)) and (alone or self.partly_scaled(left))
        return False

    def scaler(self, node: ast.AST) -> str:
        """Return the scaler by which the value of an expression is scaled, or ""."""
        match node:
            case ast.Call(func=ast.Attribute(attr="scale", value=value)) if (
                self.kind(value) == SCALER
            ):
                return self.name(value)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return found.scaler if (found := self.bound(node)) else ""
            case ast.BinOp(op=ast.Div(), right=right) if has(self.words(right), "scale"):
                return ""
            case ast.IfExp(body=left, orelse=right):  # with fp16, or without
                return self.scaler(left) or self.scaler(right)
            case ast.BinOp(left=left, right=right):
                return self.scaler(left) or self.scaler(right)
            case ast.Call(func=ast.Attribute(value=value), args=[]):  # detach(), mean(), clone()
                return self.scaler(value)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                return next(filter(None, map(self.scaler, elts)), "")
        return ""

    def bound(self, node: ast.AST) -> Value | None:
        """Return what an expression was bound to, as it is written or by what it stands for."""
        return self.values.get(name_of(node)) or self.values.get(self.name(node))

    def kind(self, node: ast.AST) -> str:
        """Return the kind of what an expression stands for, or ""."""
        return self.source.kind(self.name(node))

    def value(self, node: ast.expr) -> Value:
        """Return what an expression stands for."""
        simple = isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
        name = self.name(node) if simple else "?"
        computed = not self.is_setting(node)
        known = (
            node.value if isinstance(node, ast.Constant) and isinstance(node.value, bool) else None
        )
        return Value(
            "" if "?" in name else name,
            self.words(node),
            self.scaler(node),
            computed,
            self.made(node),
            known,
        )

    def made(self, node: ast.AST) -> str:
        """Return the class of this file that an expression is an instance of, or ""."""
        if found := self.bound(node):
            return found.made
        call = node if isinstance(node, ast.Call) else self.source.made.get(leaf(self.name(node)))
        made = called(call) if call else ""
        return made if made in self.source.classes else ""

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """Note what a name stands for from here on; an attribute goes on standing for itself."""
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for pair in zip(targets, values, strict=True):
                    self.bind(*pair)
            case ast.Tuple(elts=targets), _:
                for each in targets:
                    self.bind(each, value)
            case ast.Name(id=name), _:
                found = self.value(value)
                self.values[name] = replace(found, name=found.name or name, known=None)
            case _:
                name, found = self.name(target), self.value(value)
                self.values[name] = Value(name, scaler=found.scaler, made=found.made)

    def decided(self, node: ast.If) -> None:
        """Note that flags which a condition sets to True or False hold what it asks."""
        for each in (*node.body, *node.orelse):
            match each:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=bool())):
                    old, words = self.values[name], self.words(node.test)
                    computed = old.computed or not self.is_setting(node.test)
                    self.values[name] = replace(old, words=old.words | words, computed=computed)

    def over(self, target: ast.expr, iterated: ast.expr) -> frozenset[str]:
        """Name the targets of a loop by what it runs over; return the names."""
        match target, iterated:
            case ast.Tuple(elts=[_, inner]), (
                ast.Call(func=ast.Name(id="enumerate"), args=[each, *_])
                | ast.Call(func=ast.Attribute(attr="items", value=each))
            ) if self.kind(each):
                return self.over(inner, each)
            case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=args) if len(
                targets
            ) == len(args):
                return frozenset().union(*map(self.over, targets, args))
            case ast.Name(id=name), ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript():
                self.values[name] = Value(f"{self.name(iterated)}[]", self.words(iterated))
                return frozenset({self.values[name].name})
        names = [each.id for each in ast.walk(target) if is_stored(each)]
        for name in names:
            self.values.pop(name, None)
        return frozenset(names)

    def inner(self, function: Function, node: ast.Call) -> Self:
        """Return the frame of a called function: its parameters stand for the arguments."""
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        closure = function.name in self.nested
        about = {key: value for key, value in self.values.items() if closure or "." in key}
        frame = type(self)(self.source, about, dict(self.nested))
        if isinstance(node.func, ast.Attribute) and names[:1] in (["self"], ["cls"]):
            owner = ast.Name("self") if name_of(node.func.value) == "super()" else node.func.value
            frame.values[names.pop(0)] = Value(self.name(owner), made=self.made(owner))
        given = [
            *zip(names, node.args, strict=False),
            *((word.arg, word.value) for word in node.keywords if word.arg),
        ]
        for name, argument in given:
            found = self.value(argument)
            frame.values[name] = replace(
                found, name=name if "()" in found.name else found.name or name
            )
        return frame.annotated(function)

    def annotated(self, function: Function) -> Self:
        """Note the classes of this file that the parameters are said to be of."""
        for arg in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
            if arg.annotation and (said := leaf(name_of(arg.annotation))) in self.source.classes:
                self.values[arg.arg] = replace(self.values.get(arg.arg, Value(arg.arg)), made=said)
        return self

    def known(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds, where a call says so in plain; None: it does not."""
        return (
            self.values[test.id].known
            if isinstance(test, ast.Name) and test.id in self.values
            else None
        )

    def guards(self, test: ast.expr, *, holds: bool = True) -> tuple[Guard, ...]:
        """Return what must hold where a test does, or does not."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.guards(operand, holds=not holds)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == holds:
                parts = (guard for value in values for guard in self.guards(value, holds=holds))
                return (
                    *parts,
                    Guard(ast.unparse(test), holds),
                )  # whose other branch excludes this one
            case ast.Compare(
                left=left, ops=[op], comparators=[ast.Constant(value=None | True | False as value)]
            ):
                if isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
                    return self.guards(
                        left, holds=holds == (isinstance(op, ast.Is | ast.Eq) == bool(value))
                    )
            case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]):
                return self.guards(ast.Compare(left, [ast.Eq()], [right]), holds=not holds)
        text = self.name(test)
        text = ast.unparse(test) if "?" in text else text
        words = self.words(test)
        return (
            Guard(text, holds, words, not any(map(ASKS.search, words)) and self.is_setting(test)),
        )

    def is_setting(self, node: ast.expr) -> bool:
        """Return whether an expression is of settings, or of where training is."""
        match node:
            case ast.Constant():
                return True
            case ast.Name() | ast.Attribute() if _HIDES.search(leaf(name_of(node))):
                return False
            case ast.Name(id=name):
                computed = name in self.source.emptied or (
                    name in self.values and self.values[name].computed
                )
                return (
                    not computed
                    or bool(CONFIG.match(name))
                    or kind_by_name(name) in (AVERAGE, SCHEDULE)
                )
            case ast.Attribute(value=value) | ast.Subscript(value=value, slice=ast.Constant()):
                known = is_wrapper(name_of(value)) or kind_by_name(name_of(node)) in (
                    AVERAGE,
                    SCHEDULE,
                )
                return known or self.is_setting(value)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.compares(left, op, right)
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in _OF_FIRST:
                return self.is_setting(first)
            case ast.Call(func=func):
                return bool(_MAKES.search(ast.unparse(func)))
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp() | ast.IfExp():
                return all(
                    self.is_setting(each)
                    for each in ast.iter_child_nodes(node)
                    if isinstance(each, ast.expr)
                )
        return False

    def compares(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool:
        """Return whether a comparison is of settings, or of where training is."""
        match op:
            case ast.Eq():
                named = (
                    isinstance(right, ast.Attribute) and name_of(right)[:1].isupper()
                )  # of an enum
                plain = isinstance(right, ast.Constant) and (
                    isinstance(right.value, str) or _SETTING.search(ast.unparse(left))
                )
                return bool(plain or named) and self.is_setting(left)
            case ast.In() | ast.NotIn() | ast.Is() | ast.IsNot():
                return self.is_setting(left)
        return all(
            self.is_setting(each) or _COUNTS.search(leaf(name_of(each))) for each in (left, right)
        )
