"""Rules about what a loop lacks or repeats: a scaler's calls, the scaler, full windows."""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.events import Event, Trace
from ampsim.lint.names import OPTIMIZER, SCALER, called, leaf, name_of, words_in
from ampsim.lint.source import Function, Source

_LOOPS = ast.For | ast.AsyncFor | ast.While


def missing_call(
    source: Source, trace: Trace, event: Event, has: Sequence[str], lacks: str
) -> bool:
    """Return whether a file makes a scaler and never calls one of its methods."""
    name = leaf(event.on)
    made = source.made.get(name)
    if made is None or called(made) not in ("GradScaler", "ShardedGradScaler"):
        return False
    if lacks != "update" and ("." in event.on or name in source.given):
        return False  # another file may use an attribute of an object, or an argument
    instead = ["bare"] if lacks == "step" else []  # an optimizer may step by itself
    attributes = [node for node in source.nodes if isinstance(node, ast.Attribute)]
    owners = {name_of(node.value) for node in attributes if node.attr == lacks}
    if trace.of(lacks, *instead) or SCALER in map(source.kind, owners):
        return False
    there = {each.kind for each in trace if each.on in (event.on, "plain")}
    return there.issuperset(has)


def scaler_recreated_in_loop(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the scalers that are made again while an optimizer of outside trains."""
    stepped = {loop for trace in traces for step in trace.of("step") for loop in step.loops}
    entered = [pair for trace in traces for pair in trace.entered]
    for made in source.calls:
        if "GradScaler" not in called(made):
            continue
        around = [*source.around(made)]
        repeats = [node for node in around if node in stepped]
        function = next((node for node in around if isinstance(node, Function)), None)
        if function and not repeats and _trains_a_given_optimizer(source, function, stepped):
            calls = [call for call, other in entered if other is function]
            repeats = [loop for call in calls for loop in source.around(call) if loop in stepped]
            # A function that is named for an epoch is called once per epoch, by another file.
            if re.search("epoch(?!s)", function.name):
                repeats.append(function)
        if not all(_makes_an_optimizer(source, each) for each in repeats):
            yield made


def _trains_a_given_optimizer(source: Source, function: Function, stepped: set[ast.AST]) -> bool:
    names = [arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)]
    given = any("optim" in name or name == "self" for name in names)
    trains = not stepped.isdisjoint(function.body)
    return given and trains and not _makes_an_optimizer(source, function)


def _makes_an_optimizer(source: Source, scope: ast.AST) -> bool:
    names = (node for node in ast.walk(scope) if isinstance(node, ast.Name | ast.Attribute))
    stored = (name_of(node) for node in names if isinstance(node.ctx, ast.Store))
    return OPTIMIZER in map(source.kind, stored)


def partial_accumulation(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield the divisions by the full window in loops whose last window may be short."""
    steps = [step for trace in traces for step in trace.of("step") if step.loops]
    for loop in dict.fromkeys(step.loops[-1] for step in steps):
        inside = [*ast.walk(loop)]
        ends = _steps_behind(source, loop)
        for node in inside:
            if isinstance(node, ast.If):
                ends += [part for part in ast.walk(node.test) if _is_or_the_end(part)]
        windows = {ast.unparse(rest.right) for end in ends for rest in _remainders(end)}
        yield from [node for node in inside if _divided_by(node) in windows][:1]


def _remainders(test: ast.AST) -> list[ast.BinOp]:
    """Return the remainders in an expression, as of an index by the size of a window."""
    parts = (part for part in ast.walk(test) if isinstance(part, ast.BinOp))
    return [part for part in parts if isinstance(part.op, ast.Mod)]


def _steps_behind(source: Source, loop: ast.AST) -> list[ast.AST]:
    """Return the conditions of steps that follow a loop in its block."""
    parts: list[ast.AST] = [*ast.iter_child_nodes(next(source.around(loop)))]
    later = [part for part in parts[parts.index(loop) + 1 :] if isinstance(part, ast.If)]
    return [part.test for part in later if ".step(" in ast.unparse(part)]


def _is_or_the_end(test: ast.AST) -> bool:
    """Return whether a condition is ``i % window == 0 or i == len(...)``, or the like."""
    if not (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)):
        return False
    index = {word for rest in _remainders(test) for word in words_in(rest.left)} - {"self"}
    for part in test.values:
        words = {*words_in(part)}
        compares = isinstance(part, ast.Compare) and "%" not in words
        if compares and words & {*index, "len"} and words - index - {"self"}:
            return True
    return False


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
