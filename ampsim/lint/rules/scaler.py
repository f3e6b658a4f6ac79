"""The scaler itself: where it is made and updated, and which of its methods are never called."""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.event import Event
from ampsim.lint.names import OPTIMIZER, SCALER, called, leaf, name_of
from ampsim.lint.source import Function, Source, Trace


def missing_call(trace: Trace, event: Event, has: Sequence[str], lacks: str) -> bool:
    """Return whether a file makes a scaler and never calls one of its methods."""
    source, name = trace.source, leaf(event.on)
    made = source.made.get(name)
    if made is None or called(made) not in ("GradScaler", "ShardedGradScaler"):
        return False
    attributes = (node for node in source.nodes if isinstance(node, ast.Attribute))
    owners = (name_of(node.value) for node in attributes if node.attr == lacks)
    instead = ("step", "bare") if lacks == "step" else (lacks,)  # an optimizer may step by itself
    if trace.of(*instead) or SCALER in map(source.kind, owners):
        return False
    if lacks != "update" and _is_shared(source, event.on):
        return False
    by = (event.on, "plain", "pipeline")
    return all(any(each.on in by for each in trace.of(kind)) for kind in has)


def _is_shared(source: Source, scaler: str) -> bool:
    """Return whether another file may use a scaler: it is an attribute, or an argument."""
    parts = (part for call in source.calls for part in (*call.args, *call.keywords))
    given = {leaf(name_of(getattr(part, "value", part))) for part in parts}
    return "." in scaler or scaler in given


def update_before_step(trace: Trace, update: Event) -> bool:
    """Return whether an update stands between gradients and their step, or is per micro-batch."""
    steps = [step for step in trace.of("step") if step.on == update.on]
    later = [step for step in trace.of("step", after=update, near=update) if step.on == update.on]
    start = trace.scaled(update)
    if start and later and (start.loops, start.on) == (update.loops, f"scaled {update.on}"):
        renewed = trace.of("backward", "scale", "unscale", after=update, before=later[0])
        if not renewed:
            return True
    late = all(each.within(steps[0]) for each in trace.of("unscale")) if steps else False
    return late and trace.per_window(update, steps)


def update_twice(trace: Trace, update: Event) -> bool:
    """Return whether a shared scaler is updated for the second time in an iteration."""
    for first in trace.of("update", before=update, near=update):
        before = {each.of for each in trace.of("step", before=first, near=first)}
        later = {each.of for each in trace.of("step", after=first, before=update, near=first)}
        again = trace.of("backward", "scale", after=first, before=update)
        same = first.on == update.on and not update.beyond(first)
        if same and again and before and later - before:
            return True
    return False


def scaler_recreated_in_loop(source: Source) -> Iterator[ast.AST]:
    """Yield the scalers that are made again while an optimizer of outside trains."""
    stepped = {loop for _, step in source.events("step") for loop in step.loops}
    loops = [{*ast.walk(loop)} for loop in stepped]
    for nodes in (*loops, *_repeated(source, stepped, loops)):
        names = (each for each in nodes if isinstance(each, ast.Name | ast.Attribute))
        stored = (name_of(each) for each in names if isinstance(each.ctx, ast.Store))
        if OPTIMIZER not in map(source.kind, stored):
            calls = (each for each in nodes if isinstance(each, ast.Call))
            yield from (call for call in calls if "GradScaler" in called(call))


def _repeated(
    source: Source, stepped: set[ast.AST], loops: Sequence[set[ast.AST]]
) -> Iterator[set[ast.AST]]:
    """Yield the nodes of functions that train with a given optimizer and are called in a loop."""
    entered = [pair for trace in source.traces for pair in trace.entered.items()]
    for function in source.functions:
        if not (_is_given_an_optimizer(function) and stepped & {*function.body}):
            continue
        rest = (node for node in function.body if node not in stepped)
        own = {part for node in rest for part in ast.walk(node)}
        calls = {call for call, (called_function, _) in entered if called_function is function}
        yield from (own | nodes for nodes in loops if calls & nodes)
        # A function that is named for an epoch is called once per epoch, by another file.
        if re.search("epoch(?!s)", function.name):
            yield own


def _is_given_an_optimizer(function: Function) -> bool:
    names = [arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)]
    return any("optim" in name or name == "self" for name in names)
