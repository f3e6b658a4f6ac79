"""Rules about the order of events in one loop: what comes too early, or too often."""

import ast
import re

from ampsim.lint.events import SCALED, Event, Trace
from ampsim.lint.names import called, has, leaf, name_of, parts_of
from ampsim.lint.source import Source

_HALVES = ("first_step", "second_step")  # of SAM, which scaler.step() does not call
_MEASURES = re.compile(
    r"^(norm|vector_norm|get_total_norm|clamp_?|clip_|square|histogram|histc)$"
)


def scheduler_steps_on_skip(source: Source, trace: Trace, each: Event) -> bool:
    """Return whether a schedule steps also on a skip."""
    of_an_average = has([leaf(each.on)], "(^|_)ema")
    if of_an_average or source.prepared:
        return False
    steps = trace.skippable()
    made = source.made.get(leaf(each.on))
    if made:
        keywords = [word.value for word in made.keywords]
        own = {leaf(name_of(arg)) for arg in (*made.args[:1], *keywords)}
        mine = [step for step in steps if leaf(step.of) in own]
        others = [bare for bare in trace.of("bare") if leaf(bare.of) in own]
        # The schedule may be of an optimizer that steps by itself.
        alone = any(bare not in steps for bare in others)
        if mine or alone:
            steps = mine
    return any(map(each.regardless, steps))


def average_updates_on_skip(source: Source, trace: Trace, each: Event) -> bool:
    """Return whether an average is updated whether or not the scaler stepped."""
    return any(map(each.regardless, trace.skippable()))


def skip_detected_by_equality(source: Source, trace: Trace, event: Event) -> bool:
    """Return whether a schedule or an average waits for two scales to be equal."""
    return any(
        guard.asks and guard.words >= {"get_scale", "=="} for guard in event.guards
    )


def clip_before_unscale(source: Source, trace: Trace, clip: Event) -> bool:
    """Return whether gradients are clipped between a scaled backward pass and their unscaling."""
    if _in_block_of_apex(source, trace, clip):
        return True
    allows_for_it = has(clip.words, "get_scale|scaler|inv_scale")
    stepped = trace.of("step", after=clip, near=clip)
    if allows_for_it or not stepped:
        return False
    start = trace.still_scaled(clip)
    if start is None:
        return False
    changes = trace.of("grad", after=start, before=clip, beside=clip)
    divided = any(has(change.words, "scal") for change in changes)
    return not divided


def _in_block_of_apex(source: Source, trace: Trace, clip: Event) -> bool:
    """Return whether apex, which unscales at the end of its block, has not done so yet."""
    heads = set[ast.expr]()
    for block in source.around(clip.node, ast.With):
        heads |= {item.context_expr for item in block.items}
    opened = [each for each in trace.of("apex", before=clip) if each.node in heads]
    if not opened:
        return False
    passes = trace.of("backward", after=opened[-1], before=clip)
    return bool(passes)


def scaled_gradients_read(source: Source, trace: Trace, each: Event) -> bool:
    """Return whether gradients are measured or cut by hand before they are unscaled."""
    calls = parts_of(each.node, ast.Call)
    measures = [call for call in calls if _MEASURES.match(called(call))]
    if not any(".grad" in source.words(call) for call in measures):
        return False
    later = trace.of("step", "unscale", after=each)
    if not later or trace.still_scaled(each) is None:
        return False
    # The gradients may be divided by the scale, or by what was measured.
    targets = map(name_of, getattr(each.node, "targets", ()))
    divisor = "|".join(["scale", *(f"^{name}$" for name in targets)])
    changes = trace.of("grad", after=each, before=later[0])
    divided = any(has(change.words, divisor) for change in changes)
    return not divided and not has(each.words, "scale")


def optimizer_bypasses_scaler(source: Source, trace: Trace, bare: Event) -> bool:
    """Return whether an optimizer steps by itself with gradients of a scaled loss."""
    if any(guard.asks for guard in bare.guards):
        return False
    start = trace.scaled(bare)
    unscaled = trace.of("unscale", after=start, before=bare, beside=bare)
    if leaf(name_of(bare.node)) in _HALVES:
        return bool(start) and not unscaled
    own = [each for each in unscaled if each.of == bare.of]
    last = own[-1] if own else start
    if last is None:
        return False
    chosen = all(guard.benign or guard.window for guard in bare.beyond(last))
    instead = any(each.apart(bare) for each in trace.of("step", "update"))
    if own:  # a setting may turn the scaler off, and its unscale_() does nothing then
        return not (chosen and instead)
    passes = trace.of("backward", before=bare, beside=bare)
    scaled = all(each.on.startswith(SCALED) for each in passes)
    return scaled and chosen and not instead


def clip_per_micro_batch(source: Source, trace: Trace, clip: Event) -> bool:
    """Return whether an incomplete sum of gradients is clipped, in a branch with a scaler."""
    passes = trace.of("backward", before=clip, beside=clip)
    if passes and passes[-1].on == "plain":
        return False
    raises = passes and trace.of("unscale", after=passes[-1], near=clip)
    steps = trace.of("step", "bare", beside=clip)
    return not raises and trace.is_per_micro_batch(clip, steps)


def unscale_per_micro_batch(source: Source, trace: Trace, each: Event) -> bool:
    """Return whether gradients are unscaled in each micro-batch, which raises in the second one."""
    if source.accumulates and not any(guard.window for guard in each.guards):
        return bool(trace.scaled(each))
    steps = trace.of("step", beside=each)
    own = [step for step in steps if (step.of, step.on) == (each.of, each.on)]
    return trace.is_per_micro_batch(each, own)
