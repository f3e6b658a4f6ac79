"""Rules about what a loop lacks: zeroed gradients, full windows."""

import ast
import re
from collections.abc import Iterator

from ampsim.lint.events import Event, Trace, Traces
from ampsim.lint.source import Function, Source

_ZEROES = re.compile(r"(zero|clear|reset)_?grad|zero_?\(|grad = None")


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
