"""Rules about checkpoints: what is saved with an optimizer, and what is loaded on resume."""

import ast
import re
from collections.abc import Iterator

from ampsim.lint.events import Traces
from ampsim.lint.names import (
    OPTIMIZER,
    SCALER,
    arguments_of,
    called,
    kind_by_class,
    name_of,
)
from ampsim.lint.rules.loop import scaler_recreated_in_loop
from ampsim.lint.source import COMMENT, Source

# A function that is named for a checkpoint, and not for reading one.
_SAVES = re.compile(
    r"^(?!.*(load|resum|restor|from|init))"
    r".*(ckpt|checkpoint|saving|save_?(\w+_)?(state|model|all|local))",
    re.I,
)
# A text in which a scaler may be saved: within apex or accelerate, under a key, as a value of a
# dictionary, or by a function.
_SAVES_A_SCALER = re.compile(
    r"scaler[\w\])]*\.state_dict|"
    r"\b(amp|accelerator|fabric)\.(save_state|state_dict)|"
    r"(?<!\w\[)['\"][\w.]*scaler(s|_?states?|_?state_?dict)?['\"]|"
    r"['\"][\w.]*scaler(s|_?states?|_?state_?dict)?['\"]\]\s*=[^=]|"
    r":\s*[\w.]*(?<!grad)scaler\w*\s*[,}]|"
    r"(_save|\bsave|checkpoint)\w*\((?:[^()]|\([^()]*\))*scaler",
    re.I,
)
_LOADS_A_SCALER = re.compile(
    r"scaler[\w\])]*\.load_state_dict|"
    r"(\[|get\(|pop\()['\"][\w.]*scaler\w*['\"][])](?!\s*=[^=])|"
    r"(load|resume)\w*\((?:[^()]|\([^()]*\))*scaler",
    re.I,
)


def scaler_not_saved(source: Source, traces: Traces) -> Iterator[ast.AST]:
    """Yield an optimizer's state per block that saves some, where no scaler is saved.

    A scaler that is recreated for each epoch has nothing to save.
    """
    made = (kind_by_class(name_of(call.func)) for call in source.calls)
    used = SCALER in made or any(trace.of("step", "unscale") for trace in traces)
    apex = any(trace.of("apex") for trace in traces)
    saved = _SAVES_A_SCALER.search(COMMENT.sub("", source.text))
    kept = source.kinds_of("state_dict")
    if not (used or apex) or saved or SCALER in kept:
        return
    if any(scaler_recreated_in_loop(source, traces)):
        return
    told = set[object]()
    for node in saved_optimizers(source):
        # A checkpoint is one place, though it has several optimizers or files.
        around = source.around(node)
        statement = next(each for each in around if isinstance(each, ast.stmt))
        block = next(around)
        place = block, statement in getattr(block, "orelse", ())
        # Code that saves without a state_dict() may ask apex itself.
        if place not in told and (used or "state_dict" in source.words(node)):
            yield node
        told.add(place)


def scaler_not_loaded(source: Source, traces: Traces) -> Iterator[ast.AST]:
    """Yield the first optimizer's state that is loaded where a scaler's is saved and not loaded."""
    loaded = SCALER in source.kinds_of("load_state_dict")
    text = COMMENT.sub("", source.text)
    if loaded or SCALER not in source.kinds_of("state_dict"):
        return
    for owner in source.owners_of("load_state_dict"):
        if _is_optimizer(source, owner) and not _LOADS_A_SCALER.search(text):
            yield owner
            return


def saved_optimizers(source: Source) -> Iterator[ast.Call]:
    """Yield the states of optimizers that are kept, and the saves that take an optimizer."""
    for call in source.calls:
        name = called(call)
        given = arguments_of(call)
        if name == "state_dict" and isinstance(call.func, ast.Attribute):
            of_optimizers = _is_of_optimizers(source, call, call.func.value)
            kept = of_optimizers and _is_kept(source, call)
        else:
            saves = bool(_SAVES.search(name_of(call.func))) and not source.defines(name)
            kept = saves and any(_is_optimizer(source, each) for each in given)
        if kept:
            yield call


def _is_kept(source: Source, state: ast.Call) -> bool:
    """Return whether a state is not only shown, looked into, returned as it is, or copied."""
    inner, outer, *_ = source.around(state)
    match inner:
        case ast.For() | ast.Attribute() | ast.Subscript() | ast.Return():
            return False
        case ast.Assign(targets=[target]):
            return not isinstance(target, ast.Name)
        case ast.Call():
            name = called(inner)
            if name in ("print", "load_state_dict", "store"):
                return False
            if re.search("checkpoint", name, re.I) or not isinstance(outer, ast.Assign):
                return True
            return not isinstance(outer.targets[0], ast.Name)
    return True


def _is_of_optimizers(source: Source, call: ast.Call, owner: ast.expr) -> bool:
    """Return whether an object is an optimizer, an item of some, or stands for one of some."""
    inside = getattr(next(source.around(call)), "generators", ())
    iterated = [word for each in inside for word in source.words(each.iter)]
    owners = owner.value if isinstance(owner, ast.Subscript) else owner
    return _is_optimizer(source, owners) or OPTIMIZER in map(source.kind, iterated)


def _is_optimizer(source: Source, node: ast.AST) -> bool:
    if isinstance(node, ast.Name | ast.Attribute):
        return source.kind(name_of(node)) == OPTIMIZER
    return False
