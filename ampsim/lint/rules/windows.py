"""Accumulation windows: what happens with every micro-batch, and once per step."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from ampsim.lint.names import leaf
from ampsim.lint.rule import Found, finds
from ampsim.lint.source import Source


@finds("AMP120")
def cleared_in_the_window(source: Source) -> Found:
    """Yield what clears gradients with every micro-batch, where the scaler steps once per window."""
    for trace, zero in source.events("zero"):
        passes = [each for each in trace.of("backward", with_=zero) if each.loops == zero.loops]
        steps = [step for step in trace.of("step", with_=zero) if leaf(step.of) == leaf(zero.of)]
        bare = any(each.loops == zero.loops for each in trace.of("bare"))
        if not bare and any(not zero.beyond(each) for each in passes) and trace.per_window(zero, steps):
            yield zero.node, "gradients are cleared in every micro-batch, and only those of the last are stepped with"


@finds("AMP122")
def average_per_micro_batch(source: Source) -> Found:
    """Yield the averages of parameters that are updated between the steps."""
    for trace, each in source.events("average"):
        if trace.per_window(each, trace.of("step", with_=each)) and all(guard.benign for guard in each.guards):
            yield each.node, "the average is updated in every micro-batch, and the parameters once per window"


@finds("AMP125")
def clip_per_micro_batch(source: Source) -> Found:
    """Yield the clippings of sums of gradients that are not complete."""
    for trace, clip in source.events("clip"):
        if trace.per_window(clip, trace.of("step", "bare", with_=clip)):
            yield clip.node, "gradients are clipped with every micro-batch, and stepped with once per window"


@finds("AMP115")
def short_window(source: Source) -> Found:
    """Yield the divisions by the full window in loops whose last window may be short."""
    loops = {step.loops[-1] for _, step in source.events("step") if step.loops}
    blocks = [getattr(node, name, None) for node in source.nodes for name in ("body", "orelse")]
    for loop in sorted(loops, key=lambda each: getattr(each, "lineno", 0)):
        tests = [each.test for each in ast.walk(loop) if isinstance(each, ast.If)]
        ends = [window for test in (*map(_or_the_end, tests), *_left_over(blocks, loop)) for window in _windows(test)]
        for window in ends:
            for node in ast.walk(loop):
                if _divides(node, window):
                    yield node, f"the last window may hold fewer than {window} batches, and is divided by {window}"
                    return


def _windows(test: ast.AST | None) -> Iterator[str]:
    """Yield the windows of a condition: ``w`` of ``i % w == 0``."""
    for each in ast.walk(test) if test else ():
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod):
            yield ast.unparse(each.right)


def _or_the_end(test: ast.AST) -> ast.AST | None:
    """Return the part of a condition that ends a window with the last batch: ``i % window == 0 or i == len(...)``."""
    for node in ast.walk(test):
        parts = map(ast.unparse, node.values) if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) else ()
        if any("len(" in text and "%" not in text for text in parts):
            return node
    return None


def _left_over(blocks: list[Any], loop: ast.AST) -> Iterator[ast.AST]:
    """Yield the conditions after a loop, in its block, under which what is left over is stepped with."""
    for block in blocks:
        if isinstance(block, list) and loop in block:
            after = block[block.index(loop) + 1 :]
            yield from (each.test for each in after if isinstance(each, ast.If) and ".step(" in ast.unparse(each))


def _divides(node: ast.AST, window: str) -> bool:
    """Return whether a loss is divided by a window."""
    match node:
        case ast.BinOp(op=ast.Div(), left=left, right=right) if ast.unparse(right) == window:
            return isinstance(left, ast.Call) or bool(re.search("loss|cost", ast.unparse(left), re.I))
        case ast.AugAssign(op=ast.Div(), target=target, value=value) if ast.unparse(value) == window:
            return bool(re.search("loss|cost", ast.unparse(target), re.I))
    return False
