"""Gradients and losses that are still multiplied by the loss scale, or are divided by it twice."""

import ast
import re

from ampsim.lint.event import PARTLY, Event
from ampsim.lint.names import called, has, words_in
from ampsim.lint.source import Trace

_MEASURES = re.compile(r"^(norm|vector_norm|get_total_norm|clamp_?|clip_|square|histogram|histc)$")
_HAS_SCALE = r"get_scale|scaler|inv_scale"


def clip_before_unscale(trace: Trace, clip: Event) -> bool:
    """Return whether gradients are clipped between a scaled backward pass and their unscaling."""
    if _is_within_scale_loss(trace, clip):
        return True
    start = trace.scaled(clip)
    if not trace.of("step", after=clip, near=clip) or has(clip.words, _HAS_SCALE):
        return False
    if start is None:
        by_other_names = "unscale" in trace.source.text or trace.of("backward")
        return not by_other_names and not trace.of("step", before=clip)
    between = {"after": start, "before": clip, "beside": clip}
    unscaled = trace.of("unscale", **between)
    divided = any(has(each.words, "scal") for each in trace.of("grad", **between))
    stepped = trace.of("step", "bare", **between)
    return not divided and not stepped and all(_of_another(trace, each, clip) for each in unscaled)


def _is_within_scale_loss(trace: Trace, clip: Event) -> bool:
    """Return whether gradients are clipped in the block at whose end apex unscales them."""
    for apex in trace.of("apex", before=clip):
        blocks = (node for node in trace.source.nodes if isinstance(node, ast.With))
        own = [node for node in blocks if apex.node in [item.context_expr for item in node.items]]
        inside = any(clip.node in ast.walk(node) for node in own)
        if inside and trace.of("backward", after=apex, before=clip):
            return True
    return False


def _of_another(trace: Trace, unscale: Event, clip: Event) -> bool:
    """Return whether the unscaled optimizer does not step with what is clipped."""
    first = next(iter(trace.of("update", "backward", after=clip, near=clip)), None)
    stepped = {step.of for step in trace.of("step", after=unscale, before=first, near=clip)}
    own = {step.of for _, step in trace.source.events("step")}
    named = all(re.fullmatch(r"[\w.]+", each) for each in own)
    return unscale.of in own - stepped and bool(stepped) and named


def unscale_after_step(trace: Trace, late: Event) -> bool:
    """Return whether gradients are unscaled or clipped after the step and before the update."""
    for step in trace.of("step", before=late, near=late):
        clips = late.kind == "clip" and not trace.of("step", "bare", after=late)
        unscales = late.kind == "unscale" and (step.of, step.on) == (late.of, late.on)
        restarted = trace.of("update", "backward", "scale", after=step, before=late)
        if (clips or unscales) and not restarted:
            return True
    return False


def unscale_twice(trace: Trace, each: Event) -> bool:
    """Return whether gradients are unscaled for the second time before their step."""
    if each.kind == "grad":
        step = next(iter(trace.of("step", after=each, beside=each)), None)
        own = step and trace.scaled(each) and _divides_by_the_scale(each)
        return bool(own and not trace.of("update", "scale", "backward", after=each, before=step))
    for first in trace.of("unscale", before=each, near=each):
        same = (first.of, first.on) == (each.of, each.on) and first.node is not each.node
        certain = all(guard.benign for guard in each.beyond(first))
        named = re.fullmatch(r"\w+|self\.\S+", each.of)
        if same and certain and named and not trace.of("update", "step", after=first, before=each):
            return True
    return False


def _divides_by_the_scale(event: Event) -> bool:
    text = ast.unparse(event.node)
    written = re.search(r"\.grad(\.data)?( [/*]=|\.(div|mul)_\()", text)
    return bool(event.words & {"get_scale", "_scale"} and written)


def unscale_per_micro_batch(trace: Trace, each: Event) -> bool:
    """Return whether gradients are unscaled in each micro-batch, which raises in the second one."""
    if trace.source.accumulates and not any(guard.window for guard in each.guards):
        return bool(trace.scaled(each))
    steps = trace.of("step", beside=each)
    own = [step for step in steps if (step.of, step.on) == (each.of, each.on)]
    return trace.per_window(each, own)


def scaled_gradients_read(trace: Trace, each: Event) -> bool:
    """Return whether gradients are measured, cut, or penalized before they are unscaled."""
    if each.kind == "penalty":
        return not has(each.words, "get_scale|inv_scale|_scale$")
    start, later = trace.scaled(each), trace.of("step", "unscale", after=each)
    asked = any(guard.asks and not has(guard.words, "loss") for guard in each.guards)
    if not start or not later or later[0].apart(each) or asked or has(each.words, "scale"):
        return False
    calls = (call for call in ast.walk(each.node) if isinstance(call, ast.Call))
    measured = (call for call in calls if _MEASURES.match(called(call)))
    if not any(".grad" in words_in(call) for call in measured):
        return False
    changes = trace.of("grad", after=each, before=later[0])
    done = trace.of("unscale", "step", "bare", after=start, before=each, beside=each)
    return not done and not any(_allows_for_it(each, change) for change in changes)


def _allows_for_it(measured: Event, event: Event) -> bool:
    """Return whether gradients are changed by the scale, or divided by what was measured."""
    targets = getattr(measured.node, "targets", ())
    names = "|".join(re.escape(ast.unparse(each)) for each in targets) or "$^"
    divided = re.search(rf"\.grad(\.\w+\(\))? / [^,]*\b({names})\b", ast.unparse(event.node))
    return bool(divided) or has(event.words, "^(get_scale|inv_scale)$")


def loss_not_scaled(trace: Trace, plain: Event) -> bool:
    """Return whether a backward pass is of an unscaled loss or term that a scaler unscales."""
    steps = trace.of("step", after=plain, near=plain)
    if plain.on.startswith("scaled") and PARTLY in plain.words:
        return bool(steps)
    if plain.on != "plain" or not steps:
        return False
    scaled = [each for each in trace.of("backward", near=plain) if each.on.startswith("scaled")]
    with_it = [each for each in scaled if not each.apart(steps[0])]
    first, second = sorted((with_it[0], plain), key=trace.index) if with_it else (plain, plain)
    if with_it and trace.index(second) < trace.index(steps[0]):
        return not trace.of("zero", "update", "bare", "step", after=first, before=steps[0])
    between = trace.of("bare", "zero", "step", after=plain, before=steps[0])
    elsewhere = "." in steps[0].on  # a scaler of this function alone is a case of `missing_call`
    return elsewhere and ".scale(" not in trace.source.text and not between


def hidden_overflow(trace: Trace, each: Event) -> bool:
    """Return whether inf and NaN are replaced in gradients before the scaler checks them."""
    start = trace.scaled(each)
    calls = {called(call) for call in ast.walk(each.node) if isinstance(call, ast.Call)}
    targets = getattr(each.node, "targets", ())
    attributes = {target.attr for target in targets if isinstance(target, ast.Attribute)}
    kept = "copy_" in calls or attributes & {"grad", "data"}
    hides = "nan_to_num_" in calls or ("nan_to_num" in calls and kept)
    checked = trace.of("unscale", "step", after=start, before=each)
    return bool(start and hides and not checked and trace.of("step", "bare", after=each))


def scaled_loss_logged(trace: Trace, each: Event) -> bool:
    """Return whether a scaled loss is logged, which each event of this kind says."""
    return True
