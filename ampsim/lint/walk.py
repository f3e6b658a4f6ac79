"""Walks a function, and the functions of its file that it calls, and notes what a rule looks at."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ampsim.lint.calls import Call, event_of
from ampsim.lint.event import Event, Guard, Trace
from ampsim.lint.frame import Frame
from ampsim.lint.guards import guards_of, leaves, negated
from ampsim.lint.names import SCALER, leaf, name_of, words_of
from ampsim.lint.source import Function, Source

DEEPEST, LONGEST = 6, 4000  # calls within calls, and statements per walk: a file is read in milliseconds


class Walker:
    """A walk through one function."""

    def __init__(self, source: Source) -> None:
        self.source, self.trace, self.frame = source, Trace(), Frame(source)
        self.guards: tuple[Guard, ...] = ()
        self.passed: tuple[Guard, ...] = ()  # by the branches that leave, up to the end of the loop or function
        self.loops: tuple[tuple[ast.AST, frozenset[str]], ...] = ()
        self.stack: tuple[Function, ...] = ()
        self.seen: set[Function] = set()
        self.left = LONGEST

    def block(self, body: Sequence[ast.stmt]) -> None:
        """Walk statements, with what an early leave says of those after it."""
        kept = self.guards
        for statement in body:
            self.left -= 1
            if self.left < 0:
                break
            self.statement(statement)
            if isinstance(statement, ast.If) and leaves(statement.body) != leaves(statement.orelse):
                self.guards += guards_of(
                    negated(statement.test) if leaves(statement.body) else statement.test, self.frame
                )
            if isinstance(statement, ast.Return | ast.Continue | ast.Break | ast.Raise):
                break
        self.guards = kept

    def guarded(self, guards: tuple[Guard, ...], body: Sequence[ast.stmt]) -> None:
        """Walk statements under conditions."""
        kept = self.guards
        leave = Guard(f"{id(body)} leaves", holds=True, words=frozenset(), benign=True)
        away = bool(body) and isinstance(body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)
        self.guards += (*guards, *[leave] * away)
        self.block(body)
        self.guards = kept
        self.passed += (replace(leave, holds=False),) * away

    def statement(self, node: ast.stmt) -> None:
        """Walk one statement."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.frame.nested[node.name] = node
            case ast.ClassDef():
                pass
            case ast.If():
                self.expression(node.test)
                branch = Guard(f"{id(node)} branch", holds=True, words=frozenset(), benign=True)
                self.guarded((*guards_of(node.test, self.frame), branch), node.body)
                other = replace(branch, holds=False)
                self.guarded((*guards_of(negated(node.test), self.frame), other), node.orelse)
            case ast.For() | ast.AsyncFor():
                self.expression(node.iter)
                self.loop(node, self.frame.over(node.target, node.iter))
            case ast.While():
                self.expression(node.test)
                self.loop(node, frozenset())
            case ast.With() | ast.AsyncWith() | ast.Try() | ast.TryStar() | ast.Match():
                self.compound(node)
            case _:
                self.simple(node)

    def compound(self, node: ast.stmt) -> None:
        """Walk what holds blocks that are no branch and no loop."""
        match node:
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self.expression(item.context_expr)
                    if item.optional_vars:
                        self.frame.bind(item.optional_vars, item.context_expr)
                self.block(node.body)
            case ast.Match():
                self.expression(node.subject)
                for case in node.cases:
                    self.guarded(self.unknown(case, ast.unparse(case.pattern)), case.body)
            case ast.Try() | ast.TryStar():
                self.attempt(node)

    def attempt(self, node: ast.Try | ast.TryStar) -> None:
        """Walk a try: its handlers happen instead of the rest."""
        tried = self.unknown(node, "raises")
        self.guarded((), node.body)
        for handler in node.handlers:
            self.guarded(tried, handler.body)
        self.block([*node.orelse, *node.finalbody])

    def unknown(self, node: ast.AST, text: str) -> tuple[Guard, ...]:
        """Return a condition that nothing is known of."""
        return (Guard(f"{id(node)} {text}", holds=True, words=frozenset(), benign=False),)

    def loop(self, node: ast.For | ast.AsyncFor | ast.While, targets: frozenset[str]) -> None:
        """Walk the body of a loop once."""
        kept, passed = self.loops, self.passed
        self.loops = (*self.loops, (node, targets))
        self.block(node.body)
        self.loops, self.passed = kept, passed
        self.block(node.orelse)

    def simple(self, node: ast.stmt) -> None:
        """Walk a statement that holds no others: its calls, then what it assigns."""
        self.expression(node)
        if ".grad" in self.source.text and any(
            isinstance(each, ast.Attribute) and each.attr == "grad" for each in ast.walk(node)
        ):
            self.note("grad", "", "", node, words_of(node, self.frame.words), self.roots(node))
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.frame.bind(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.frame.bind(target, value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                self.frame.words[name] = self.frame.words.get(name, frozenset()) | words_of(value, self.frame.words)

    def roots(self, node: ast.AST) -> frozenset[str]:
        """Return what the names in a statement stand for."""
        return frozenset(self.frame.name(each) for each in ast.walk(node) if isinstance(each, ast.Name))

    def expression(self, node: ast.AST) -> None:
        """Walk the calls of an expression, the inner ones first."""
        if isinstance(node, ast.Lambda | ast.stmt) and not isinstance(
            node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return | ast.Assert | ast.Raise
        ):
            return
        if isinstance(node, ast.IfExp):
            kept = self.guards
            self.expression(node.test)
            for part, test in ((node.body, node.test), (node.orelse, negated(node.test))):
                self.guards = kept + guards_of(test, self.frame)
                self.expression(part)
            self.guards = kept
            return
        for child in ast.iter_child_nodes(node):
            self.expression(child)
        if isinstance(node, ast.Call):
            self.call(node)

    def call(self, node: ast.Call) -> None:
        """Note a call that a rule looks at; walk a function of this file."""
        call, function = Call(node, self.source, self.frame), self.resolve(node.func)
        for kind, on, of in event_of(call):
            if kind == "backward" and function:
                continue  # what it does is walked
            about = frozenset({on, of, call.base} | ({self.frame.name(node.args[0])} if node.args else set()))
            kept = self.guards
            if kind in ("unscale", "step", "update"):  # of a scaler that is called as a whole, as timm's
                windows = (each.value for each in node.keywords if each.arg in ("update_grad", "need_update"))
                self.guards += tuple(guard for each in windows for guard in guards_of(each, self.frame))
            self.note(kind, on, of, node, words_of(node, self.frame.words), about)
            self.guards = kept
        if function:
            self.enter(function, node)

    def note(self, kind: str, on: str, of: str, node: ast.AST, words: frozenset[str], about: frozenset[str]) -> None:
        """Add an event; a loop over what the event is about is none of its loops."""
        loops = tuple(
            loop for loop, targets in self.loops if not any(name.startswith(t) for t in targets for name in about)
        )
        around = tuple(loop for loop, _ in self.loops)
        self.trace.append(Event(kind, on, of, node, self.guards + self.passed, loops, words, around))

    def resolve(self, func: ast.expr) -> Function | None:
        """Return the function of this file that is called, if it is known which one."""
        match func:
            case ast.Name(id=name) if name in self.frame.nested:
                return self.frame.nested[name]
            case ast.Name(id=name):
                found = self.source.functions.get(name, [])
                return found[0] if len(found) == 1 else None
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                return self.source.method(self.frame.owner, attr)
            case ast.Attribute(value=value, attr=attr) if self.source.kind(self.frame.name(value)) != SCALER:
                return self.source.method(self.frame.typed.get(self.frame.name(value), ""), attr)
        return None

    def enter(self, function: Function, node: ast.Call) -> None:
        """Walk a function that is called, in its own frame."""
        if function in self.stack or len(self.stack) >= DEEPEST or function.name not in self.source.touched:
            return
        outer, passed, self.stack = self.frame, self.passed, (*self.stack, function)
        self.frame = self.frame.inner(function, node)
        self.seen.add(function)
        self.block(function.body)
        self.frame, self.passed, self.stack = outer, passed, self.stack[:-1]


def traces_of(source: Source) -> Iterator[Trace]:
    """Yield the events of the module, of the functions that no other calls, and of those that were missed."""
    called = called_names(source)
    owners = {each: owner for owner, own in source.methods.items() for each in own.values()}
    seen: set[Function] = set()
    functions = sorted(source.all_functions, key=lambda each: (each.name in called, each.lineno))
    starts: list[Function | None] = [None, *functions]
    for start in starts:
        if start is not None and (start in seen or start.name not in source.touched):
            continue
        walker = Walker(source)
        if start is not None:
            walker.frame = Frame(source, owners.get(start, ""))
            walker.frame.annotate(start)
            walker.stack = (start,)
            seen.add(start)
        walker.block(start.body if start else source.tree.body)
        seen |= walker.seen
        if any(event.kind in ("scale", "step", "unscale", "apex", "backward") for event in walker.trace):
            yield walker.trace


def called_names(source: Source) -> set[str]:
    """Return the names of functions that are called, as themselves or on self or an instance."""
    calls = (node.func for node in source.nodes if isinstance(node, ast.Call))
    return {leaf(name_of(func, {})) for func in calls if isinstance(func, ast.Name | ast.Attribute)}
