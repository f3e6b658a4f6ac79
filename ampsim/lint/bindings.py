"""What the names of a function stand for at a statement, and what its conditions ask."""

import ast
import re
from dataclasses import dataclass, field, replace
from typing import Self

from ampsim.lint.events import ASKS, Guard
from ampsim.lint.names import AVERAGE, SCALER, SCHEDULE, has, leaf, name_of
from ampsim.lint.source import Function, Source

_SCALED = "scaled by "  # begins the word of a value that a scaler has scaled
# Names that may hold what a condition found out.
_HIDES = re.compile(
    r"(?i)(^|_)(stepped|called|ran|did|updated|should|do|done|ok|success|good|bad|valid|finite|"
    r"last|end)(_|$)|finite|^(update|step)(_|$)",
)
_CONFIG = re.compile(
    r"(?i)(cfg|config|conf|args|opts?|hparams|hps?|params|flags|options|accelerator|fabric)$",
)
_SETTING = re.compile(
    r"(?i)rank|master|main_process|is_main|mode|interval|type|name|policy|sched"
)
_MAKES = re.compile(
    r"Scheduler|LR$|ema|EMA|Averaged|scaler|Scaler|\.get$|argparse|parse_args|torch\.device$|"
    r"is_(available|main|master|rank)|get_rank|^(bool|int|float|getattr|hasattr|isinstance|callable)$"
)
_PLAIN = (
    ast.Constant
    | ast.Attribute
    | ast.Subscript
    | ast.Compare
    | ast.BoolOp
    | ast.UnaryOp
    | ast.IfExp
)


@dataclass(frozen=True)
class Value:
    """The meaning of a name.

    Attributes:
        name: another name for it, or its own.
        words: the words in what it was assigned.
        computed: whether it is no setting.
    """

    name: str
    words: frozenset[str] = frozenset()
    computed: bool = False


@dataclass
class Bindings:
    """The names of a function that is walked."""

    source: Source
    values: dict[str, Value] = field(default_factory=dict)

    def name(self, node: ast.AST) -> str:
        """Return the name of what an expression stands for."""
        plain = name_of(node)
        for known in (plain, re.split(r"[.\[(]", plain, maxsplit=1)[0]):
            if known in self.values:
                return self.values[known].name + plain[len(known) :]
        return plain

    def kind(self, node: ast.AST) -> str:
        """Return the kind of what an expression stands for, or ""."""
        return self.source.kind(self.name(node))

    def words(self, node: ast.AST) -> frozenset[str]:
        """Return the words in an expression and in what its names were assigned.

        A value that a scaler has scaled has the word `_SCALED` with the name of the scaler.
        """
        words = self.source.words(node)
        found = words.union(
            *(self.values[each].words for each in words if each in self.values)
        )
        if "scale" in words:
            owners = self.source.owners_of("scale", scope=node)
            found |= {
                _SCALED + self.name(each)
                for each in owners
                if self.kind(each) == SCALER
            }
        return found

    def scaled_by(self, node: ast.AST) -> str | None:
        """Return the name of the scaler by which a value is scaled, if there is one."""
        for word in sorted(self.words(node)):
            if word.startswith(_SCALED):
                return word.removeprefix(_SCALED)
        return None

    def value(self, node: ast.expr, name: str) -> Value:
        """Return the value of an expression that is assigned to a name."""
        if isinstance(
            node, ast.Name | ast.Attribute | ast.Subscript
        ) and "?" not in name_of(node):
            name = self.name(node)
        return Value(name, self.words(node), not self.is_setting(node))

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """Note what a target stands for from here on; an attribute goes on standing for itself."""
        match target, value:
            case ast.Tuple(elts=targets), _:
                for each in targets:
                    self.bind(each, value)
            case ast.Name(id=name), _:
                self.values[name] = self.value(value, name)
            case _:
                name = self.name(target)
                words = self.words(value)
                scaled = frozenset(each for each in words if each.startswith(_SCALED))
                self.values[name] = Value(name, scaled)

    def bind_loop(self, target: ast.expr, iterated: ast.expr) -> frozenset[str]:
        """Name the targets of a loop by what it runs over; return their names."""
        match target, iterated:
            case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=args):
                pairs = zip(targets, args, strict=False)
                return frozenset().union(*(self.bind_loop(*pair) for pair in pairs))
            case ast.Name(id=name), _:
                item = f"{self.name(iterated)}[]"
                self.values[name] = Value(item, self.words(iterated))
                return frozenset({item})
        return frozenset()

    def of_call(self, function: Function, node: ast.Call) -> Self:
        """Return the names of a function that is called: its parameters stand for the arguments."""
        inner = type(self)(self.source, dict(self.values))
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        if isinstance(node.func, ast.Attribute) and names[:1] == ["self"]:
            inner.values[names.pop(0)] = Value(self.name(node.func.value))
        given = dict(zip(names, node.args, strict=False))
        given |= {word.arg: word.value for word in node.keywords if word.arg}
        for name, argument in given.items():
            value = self.value(argument, name)
            inner.values[name] = (
                replace(value, name=name) if "()" in value.name else value
            )
        return inner

    def guards(self, test: ast.expr, *, holds: bool = True) -> tuple[Guard, ...]:
        """Return what must hold where a test does, or does not."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.guards(operand, holds=not holds)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) == holds:
                parts = (
                    guard
                    for value in values
                    for guard in self.guards(value, holds=holds)
                )
                # The last one is what the other branch excludes.
                return (*parts, Guard(ast.unparse(test), holds))
            case ast.Compare(
                left=left,
                ops=[ast.Is() | ast.Eq() | ast.IsNot() | ast.NotEq() as op],
                comparators=[ast.Constant(value=None | True | False as value)],
            ):
                same = isinstance(op, ast.Is | ast.Eq)
                return self.guards(left, holds=holds == (same == bool(value)))
        name = self.name(test)
        words = self.words(test)
        benign = self.is_setting(test) and not has(words, ASKS)
        return (
            Guard(ast.unparse(test) if "?" in name else name, holds, words, benign),
        )

    def is_setting(self, node: ast.expr) -> bool:
        """Return whether an expression is of settings, or of where training is."""
        if isinstance(node, ast.Call):
            return bool(_MAKES.search(ast.unparse(node.func)))
        name = leaf(name_of(node))
        if isinstance(node, ast.Name | ast.Attribute):
            if _HIDES.search(name):
                return False
            if self._is_known(name):
                return True
        if isinstance(node, ast.Name):
            # A list is filled as the training goes, as by a hook.
            kinds = map(type, self.source.assigned[name])
            computed = self.values.get(name, Value(name)).computed
            return not (computed or ast.List in kinds)
        match node:
            case ast.Compare(
                left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]
            ):
                is_text = isinstance(getattr(right, "value", None), str)
                is_of_class = name_of(right)[:1].isupper()
                if not (is_text or is_of_class or _SETTING.search(ast.unparse(left))):
                    return False
        children = ast.iter_child_nodes(node)
        parts = (part for part in children if isinstance(part, ast.expr))
        return isinstance(node, _PLAIN) and all(map(self.is_setting, parts))

    def _is_known(self, name: str) -> bool:
        return bool(_CONFIG.match(name)) or self.source.kind(name) in (
            AVERAGE,
            SCHEDULE,
        )
