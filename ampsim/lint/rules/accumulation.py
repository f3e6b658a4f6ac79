"""Accumulation windows: what happens with every micro-batch, and once per step."""

import ast
import re
from collections.abc import Iterator

from ampsim.lint.event import Event
from ampsim.lint.names import leaf, words_in
from ampsim.lint.source import Source, Trace


def zero_grad_in_accumulation(trace: Trace, zero: Event) -> bool:
    """Return whether gradients are cleared per micro-batch and stepped with per window."""
    steps = [step for step in trace.of("step", beside=zero) if leaf(step.of) == leaf(zero.of)]
    bare = any(each.loops == zero.loops for each in trace.of("bare"))
    passes = any(not zero.beyond(each) for each in trace.of("backward", near=zero))
    return not bare and passes and trace.per_window(zero, steps)


def average_per_micro_batch(trace: Trace, each: Event) -> bool:
    """Return whether an average of parameters is updated between the steps."""
    certain = all(guard.benign for guard in each.guards)
    return certain and trace.per_window(each, trace.of("step", beside=each))


def clip_per_micro_batch(trace: Trace, clip: Event) -> bool:
    """Return whether an incomplete sum of gradients is clipped, in a branch with a scaler."""
    passes = trace.of("backward", before=clip, beside=clip)
    plain = bool(passes) and passes[-1].on == "plain"
    raises = passes and trace.of("unscale", after=passes[-1], near=clip)
    steps = trace.of("step", "bare", beside=clip)
    return not plain and not raises and trace.per_window(clip, steps)


def partial_accumulation(source: Source) -> Iterator[ast.AST]:
    """Yield the divisions by the full window in loops whose last window may be short."""
    loops = {step.loops[-1] for _, step in source.events("step") if step.loops}
    for loop in sorted(loops, key=lambda each: getattr(each, "lineno", 0)):
        inside = [*ast.walk(loop)]
        tests = (node.test for node in inside if isinstance(node, ast.If))
        ends = [part for test in tests for part in ast.walk(test) if _or_the_end(part)]
        parts = (part for end in (*ends, *_steps_behind(source, loop)) for part in ast.walk(end))
        windows = {
            ast.unparse(part.right)
            for part in parts
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
        }
        yield from [node for node in inside if _divided_by(node) in windows][:1]


def _steps_behind(source: Source, loop: ast.AST) -> list[ast.expr]:
    """Return the conditions of steps that follow a loop in its block."""
    fields = (getattr(node, name, None) for node in source.nodes for name in ("body", "orelse"))
    block = next((body for body in fields if isinstance(body, list) and loop in body), [loop])
    later = (node for node in block[block.index(loop) + 1 :] if isinstance(node, ast.If))
    return [node.test for node in later if ".step(" in ast.unparse(node)]


def _or_the_end(test: ast.AST) -> bool:
    """Return whether a condition is ``i % window == 0 or i == len(...)``, or the like."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else []
    words = [{*words_in(part)} - {"self"} for part in parts if isinstance(part, ast.Compare)]
    rests = (each for each in ast.walk(test) if isinstance(each, ast.BinOp))
    counts = (each.left for each in rests if isinstance(each.op, ast.Mod))
    index = {word for count in counts for word in words_in(count)} - {"self"}
    ends = (each for each in words if each & {*index, "len"} and "%" not in each)
    return any(each - index for each in ends)


def _divided_by(node: ast.AST) -> str:
    """Return what a loss is divided by, or ""."""
    match node:
        case (
            ast.BinOp(op=ast.Div(), left=loss, right=by)
            | ast.AugAssign(op=ast.Div(), target=loss, value=by)
        ):
            losses = isinstance(loss, ast.Call) or re.search("loss|cost", ast.unparse(loss), re.I)
            return ast.unparse(by) if losses else ""
    return ""
