"""Rules about what a loop lacks or repeats: a scaler's calls, the scaler, full windows."""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.events import Event, Trace
from ampsim.lint.names import OPTIMIZER, called, name_of, parts_of
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
        repeats = [node for node in source.around(made) if node in stepped]
        function = next(source.around(made, Function), None)
        if repeats or not function:
            pass
        elif _trains_a_given_optimizer(source, function, stepped):
            for call, other in entered:
                if other is function:
                    repeats += stepped.intersection(source.around(call))
            # A function that is named for an epoch is called once per epoch, by another file.
            if re.search("epoch(?!s)", function.name):
                repeats.append(function)
        if not all(_makes_an_optimizer(source, each) for each in repeats):
            yield made


def _trains_a_given_optimizer(
    source: Source, function: Function, stepped: set[ast.AST]
) -> bool:
    if stepped.isdisjoint(ast.walk(function)) or _makes_an_optimizer(source, function):
        return False
    names = [arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)]
    return "self" in names or any("optim" in name for name in names)


def _makes_an_optimizer(source: Source, scope: ast.AST) -> bool:
    names = parts_of(scope, ast.Name | ast.Attribute)
    stored = (name_of(node) for node in names if isinstance(node.ctx, ast.Store))
    return OPTIMIZER in map(source.kind, stored)


def gradients_never_zeroed(source: Source, trace: Trace, step: Event) -> bool:
    """Return whether a loop passes losses back and steps, and no word zeroes gradients."""
    passes = trace.of("scale", before=step, near=step)
    return bool(step.loops and passes) and not _ZEROES.search(source.text)


def lost_accumulation(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the conditions on full windows of loops that are over before their last window is."""
    for trace in traces:
        for step in trace.of("step"):
            window = _window(source, step)
            later = trace.of("step", after=step)
            ended = any(each.loops == step.loops[:-1] for each in later)
            # A function that is given what it trains on may be called once per epoch.
            given = isinstance(trace.start, Function) and trace.start.args.args
            if window and (given or step.loops[1:]) and not ended:
                yield window


def _window(source: Source, step: Event) -> ast.expr | None:
    """Return the condition that the index of a loop fills a window, if a step has only this one."""
    loop = step.loops[-1] if step.loops else None
    index = source.words(loop.target) if isinstance(loop, ast.For) else frozenset()
    for node in source.around(step.node, ast.If):
        if "%" in source.words(node.test):
            counts = index & source.words(node.test)
            return node.test if counts and isinstance(node.test, ast.Compare) else None
    return None
