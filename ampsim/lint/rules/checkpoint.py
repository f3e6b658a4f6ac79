"""Rules about checkpoints: what is saved with an optimizer, and what is loaded on resume."""

import ast
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.events import Trace
from ampsim.lint.names import OPTIMIZER, SCALER, called, name_of
from ampsim.lint.rules.loop import scaler_recreated_in_loop
from ampsim.lint.source import Source

_SAVES = re.compile(
    r"(^|\.)(\w*_)?save_?(checkpoint|ckpt|state|model)s?$|(^|\.)epoch_saving$|(^|\.)Checkpointer$|"
    r"checkpointer\.save$",
    re.I,
)
# A text in which a scaler may be saved: by its state, within apex or accelerate, under a key, as a
# value of a dictionary, or by a function.
_SAVES_A_SCALER = re.compile(
    r"scaler[\w\])]*\.(load_)?state_dict|"
    r"\b(amp|accelerator|fabric)\.(save_state|state_dict)|"
    r"['\"][\w.]*scaler(s|_?states?|_?state_?dict)?['\"]|"
    r":\s*[\w.]*(?<!grad)scaler\w*\s*[,}]|"
    r"(_save|\bsave|checkpoint)\w*\((?:[^()]|\([^()]*\))*scaler",
    re.I,
)


def scaler_not_saved(source: Source, traces: Sequence[Trace]) -> Iterator[ast.AST]:
    """Yield an optimizer's state per block that saves some, where no scaler is saved.

    A scaler that is recreated for each epoch has nothing to save.
    """
    given = any(source.kind(name_of(arg)) == SCALER for call in source.calls for arg in call.args)
    used = given and "GradScaler(" in source.text
    used = used or any(trace.of("step", "unscale") for trace in traces)
    apex = any(trace.of("apex") for trace in traces)
    code = re.sub("#.*", "", source.text)
    if not (used or apex) or _SAVES_A_SCALER.search(code) or _asks_scaler_for_state(source):
        return
    if any(scaler_recreated_in_loop(source, traces)):
        return
    told = set[object]()
    for node in saved_optimizers(source):
        # Each call that saves is told, and of several assignments in a block the first one.
        statement = next(each for each in source.around(node) if isinstance(each, ast.stmt))
        block = next(source.around(statement))
        last = statement in getattr(block, "orelse", ())
        place = statement if isinstance(statement, ast.Expr) else (block, last)
        # Code that saves without a state_dict() may ask apex itself.
        if place not in told and (used or "state_dict" in source.words(node)):
            yield node
        told.add(place)


def _asks_scaler_for_state(source: Source) -> bool:
    """Return whether a scaler of any name gives or takes its state."""
    owners = [
        call.func.value
        for call in source.calls
        if isinstance(call.func, ast.Attribute) and called(call).endswith("state_dict")
    ]
    return any(source.kind(name_of(owner)) == SCALER for owner in owners)


def saved_optimizers(source: Source) -> Iterator[ast.AST]:
    """Yield the states of optimizers that are kept, and optimizers that a save takes."""
    aside = _read_and_not_kept(source)
    for call in source.calls:
        parts = [*call.args, *(word.value for word in call.keywords)]
        known = called(call) in source.classes or source.defines(called(call))
        if _SAVES.search(name_of(call.func)) and not known:
            yield from [call] * any(_is_optimizer(source, part) for part in parts)
        elif isinstance(call.func, ast.Attribute) and called(call) == "state_dict":
            owner = call.func.value
            some = _is_optimizer(source, owner) or _is_one_of_some(source, owner)
            yield from [call] * (some and call not in aside)
    for name, values in source.assigned.items():
        tables = [each for each in values if isinstance(each, ast.Dict) and "save" in name]
        yield from (part for each in tables for part in each.values if _is_optimizer(source, part))


def _read_and_not_kept(source: Source) -> set[ast.AST]:
    """Return what is shown, looked into, returned as it is, or given to another object."""
    aside = set[ast.AST]()
    for node in source.nodes:
        match node:
            case ast.Assign(targets=[ast.Name()], value=ast.Call(args=args) as value):
                aside |= {value} if re.search("checkpoint", called(value), re.I) else {value, *args}
            case ast.For(iter=value) | ast.Attribute(value=value) | ast.Subscript(value=value):
                aside.add(value)
            case ast.Return(value=ast.Call() as value):
                aside.add(value)
            case ast.Call(args=args) if called(node) in ("print", "load_state_dict", "store"):
                aside |= {*args}
    return aside


def _is_one_of_some(source: Source, owner: ast.expr) -> bool:
    """Return whether an object is an item of optimizers, or stands for one in a comprehension."""
    if isinstance(owner, ast.Subscript):
        return _is_optimizer(source, owner.value)
    for node in source.around(owner):
        match node:
            case ast.ListComp(generators=[each]) | ast.DictComp(generators=[each]):
                names = {part.id for part in ast.walk(each.target) if isinstance(part, ast.Name)}
                iterated = [part for part in ast.walk(each.iter) if _is_optimizer(source, part)]
                return name_of(owner) in names and bool(iterated)
    return False


def _is_optimizer(source: Source, node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and source.kind(name_of(node)) == OPTIMIZER
