"""AMP115: a short last window that is divided by the full one."""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.event import Trace
from ampsim.lint.rule import SPLIT, Found, Rule
from ampsim.lint.source import Source

WRONG = """\
scaler = torch.amp.GradScaler()
for index, batch in enumerate(loader):
    scaler.scale(model(batch) / window).backward()
    if (index + 1) % window == 0 or index + 1 == len(loader):
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""
RIGHT = """\
scaler = torch.amp.GradScaler()
for index, batch in enumerate(loader):
    first = index - index % window
    scaler.scale(model(batch) / min(window, len(loader) - first)).backward()
    if (index + 1) % window == 0 or index + 1 == len(loader):
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def windows(test: ast.AST) -> Iterator[str]:
    """Yield the window of a condition that also ends it with the last batch: ``i % window == 0 or i == len(...)``."""
    for node in ast.walk(test):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            ends = [each for each in node.values if "len(" in ast.unparse(each) and "%" not in ast.unparse(each)]
            for part in ast.walk(node) if ends else ():
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                    yield ast.unparse(part.right)


def divisions(loop: ast.AST, window: str) -> Iterator[ast.AST]:
    """Yield what is divided by the window in a loop, of what is called a loss."""
    for node in ast.walk(loop):
        match node:
            case ast.BinOp(op=ast.Div(), left=left, right=right) if ast.unparse(right) == window:
                if re.search(r"loss|cost", ast.unparse(left), re.I) or isinstance(left, ast.Call):
                    yield node
            case ast.AugAssign(op=ast.Div(), target=target, value=value) if ast.unparse(value) == window:
                if re.search(r"loss|cost", ast.unparse(target), re.I):
                    yield node


def left_over(source: Source, loop: ast.AST) -> Iterator[str]:
    """Yield the windows of conditions after a loop under which what is left over is stepped with."""
    for node in source.nodes:
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list) and loop in block:
                for each in block[block.index(loop) + 1 :]:
                    if isinstance(each, ast.If) and ".step(" in ast.unparse(each):
                        for part in ast.walk(each.test):
                            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                                yield ast.unparse(part.right)


def find(source: Source, traces: Sequence[Trace]) -> Found:
    """Yield the divisions by the full window in loops whose last window may be short."""
    loops = {step.loops[-1] for trace in traces for step in trace.steps() if step.loops}
    for loop in sorted(loops, key=lambda each: getattr(each, "lineno", 0)):
        tests = [each.test for each in ast.walk(loop) if isinstance(each, ast.If)]
        ends = [*(window for test in tests for window in windows(test)), *left_over(source, loop)]
        for node, window in ((node, each) for each in ends for node in divisions(loop, each)):
            yield node, f"the last window may hold fewer than {window} batches, and is divided by {window}"
            return


RULE = Rule(
    code="AMP115",
    name="short-window",
    sentence="A step is taken after the last batch even if the accumulation window is not full, and its losses are "
    "divided by the full window, so that its gradients are too small. Divide by the number of batches in the "
    "window, or "
    "drop the last ones.",
    law=SPLIT,
    thread="https://github.com/Adit-Jain-srm/NightmareNet/issues/562",
    wrong=WRONG,
    right=RIGHT,
    find=find,
)
