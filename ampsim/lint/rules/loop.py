"""Rules about what a loop lacks or repeats: a scaler's calls, the scaler, full windows."""

import ast
import re
from collections.abc import Iterator

from ampsim.lint.events import Event, Trace, Traces
from ampsim.lint.names import OPTIMIZER, called, name_of, parts_of
from ampsim.lint.source import Function, Source

_ZEROES = re.compile(r"(zero|clear|reset)_?grad|zero_?\(|grad = None")


def scaler_recreated_in_loop(source: Source, traces: Traces) -> Iterator[ast.AST]:
    """Yield the scalers that are made again while an optimizer of outside trains."""
    steps = [step for trace in traces for step in trace.of("step")]
    stepped = {loop for step in steps for loop in step.loops}
    for made in source.calls:
        if "GradScaler" in called(made):
            repeats = _repeats_of(source, traces, made, stepped)
            # With a new optimizer in the same loop, a new training begins.
            if not all(_makes_an_optimizer(source, each) for each in repeats):
                yield made


def _repeats_of(
    source: Source, traces: Traces, made: ast.Call, stepped: set[ast.AST]
) -> list[ast.AST]:
    """Return the loops with steps that make a scaler again, or a function that is called in one."""
    repeats = [node for node in source.around(made) if node in stepped]
    function: Function | None = next(source.around(made, Function), None)
    if repeats or function is None:
        return repeats
    if not _trains_a_given_optimizer(source, function, stepped):
        return []
    for trace in traces:
        for call, entered in trace.entered:
            if entered is function:
                repeats += stepped.intersection(source.around(call))
    # A function that is named for an epoch is called once per epoch, by another file.
    if re.search("epoch(?!s)", function.name):
        repeats.append(function)
    return repeats


def _trains_a_given_optimizer(
    source: Source, function: Function, stepped: set[ast.AST]
) -> bool:
    if stepped.isdisjoint(ast.walk(function)) or _makes_an_optimizer(source, function):
        return False
    arguments = function.args.args + function.args.kwonlyargs
    names = [argument.arg for argument in arguments]
    return "self" in names or any("optim" in name for name in names)


def _makes_an_optimizer(source: Source, scope: ast.AST) -> bool:
    for node in parts_of(scope, ast.Name | ast.Attribute):
        is_stored = isinstance(node.ctx, ast.Store)
        if is_stored and source.kind(name_of(node)) == OPTIMIZER:
            return True
    return False


def gradients_never_zeroed(source: Source, trace: Trace, step: Event) -> bool:
    """Return whether a loop passes losses back and steps, and no word zeroes gradients."""
    passes = trace.of("scale", before=step, near=step)
    if not (step.loops and passes):
        return False
    return not _ZEROES.search(source.text)


def lost_accumulation(source: Source, traces: Traces) -> Iterator[ast.AST]:
    """Yield the conditions on full windows of loops that are over before their last window is."""
    for trace in traces:
        for step in trace.of("step"):
            window = _window(source, step)
            if window and _is_repeated(trace, step) and not _ends(trace, step):
                yield window


def _is_repeated(trace: Trace, step: Event) -> bool:
    """Return whether the loop of a step may run once per epoch."""
    is_nested = len(step.loops) > 1
    # A function that is given what it trains on may be called once per epoch.
    is_given = isinstance(trace.start, Function) and bool(trace.start.args.args)
    return is_nested or is_given


def _ends(trace: Trace, step: Event) -> bool:
    """Return whether the rest of a window is stepped with after the loop."""
    outside = step.loops[:-1]
    return any(each.loops == outside for each in trace.of("step", after=step))


def _window(source: Source, step: Event) -> ast.expr | None:
    """Return the condition that the index of a loop fills a window, if a step has only this one."""
    loop = step.loops[-1] if step.loops else None
    if not isinstance(loop, ast.For):
        return None
    index = source.words(loop.target)
    for node in source.around(step.node, ast.If):
        test: ast.expr = node.test
        words = source.words(test)
        if "%" in words:
            counts = not index.isdisjoint(words)
            return test if counts and isinstance(test, ast.Compare) else None
    return None
