"""Rules about what a loop lacks or repeats: a scaler's calls, the scaler, full windows."""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.events import Event, Trace
from ampsim.lint.names import OPTIMIZER, called, name_of, words_in
from ampsim.lint.source import Function, Source

_ZEROES = re.compile(r"(zero|clear|reset)_?grad|zero_?\(|grad = None")


def scaler_recreated_in_loop(
    source: Source, traces: Sequence[Trace]
) -> Iterator[ast.AST]:
    """Yield the scalers that are made again while an optimizer of outside trains."""
    stepped = {
        loop for trace in traces for step in trace.of("step") for loop in step.loops
    }
    entered = [pair for trace in traces for pair in trace.entered]
    for made in source.calls:
        if "GradScaler" not in called(made):
            continue
        around = [*source.around(made)]
        repeats = [node for node in around if node in stepped]
        function = next((node for node in around if isinstance(node, Function)), None)
        if (
            function
            and not repeats
            and _trains_a_given_optimizer(source, function, stepped)
        ):
            calls = [call for call, other in entered if other is function]
            repeats = [
                loop
                for call in calls
                for loop in source.around(call)
                if loop in stepped
            ]
            # A function that is named for an epoch is called once per epoch, by another file.
            if re.search("epoch(?!s)", function.name):
                repeats.append(function)
        if not all(_makes_an_optimizer(source, each) for each in repeats):
            yield made


def _trains_a_given_optimizer(
    source: Source, function: Function, stepped: set[ast.AST]
) -> bool:
    names = [arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)]
    given = any("optim" in name or name == "self" for name in names)
    trains = not stepped.isdisjoint(ast.walk(function))
    return given and trains and not _makes_an_optimizer(source, function)


def _makes_an_optimizer(source: Source, scope: ast.AST) -> bool:
    names = (
        node for node in ast.walk(scope) if isinstance(node, ast.Name | ast.Attribute)
    )
    stored = (name_of(node) for node in names if isinstance(node.ctx, ast.Store))
    return OPTIMIZER in map(source.kind, stored)


def gradients_never_zeroed(source: Source, trace: Trace, step: Event) -> bool:
    """Return whether a loop passes losses back and steps, and no word zeroes gradients."""
    passes = trace.of("scale", before=step, near=step)
    return bool(step.loops and passes) and not _ZEROES.search(source.text)


def partial_accumulation(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the divisions by the full window in loops whose last window may be short."""
    for _, step, test in _window_steps(source, traces):
        ends = [part for part in ast.walk(test) if _is_or_the_end(part)]
        windows = {ast.unparse(rest.right) for end in ends for rest in _remainders(end)}
        inside = [*ast.walk(step.loops[-1])] if step.loops else []
        yield from [node for node in inside if _divided_by(node) in windows][:1]


def lost_accumulation(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the conditions on full windows of a loop that is over before its last window is."""
    for trace, step, test in _window_steps(source, traces):
        if isinstance(test, ast.BoolOp) or not step.loops:
            continue
        *outer, loop = step.loops
        # A function that is given what it trains on may be called once per epoch.
        given = isinstance(trace.start, Function) and trace.start.args.args
        later = trace.of("step", after=step)
        ended = any(each.loops == step.loops[:-1] for each in later)
        index = source.words(loop.target) if isinstance(loop, ast.For) else frozenset()
        counts = any(index & source.words(rest.left) for rest in _remainders(test))
        if counts and (outer or given) and not ended:
            yield test


def _window_steps(
    source: Source, traces: Sequence[Trace]
) -> Iterator[tuple[Trace, Event, ast.expr]]:
    """Yield the steps that wait for an index to fill a window, each with this condition."""
    for trace in traces:
        for step in trace.of("step"):
            tests = [
                node.test
                for node in source.around(step.node)
                if isinstance(node, ast.If)
            ]
            for test in [each for each in tests if _remainders(each)][:1]:
                yield trace, step, test


def _remainders(test: ast.AST) -> list[ast.BinOp]:
    """Return the remainders in an expression, as of an index by the size of a window."""
    parts = (part for part in ast.walk(test) if isinstance(part, ast.BinOp))
    return [part for part in parts if isinstance(part.op, ast.Mod)]


def _is_or_the_end(test: ast.AST) -> bool:
    """Return whether a condition is ``i % window == 0 or i == len(...)``, or the like."""
    if not (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)):
        return False
    index = {word for rest in _remainders(test) for word in words_in(rest.left)} - {
        "self"
    }
    for part in test.values:
        words = {*words_in(part)} - {"self"}
        compares = isinstance(part, ast.Compare) and "%" not in words
        if compares and words & {*index, "len"} and words - index:
            return True
    return False


def _divided_by(node: ast.AST) -> str:
    """Return what a loss is divided by, or ""."""
    match node:
        case (
            ast.BinOp(op=ast.Div(), left=loss, right=by)
            | ast.AugAssign(op=ast.Div(), target=loss, value=by)
        ):
            losses = isinstance(loss, ast.Call) or re.search(
                "loss|cost", ast.unparse(loss), re.I
            )
            return ast.unparse(by) if losses else ""
    return ""
