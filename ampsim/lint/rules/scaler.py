"""The scaler itself: where it is made, updated and saved."""

import ast
import re
from collections.abc import Iterator

from ampsim.lint.names import OPTIMIZER, SCALER, called, kind_by_class, leaf, name_of
from ampsim.lint.rule import Found, finds
from ampsim.lint.source import Source


@finds("AMP108")
def update_missing(source: Source) -> Found:
    """Yield the steps of scalers that the file makes, scales with and never updates."""
    updates = [call.func.value for call in source.calls_of("update") if isinstance(call.func, ast.Attribute)]
    for trace, step in source.events("step"):
        torchs = leaf(source.made.get(leaf(step.on), "")) in ("GradScaler", "ShardedGradScaler")
        scales = any(each.on == step.on for each in trace.of("scale"))
        updated = any(source.kind(name_of(each)) == SCALER for each in updates) or trace.of("update")
        if torchs and scales and not updated:
            yield step.node, f"no {step.on}.update() follows in this file"


@finds("AMP109")
def update_out_of_place(source: Source) -> Found:
    """Yield the updates after which gradients of the scale before are stepped with, and those without any step."""
    for trace, update in source.events("update"):
        steps = [step for step in trace.of("step") if step.on == update.on]
        later = [s for s in steps if trace.index(s) > trace.index(update) and s.loops == update.loops]
        later, before = [step for step in later if not step.apart(update)], trace.scaled(update)
        same = before and before.loops == update.loops and before.on == f"scaled {update.on}"
        if later and same and not trace.between(update, later[0], "backward", "scale", "unscale"):
            yield update.node, "update() moves the scale of gradients that are still to be stepped with"
        elif trace.per_window(update, steps) and all(each.within(steps[0]) for each in trace.of("unscale")):
            yield update.node, "update() runs in every micro-batch, and the scaler's step once per window"


@finds("AMP126")
def two_updates(source: Source) -> Found:
    """Yield the second updates, in one iteration, of scalers that two optimizers share."""
    for trace, update in source.events("update"):
        for first in trace.between(None, update, "update"):
            same = (first.on, first.loops) == (update.on, update.loops) and not update.beyond(first)
            stepped = {step.of for step in trace.between(None, first, "step") if step.loops == first.loops}
            later = {step.of for step in trace.between(first, update, "step") if step.loops == first.loops}
            again = trace.between(first, update, "backward", "scale")
            if same and stepped and again and later - stepped and not first.apart(update):
                yield update.node, f"{update.on} is updated for the second time in this iteration"


@finds("AMP112")
def scaler_not_saved(source: Source) -> Found:
    """Yield the optimizer's state in a checkpoint of a file that makes a scaler and nowhere saves that."""
    given = any(source.kind(name_of(arg)) == SCALER for call in source.calls for arg in call.args)
    used = given or any(source.events("step"))
    if used and "GradScaler(" in source.text and not mentions_a_scaler(source):
        for node in saved_optimizers(source):
            yield node, "the optimizer is saved and the scaler is not: a run that is resumed differs"
            return


def mentions_a_scaler(source: Source) -> bool:
    """Return whether a scaler is saved, or handed to what may save it."""
    for node in source.nodes:
        match node:
            case ast.Constant(value=str(text)) if "scaler" in text.lower() and len(text) < 40:
                return True
            case ast.Attribute(attr="state_dict" | "load_state_dict", value=value) if (
                "scaler" in name_of(value).lower()
            ):
                return True
            case ast.Dict(values=values) if any("scaler" in leaf(name_of(each)).lower() for each in values):
                return True  # as ignite's Checkpoint is given it
            case ast.Assign(targets=[ast.Subscript(slice=key)]) if "scaler" in ast.unparse(key).lower():
                return True
            case ast.Call(func=func) if re.search("(^|_)save|checkpoint", name_of(func), re.I):
                if any("scaler" in ast.unparse(each).lower() for each in (*node.args, *node.keywords)):
                    return True
    return False


def saved_optimizers(source: Source) -> Iterator[ast.AST]:
    """Yield the states of optimizers in dictionaries, and the optimizers that are given to what saves."""
    for node in source.nodes:
        match node:
            case ast.Dict(values=values):
                parts = values
            case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
                parts = [each.value for each in keywords]
            case ast.Assign(targets=[ast.Subscript()], value=value):
                parts = [value]
            case ast.Call(args=args) if re.match(r"_?save_?(checkpoint|ckpt|state|model)s?$", called(node), re.I):
                yield from (
                    node for each in (*args, *(word.value for word in node.keywords)) if _is_optim(source, each)
                )
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(values=values)) if "save" in name:
                yield from (each for each in values if _is_optim(source, each))
                continue
            case _:
                continue
        for call in (each for part in parts for each in source.calls_of("state_dict", part)):
            if isinstance(call.func, ast.Attribute) and _is_optim(source, call.func.value):
                yield call


def _is_optim(source: Source, node: ast.AST) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and source.kind(name_of(node)) == OPTIMIZER


@finds("AMP113")
def scaler_in_the_loop(source: Source) -> Found:
    """Yield the scalers that are made in the body of a loop that trains with an optimizer of outside."""
    stepped = {loop for _, step in source.events("step") for loop in step.loops}
    bodies = [loop.body for loop in stepped if isinstance(loop, ast.For | ast.While)]
    for function in source.functions:
        given = any("optim" in arg.arg for arg in (*function.args.args, *function.args.kwonlyargs))
        if given and "epoch" in function.name and "epochs" not in function.name and stepped & {*function.body}:
            bodies.append([each for each in function.body if each not in stepped])
    for body in bodies:
        calls = [each for part in body for each in ast.walk(part) if isinstance(each, ast.Call)]
        if not any(kind_by_class(name_of(each.func)) == OPTIMIZER or "optim" in called(each).lower() for each in calls):
            for call in calls:
                if "GradScaler" in called(call):
                    yield call, "a fresh scaler forgets the scale that was found, and with it every backoff"


@finds("AMP116")
def deprecated_names(source: Source) -> Found:
    """Yield the uses and imports of ``torch.cuda.amp``."""
    for node in source.nodes:
        match node:
            case ast.Attribute(attr="GradScaler" | "autocast") if name_of(node.value) == "torch.cuda.amp":
                yield node, f"torch.cuda.amp.{node.attr} is deprecated: torch.amp.{node.attr}"
            case ast.ImportFrom(module=str(module), names=names):
                if module.startswith("torch.cuda.amp") or (module == "torch.cuda" and "amp" in {n.name for n in names}):
                    yield node, "torch.cuda.amp is deprecated: torch.amp"
