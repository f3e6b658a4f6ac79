"""Accumulation windows: what happens with every micro-batch, and once per step."""

import ast
import re
from collections.abc import Iterator
from itertools import chain

from ampsim.lint.event import Event
from ampsim.lint.names import leaf, words_in
from ampsim.lint.source import Source, Trace


def zero_grad_in_accumulation(trace: Trace, zero: Event) -> bool:
    """Return whether gradients are cleared with every micro-batch, where the scaler steps once per window."""
    steps = [step for step in trace.of("step", beside=zero) if leaf(step.of) == leaf(zero.of)]
    bare = any(each.loops == zero.loops for each in trace.of("bare"))
    passes = any(not zero.beyond(each) for each in trace.of("backward", near=zero))
    return not bare and passes and trace.per_window(zero, steps)


def average_per_micro_batch(trace: Trace, each: Event) -> bool:
    """Return whether an average of parameters is updated between the steps."""
    return all(guard.benign for guard in each.guards) and trace.per_window(
        each, trace.of("step", beside=each)
    )


def clip_per_micro_batch(trace: Trace, clip: Event) -> bool:
    """Return whether a sum of gradients is clipped that is not complete."""
    return trace.per_window(clip, trace.of("step", "bare", beside=clip))


def partial_accumulation(source: Source) -> Iterator[ast.AST]:
    """Yield the divisions by the full window in loops whose last window may be short."""
    loops = {step.loops[-1] for _, step in source.events("step") if step.loops}
    blocks = [getattr(node, name, None) for node in source.nodes for name in ("body", "orelse")]
    for loop in sorted(loops, key=lambda each: getattr(each, "lineno", 0)):
        inside = [*ast.walk(loop)]
        or_the_end = (
            part for each in inside if isinstance(each, ast.If) for part in ast.walk(each.test)
        )
        after = (
            block[block.index(loop) + 1 :]
            for block in blocks
            if isinstance(block, list) and loop in block
        )
        left_over = (
            each.test
            for each in chain(*after)
            if isinstance(each, ast.If) and ".step(" in ast.unparse(each)
        )
        ends = chain(
            filter(_or_the_end, or_the_end), left_over
        )  # after which the last batch is stepped with
        parts = (each for end in ends for each in ast.walk(end) if isinstance(each, ast.BinOp))
        windows = {ast.unparse(each.right) for each in parts if isinstance(each.op, ast.Mod)}
        yield from [each for each in inside if _divided_by(each) in windows][:1]


def _or_the_end(test: ast.AST) -> bool:
    """Return whether a condition ends a window with the last batch: ``i % window == 0 or i == len(...)``."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else []
    said = [{*words_in(part)} - {"self"} for part in parts if isinstance(part, ast.Compare)]
    rests = (
        each
        for each in ast.walk(test)
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod)
    )
    index = {word for rest in rests for word in words_in(rest.left)} - {"self"}
    return any(words & {*index, "len"} and words - index and "%" not in words for words in said)


def _divided_by(node: ast.AST) -> str:
    """Return what a loss is divided by, or ""."""
    match node:
        case (
            ast.BinOp(op=ast.Div(), left=loss, right=by)
            | ast.AugAssign(op=ast.Div(), target=loss, value=by)
        ):
            said = (isinstance(loss, ast.Call), re.search("loss|cost", ast.unparse(loss), re.I))
            return ast.unparse(by) if any(said) else ""
    return ""
