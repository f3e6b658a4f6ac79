"""Writes statements anew: those in which something happens that a rule looks at, and those that they need."""

import ast
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import cast

from ampsim.lint.adapt.calls import Calls
from ampsim.lint.adapt.names import KEPT, Scope, UnknownError
from ampsim.lint.adapt.text import does, identifier, indented, lossy, names, read, short
from ampsim.lint.adapt.unroll import pairs_of
from ampsim.lint.event import ASKS
from ampsim.lint.names import AVERAGE, OPTIMIZER, called, has, name_of, words_in


class Statements(Calls):
    """The statements of a loop."""

    def written(self, scope: Scope) -> str:
        """Return the statements of a function that are kept, after those that they need."""
        scope.assigned = names(scope.body, ast.Store)
        while True:
            before, todo = {*scope.needed}, [*self.todo]
            lines = [*self.block(scope.body, inner=not scope.step)]
            if before == scope.needed:
                return "\n".join(lines)
            self.todo = todo

    def block(self, body: Sequence[ast.stmt], *, inner: bool) -> Iterator[str]:
        """Yield the lines of the statements that are kept; `inner`: a function's own, or those below a loop."""
        for statement in body:
            self.notes = []
            try:
                yield from self.statement(statement, inner=inner)
            except UnknownError as error:
                self.todo.append(f"line {statement.lineno}")
                said = short(ast.unparse(statement))
                where = f"line {statement.lineno}"
                yield f"pass  # TODO: {where}, as {short(str(error))} is not in the file: {said}"

    def statement(self, node: ast.stmt, *, inner: bool) -> Iterator[str]:
        """Yield the lines of a statement, if it is kept."""
        match node:
            case ast.If():
                yield from self.branch(node, inner=inner)
            case ast.For():
                yield from self.loop(node)
            case ast.With():
                yield from self.within(node, inner=inner)
            case ast.Try(body=body, orelse=orelse, finalbody=final):
                yield from self.block([*body, *orelse, *final], inner=inner)
            case ast.Continue() | ast.Break() | ast.Return():
                yield self.leave(node, inner=inner)
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from self.assign(target, value, node)
            case ast.AugAssign():
                yield from self.augment(node)
            case ast.Expr(value=value) if self.matters(value):
                yield self.line(self.value(value), node)
            case ast.Expr():
                yield from self.gradients(node)

    def leave(self, node: ast.Continue | ast.Break | ast.Return, *, inner: bool) -> str:
        """Return what ends an iteration, a loop in it, or a function."""
        if not isinstance(node, ast.Return):
            return ast.unparse(node) if inner else "return"
        return "return" if self.scope.step or node.value is None else f"return {ast.unparse(self.returned(node.value))}"

    def gradients(self, node: ast.Expr) -> Iterator[str]:
        """Yield a statement that does something with gradients, if all is known that it needs."""
        if self.of_gradients(node, node):
            with suppress(UnknownError):
                yield self.line(self.value(node.value), node)

    def of_gradients(self, node: ast.stmt, part: ast.AST) -> bool:
        """Return whether a rule looks at what a statement does with the gradients in a part of it."""
        return "grad" in self.events.get(node, ()) and ".grad" in words_in(part)

    def loop(self, node: ast.For) -> Iterator[str]:
        """Yield a loop in the step in which something happens; an average that is written by hand is one call."""
        lines = [*self.block(node.body, inner=True)]
        if "average" in self.events.get(node, ()):
            self.objects["average"] = AVERAGE
            call = self.line(read(f"average.update_parameters({self.net(self.nets(0)[0])})"), node)
            yield f"{call}  # for the loop of line {node.lineno}"
        elif OPTIMIZER in map(self.kind, getattr(node.target, "elts", [node.target])):
            yield from lines  # of which there is one, stepped with once per update
        elif {identifier(name_of(over)) for _, over in pairs_of(node)} & {*self.stepped()}:
            for target, over in pairs_of(node):
                yield f"{ast.unparse(target)} = {ast.unparse(self.object(over))}"
            yield from lines
        elif does(lines):
            yield f"for {self.over(node.target, node.iter)}:"
            yield from indented(lines)

    def within(self, node: ast.With, *, inner: bool) -> Iterator[str]:
        """Yield what is below a with, of which only those for gradients are kept."""
        lines = [*self.block(node.body, inner=inner)]
        kept = [text for text in map(ast.unparse, node.items) if re.search(r"torch\.(no|enable)_grad", text)]
        if kept and does(lines):
            yield f"with {', '.join(kept)}:"
            lines = [*indented(lines)]
        yield from lines

    def matters(self, node: ast.AST) -> bool:
        """Return whether something that a rule looks at happens in an expression."""
        inside = [*ast.walk(node)]
        events = any(self.events.get(each, set()) & KEPT for each in inside)
        return events or any(isinstance(each, ast.Call) and self.helper(each) for each in inside)

    def line(self, node: ast.AST, said: ast.stmt) -> str:
        """Return a statement, with a comment on what in it is a stand-in."""
        marks = [each for each in self.notes if each.startswith("TODO")]
        notes = ", ".join(dict.fromkeys(short(each) for each in self.notes if each not in marks))
        self.todo += marks
        about = f"  # for {notes}, line {said.lineno}" * bool(notes) + "".join(
            f"  # {each}" for each in dict.fromkeys(marks)
        )
        self.notes = []
        return ast.unparse(ast.fix_missing_locations(node)) + about

    def stored(self, target: ast.expr) -> str:
        """Return the identifier that an assignment sets; attributes and elements outlive the iteration."""
        if isinstance(target, ast.Name):
            return target.id
        return identifier(name_of(target)) if isinstance(target, ast.Attribute) else ""

    def assign(self, target: ast.expr, value: ast.expr, node: ast.stmt) -> Iterator[str]:
        """Yield an assignment whose name is needed, or in which something happens."""
        if isinstance(target, ast.Tuple):
            yield from self.unpack(target, value, node)
            return
        name, happens = self.stored(target), self.matters(value)
        if self.of_gradients(node, target):
            yield self.line(ast.Assign([self.value(target)], self.value(value)), node)
        elif (self.kind(target) and not happens) or ast.unparse(value) == ast.unparse(target):
            return  # an object that is made where make() makes it
        elif isinstance(target, ast.Attribute) and (name in self.kept or happens or self.is_loss(name)):
            self.kept.setdefault(name, self.literals.get(name, ("None", 0))[0])
            yield self.line(ast.Assign([ast.Name(name)], self.computed(name, value)), node)
        elif name in self.scope.needed or happens:
            try:
                yield self.line(ast.Assign([ast.Name(name or "_")], self.computed(name, value)), node)
            except UnknownError:
                self.scope.unknown |= {name} & self.opaque
                if name not in self.opaque:
                    raise

    def unpack(self, target: ast.Tuple, value: ast.expr, node: ast.stmt) -> Iterator[str]:
        """Yield an assignment to several names, each by itself."""
        if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
            for pair in zip(target.elts, value.elts, strict=True):
                yield from self.assign(*pair, node)
            return
        if self.matters(value):
            yield self.line(ast.Assign([ast.Name("_")], self.value(value)), node)
        for name in map(self.stored, target.elts):
            if name in self.scope.needed:
                yield from self.assign(ast.Name(name), value, node)

    def computed(self, name: str, value: ast.expr) -> ast.expr:
        """Return what a name is assigned: a loss, a value, or a stand-in for it."""
        happens = self.matters(value)
        plain = isinstance(value, ast.Constant | ast.Dict | ast.List) or ".item" in ast.unparse(value)
        scaled = any("scale" in self.events.get(each, ()) for each in ast.walk(value))
        if scaled or (self.is_loss(name) and not happens and not plain):
            return self.loss(value)
        try:
            return self.value(value)
        except UnknownError:
            if happens or name in self.opaque:
                raise
            self.notes.append(ast.unparse(value))
            return read(self.guess(name)[0])

    def returned(self, value: ast.expr) -> ast.expr:
        """Return what a function of the file returns, as far as it is known."""
        if isinstance(value, ast.Tuple):
            return ast.Tuple([self.returned(each) for each in value.elts])
        try:
            return self.loss(value) if isinstance(value, ast.Name) and self.is_loss(value.id) else self.value(value)
        except UnknownError:
            return ast.Constant(None)

    def augment(self, node: ast.AugAssign) -> Iterator[str]:
        """Yield ``+=`` and its kin where the name is needed; a counter of iterations outlives one."""
        name, value = self.stored(node.target), node.value
        if self.of_gradients(node, node.target):
            target = cast("ast.Attribute", self.value(node.target))
            yield self.line(ast.AugAssign(target, node.op, self.value(value)), node)
        elif name and (name in self.scope.needed or name in self.kept or name in self.settings):
            adds = isinstance(node.op, ast.Add | ast.Sub) and self.is_loss(name) and lossy(value)
            counts = self.scope.step and isinstance(value, ast.Constant) and not self.is_loss(name)
            if isinstance(node.target, ast.Attribute) or counts:
                self.settings.pop(name, None)
                self.kept.setdefault(name, "0")
            yield self.line(
                ast.AugAssign(ast.Name(name), node.op, self.loss(value) if adds else self.value(value)), node
            )

    def branch(self, node: ast.If, *, inner: bool) -> Iterator[str]:
        """Yield a condition with what is kept below it."""
        words = {*words_in(node.test)}
        asks = has(words, ASKS.pattern) or "%" in words or has(words, "accum")
        parts = []
        for body in (node.body, node.orelse):
            lines = [*self.block(body, inner=inner)]
            parts.append(lines if does(lines) or (asks and lines) else [])
        if not any(parts):
            return
        self.notes = []
        test = self.test(node.test)
        if (known := self.known(test)) is not None and not any(each.startswith("TODO") for each in self.notes):
            yield from parts[not known]
            return
        yield re.sub(r"(  #|$)", r":\1", "if " + self.line(test, node), count=1)
        yield from indented(parts[0] or ["pass"])
        if parts[1]:
            yield "else:"
            yield from indented(parts[1])

    def known(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds, where a setting was chosen so that the scaler's step is reached."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                known = self.known(operand)
                return None if known is None else not known
            case ast.Constant(value=bool(value)):
                return value
            case ast.Name(id=name) if name in self.settings and self.settings[name] in (
                ("None", ""),
                ("False", ""),
                ("True", ""),
            ):
                return self.settings[name][0] == "True"
            case ast.Compare(left=ast.Name(id="scaler"), ops=[op], comparators=[ast.Constant(value=None)]):
                return isinstance(op, ast.IsNot)
        return None

    def test(self, node: ast.expr) -> ast.expr:
        """Return a condition; of what is not in the file, what leads to the step."""
        if isinstance(node, ast.BoolOp):
            return ast.BoolOp(node.op, [self.test(each) for each in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ast.UnaryOp(node.op, self.test(node.operand))
        try:
            made = self.value(node)
            loads = {each.id for each in ast.walk(made) if isinstance(each, ast.Name)}
            mine = loads & (self.scope.assigned | {*self.scope.params} | {*self.kept, "scaler"})
            if not isinstance(node, ast.Compare) or mine or ast.unparse(node) not in self.tests or len(loads) < 2:
                return made
            return ast.Constant(self.tests[ast.unparse(node)])
        except UnknownError:
            if ast.unparse(node) in self.tests:
                return ast.Constant(self.tests[ast.unparse(node)])
            text = ast.unparse(node)
            self.notes.append(f"TODO: whether {short(text)}" if ASKS.search(text) else text)
            return ast.Constant(not re.search(r"nan|inf\b|isinf|skip|overflow", text, re.I))

    def over(self, target: ast.expr, iterated: ast.expr) -> str:
        """Return what a loop in the step runs over; twice where that is not known."""
        text = ast.unparse(iterated)
        if isinstance(target, ast.Name) and isinstance(iterated, ast.Call) and "param" in called(iterated):
            return f"{target.id} in {self.net(self.nets(iterated.lineno)[0])}.parameters()"
        if (
            re.match(r"range\(|reversed\(range", text)
            or re.search(r"parameters\(\)|param_groups", text)
            or self.kind(iterated) == OPTIMIZER
        ):
            with suppress(UnknownError):
                known = ast.unparse(self.value(iterated))
                return f"{ast.unparse(target)} in {f'[{known}]' if self.kind(iterated) else known}"
        names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
        return f"{names[0] if 'enumerate' in ast.unparse(iterated) else '_'} in range(2)"
