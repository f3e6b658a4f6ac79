"""What goes on in a skipped step, or lets a step that should be skipped through."""

import ast
import re
from collections.abc import Sequence

from ampsim.lint.event import Guard
from ampsim.lint.names import called, has, leaf, name_of, words_in
from ampsim.lint.rule import Found, finds
from ampsim.lint.source import Function, Source


@finds("AMP101")
def schedule_on_skip(source: Source) -> Found:
    """Yield the steps of schedules that are taken whether or not that of the scaler was."""
    for trace, each in source.events("schedule"):
        theirs = leaf(each.on) in source.foreign  # which may follow the optimizer's own count
        if not theirs and any(each.regardless(step) for step in trace.skippable()):
            yield each.node, f"{each.on}.step() also runs where the scaler skipped the step"


@finds("AMP102")
def average_on_skip(source: Source) -> Found:
    """Yield the updates of averages that happen whether or not the scaler stepped."""
    for trace, each in source.events("average"):
        if any(each.regardless(step) and not each.within(step) for step in trace.skippable()):
            yield each.node, "the average is also updated where the scaler skipped the step"


@finds("AMP127")
def rate_by_iteration(source: Source) -> Found:
    """Yield what sets the learning rate in every iteration, whether or not the scaler stepped in it."""
    for trace, each in source.events("rate"):
        steps = [step for step in trace.skippable() if step.loops and step.loops == each.loops[: len(step.loops)]]
        if any(not each.apart(step) for step in steps) and all(guard.benign or guard.window for guard in each.guards):
            yield each.node, "the learning rate follows the iterations, and not the steps that were taken"


@finds("AMP110")
def update_skipped(source: Source) -> Found:
    """Yield the updates that a guard leaves out after gradients were unscaled, or by their norm."""
    for trace, update in source.events("update"):
        start = trace.scaled(update)
        if start is None or start.loops != update.loops:
            continue
        unscaled = [each for each in trace.between(start, update, "unscale") if not each.apart(update)]
        for guard in update.beyond(unscaled[-1] if unscaled else start):
            others = [each for each in trace.of("update") if each is not update and guard not in each.guards]
            if _is_verdict(guard) and (unscaled or has(guard.words, "grad")) and not others:
                where = f"{'not ' * guard.holds}{guard.text}"
                yield update.node, f"update() is left out where {where}: the scale does not fall"
                break


def _is_verdict(guard: Guard) -> bool:
    finite = has(guard.words, r"isfinite|isnan|isinf|is_finite|nonfinite|non_finite|is_nan|has_nan|found_inf")
    clipped = has(guard.words, r"clip_grad_norm|get_total_norm") and not guard.benign
    return (finite or clipped) and "%" not in guard.words


@finds("AMP111")
def step_past_scaler(source: Source) -> Found:
    """Yield the steps that optimizers take by themselves with gradients of a scaled loss."""
    for trace, bare in source.events("bare"):
        start = trace.scaled(bare)
        if start is None or start.loops[: len(bare.loops)] != bare.loops or any(each.asks for each in bare.guards):
            continue
        passes = [each for each in trace.between(None, bare, "backward") if not each.apart(bare)]
        plain = any(not each.on.startswith("scaled") for each in passes)
        instead = any(each.apart(bare) for each in trace.of("step", "update"))
        cleared = any(not each.apart(bare) for each in trace.between(start, bare, "zero"))
        known = all(guard.benign or guard.window for guard in bare.beyond(start))
        if known and not plain and not instead and not cleared:
            yield bare.node, f"{bare.of}.step() steps past the scaler: inf and NaN are stepped with"


@finds("AMP117")
def isinf_alone(source: Source) -> Found:
    """Yield the checks of gradients for inf in functions that never look for NaN."""
    module = ast.Module([each for each in source.tree.body if not isinstance(each, Function | ast.ClassDef)], [])
    for scope in (*source.functions, module) if "isinf" in source.text else ():
        checked = {part for each in ast.walk(scope) if isinstance(each, ast.Assert) for part in ast.walk(each)}
        calls = [each for each in ast.walk(scope) if isinstance(each, ast.Call) and each not in checked]
        if not any(re.search(r"nan|finite|inf_or|!=", called(each), re.I) for each in calls):
            for call in calls:
                if called(call) == "isinf" and has({*words_in(call)}, "grad"):
                    yield call, "isinf() is false for NaN, which an overflow also leaves: isfinite() sees both"


@finds("AMP123")
def hidden_overflow(source: Source) -> Found:
    """Yield what replaces inf and NaN in gradients after the backward pass and before the scaler looks."""
    for trace, each in source.events("grad"):
        start = trace.scaled(each)
        calls = {called(call) for call in ast.walk(each.node) if isinstance(call, ast.Call)}
        written = [*getattr(each.node, "targets", ())]
        kept = "copy_" in calls or any(isinstance(to, ast.Attribute) and to.attr in ("grad", "data") for to in written)
        hides = "nan_to_num_" in calls or ("nan_to_num" in calls and kept)
        looked = start and trace.between(start, each, "unscale", "step")
        if start and hides and not looked and trace.between(each, None, "step", "bare"):
            yield each.node, "the scaler sees no overflow: inf and NaN are replaced before it looks"


@finds("AMP124")
def cleared_if_stepped(source: Source) -> Found:
    """Yield what clears gradients only where the step was not skipped."""
    for trace, zero in source.events("zero"):
        steps = [step for step in trace.between(None, zero, "step") if step.loops == zero.loops]
        asked = [g for g in (zero.beyond(steps[-1]) if steps else []) if g.asks or g.text.endswith("update()")]
        if asked and len(trace.of("zero")) == 1 and trace.scaled(zero):
            yield zero.node, "gradients of a skipped step stay, and the inf in them is added to the next ones"


def verdicts(function: Function) -> Sequence[tuple[ast.AST, str]]:
    """Return the second of four values that a gradient function of a dynamic scale returns, and its name."""
    makers, found = set(), []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr=attr, value=value))):
                if attr in ("value_and_grad", "grad") and "scale" in leaf(name_of(value)).lower():
                    makers.add(f"{name}")
            case ast.Assign(targets=[ast.Tuple(elts=[_, ast.Name(id=name) as target, _, _])], value=ast.Call() as call):
                by = name_of(call.func)
                if by in makers or re.search(r"(?i)scale\w*\.(value_and_)?grad\(\)$", by):
                    found.append((target, name))
    return found


@finds("AMP118")
def verdict_dropped(source: Source) -> Found:
    """Yield the verdicts of DynamicScale that are never read in their function."""
    for function in source.functions if re.search("DynamicScale|dynamic_scale", source.text) else ():
        names = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
        moves = re.search(r"apply_(gradients|updates)|\.update\(|optim|params \- ", ast.unparse(function))
        for node, name in verdicts(function) if moves else ():
            if name not in {each.id for each in names if isinstance(each.ctx, ast.Load)}:
                yield node, f"{name} says whether gradients are finite, and nothing asks it"


@finds("AMP119")
def state_not_selected(source: Source) -> Found:
    """Yield the states of which a verdict selects the parameters alone."""
    for function in source.functions if "value_and_grad" in source.text else ():
        if verdicts(function) and "opt_state" not in ast.unparse(function):
            for call in source.calls_of("replace", function):
                if "params" in {keyword.arg for keyword in call.keywords}:
                    yield (
                        call,
                        "the old parameters are kept in a skipped step, and the optimizer's state is the new one",
                    )
