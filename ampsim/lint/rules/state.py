"""Rules about the state of a scaler: what forgets it, between epochs or in a checkpoint."""

import ast
import re
from collections.abc import Iterator

from ampsim.lint.events import Traces
from ampsim.lint.names import (
    OPTIMIZER,
    SCALER,
    arguments_of,
    called,
    has,
    kind_by_class,
    name_of,
    parts_of,
)
from ampsim.lint.source import COMMENT, Function, Source

# A function that is named for a checkpoint, and not for reading one.
_SAVES = re.compile(
    r"(?i)^(?!.*(load|resum|restor|from|init))"
    r".*(ckpt|checkpoint|saving|save_?(\w+_)?(state|model|all|local))",
)
# A text in which a scaler may be saved: within apex or accelerate, under a key, as a value of a
# dictionary, or by a function.
_SAVES_A_SCALER = re.compile(
    r"(?i)scaler[\w\])]*\.state_dict|"
    r"\b(amp|accelerator|fabric)\.(save_state|state_dict)|"
    r"(?<!\w\[)['\"][\w.]*scaler(s|_?states?|_?state_?dict)?['\"]|"
    r"['\"][\w.]*scaler(s|_?states?|_?state_?dict)?['\"]\]\s*=[^=]|"
    r":\s*[\w.]*(?<!grad)scaler\w*\s*[,}]|"
    r"(_save|\bsave|checkpoint)\w*\((?:[^()]|\([^()]*\))*scaler",
)
_LOADS_A_SCALER = re.compile(
    r"(?i)scaler[\w\])]*\.load_state_dict|"
    r"(\[|get\(|pop\()['\"][\w.]*scaler\w*['\"][])](?!\s*=[^=])|"
    r"(load|resume)\w*\((?:[^()]|\([^()]*\))*scaler",
)


def scaler_recreated_in_loop(source: Source, traces: Traces) -> Iterator[ast.AST]:
    """Yield the scalers that are made again while an optimizer of outside trains."""
    steps = [step for trace in traces for step in trace.of("step")]
    stepped = {loop for step in steps for loop in step.loops}
    for made in source.calls:
        if "GradScaler" in called(made):
            repeats = _repeats_of(source, traces, made, stepped)
            # With a new optimizer in the same loop, a new training begins.
            if not all(_makes_an_optimizer(source, each) for each in repeats):
                yield made


def _repeats_of(
    source: Source, traces: Traces, made: ast.Call, stepped: set[ast.AST]
) -> list[ast.AST]:
    """Return the loops with steps that make a scaler again, or a function that is called in one."""
    repeats = [node for node in source.around(made) if node in stepped]
    function: Function | None = next(source.around(made, Function), None)
    if repeats or function is None:
        return repeats
    if not _trains_a_given_optimizer(source, function, stepped):
        return []
    for trace in traces:
        for call, entered in trace.entered:
            if entered is function:
                repeats += stepped.intersection(source.around(call))
    # A function that is named for an epoch is called once per epoch, by another file.
    if re.search("epoch(?!s)", function.name):
        repeats.append(function)
    return repeats


def _trains_a_given_optimizer(
    source: Source, function: Function, stepped: set[ast.AST]
) -> bool:
    if stepped.isdisjoint(ast.walk(function)) or _makes_an_optimizer(source, function):
        return False
    arguments = function.args.args + function.args.kwonlyargs
    names = [argument.arg for argument in arguments]
    return "self" in names or any("optim" in name for name in names)


def _makes_an_optimizer(source: Source, scope: ast.AST) -> bool:
    for node in parts_of(scope, ast.Name | ast.Attribute):
        is_stored = isinstance(node.ctx, ast.Store)
        if is_stored and source.kind(name_of(node)) == OPTIMIZER:
            return True
    return False


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
            if has([name], "checkpoint") or not isinstance(outer, ast.Assign):
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
