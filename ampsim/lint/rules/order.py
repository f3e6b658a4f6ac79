"""Rules about the order of events in one loop: what comes too early, or too often.

Each rule takes one event and says whether it is a finding. `Trace` answers what happens before and
after the event in the same pass through the loop, and `Event` whether two happen in one pass.
"""

import ast
import re

from ampsim.lint.events import Event, Trace
from ampsim.lint.names import called, has, keywords_of, leaf, name_of, parts_of
from ampsim.lint.source import Source

_HALVES = ("first_step", "second_step")  # of SAM, which scaler.step() does not call
_MEASURES = re.compile(
    r"^(norm|vector_norm|get_total_norm|clamp_?|clip_|square|histogram|histc)$"
)
_READS_SCALE = "get_scale|scaler|inv_scale"


def scheduler_steps_on_skip(source: Source, trace: Trace, each: Event) -> bool:
    """Return whether a schedule steps also on a skip."""
    is_of_average = has([leaf(each.on)], "(^|_)ema")
    if is_of_average or source.prepared:
        return False
    steps = _steps_of_schedule(source, trace, each)
    return any(map(each.regardless, steps))


def _steps_of_schedule(source: Source, trace: Trace, schedule: Event) -> list[Event]:
    """Return the skippable steps of the optimizer of a schedule; of all optimizers if unknown."""
    steps = trace.skippable()
    made = source.made.get(leaf(schedule.on))
    if made is None:
        return steps
    given = (*made.args[:1], *keywords_of(made).values())
    optimizers = {*map(leaf, map(name_of, given))}
    mine = [step for step in steps if leaf(step.of) in optimizers]
    if mine:
        return mine
    # The schedule may be of an optimizer that steps by itself.
    own = [bare for bare in trace.of("bare") if leaf(bare.of) in optimizers]
    steps_alone = any(bare not in steps for bare in own)
    return [] if steps_alone else steps


def average_updates_on_skip(source: Source, trace: Trace, each: Event) -> bool:
    """Return whether an average is updated whether or not the scaler stepped."""
    return any(map(each.regardless, trace.skippable()))


def skip_detected_by_equality(source: Source, trace: Trace, event: Event) -> bool:
    """Return whether a schedule or an average waits for two scales to be equal."""
    compares = {"get_scale", "=="}
    asked = [guard.words for guard in event.guards if guard.asks]
    return any(words >= compares for words in asked)


def clip_before_unscale(source: Source, trace: Trace, clip: Event) -> bool:
    """Return whether gradients are clipped between a scaled backward pass and their unscaling."""
    if _in_block_of_apex(source, trace, clip):
        return True
    # A threshold that is multiplied by the scale fits scaled gradients.
    if has(clip.words, _READS_SCALE):
        return False
    if not trace.of("step", after=clip, near=clip):
        return False
    start = trace.still_scaled(clip)
    if start is None:
        return False
    changes = trace.of("grad", after=start, before=clip, beside=clip)
    is_unscaled_by_hand = any(has(change.words, "scal") for change in changes)
    return not is_unscaled_by_hand


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
    if not _measures_gradients(source, each) or has(each.words, "scale"):
        return False
    later = trace.of("step", "unscale", after=each)
    if not later or trace.still_scaled(each) is None:
        return False
    # The gradients may be divided by the scale, or by what was measured.
    targets = map(name_of, getattr(each.node, "targets", ()))
    divisors = ["scale", *(f"^{name}$" for name in targets)]
    changes = trace.of("grad", after=each, before=later[0])
    is_divided = any(has(change.words, "|".join(divisors)) for change in changes)
    return not is_divided


def _measures_gradients(source: Source, each: Event) -> bool:
    for call in parts_of(each.node, ast.Call):
        if _MEASURES.match(called(call)) and ".grad" in source.words(call):
            return True
    return False


def optimizer_bypasses_scaler(source: Source, trace: Trace, bare: Event) -> bool:
    """Return whether an optimizer steps by itself with gradients of a scaled loss."""
    if any(guard.asks for guard in bare.guards):
        return False
    start = trace.scaled(bare)
    unscaled = trace.of("unscale", after=start, before=bare, beside=bare)
    if leaf(name_of(bare.node)) in _HALVES:
        return start is not None and not unscaled
    own = [each for each in unscaled if each.of == bare.of]
    last = own[-1] if own else start
    if last is None:
        return False
    is_certain = all(guard.benign or guard.window for guard in bare.beyond(last))
    # In the other branch, the scaler steps instead.
    others = trace.of("step", "update")
    has_alternative = any(each.apart(bare) for each in others)
    if own:
        # A setting may turn the scaler off, and its unscale_() does nothing then.
        return not (is_certain and has_alternative)
    passes = trace.of("backward", before=bare, beside=bare)
    is_scaled = all(each.scaled_by is not None for each in passes)
    return is_scaled and is_certain and not has_alternative


def clip_per_micro_batch(source: Source, trace: Trace, clip: Event) -> bool:
    """Return whether an incomplete sum of gradients is clipped, in a branch with a scaler."""
    passes = trace.of("backward", before=clip, beside=clip)
    if passes:
        # A plain loss has no scaler, and unscale_() in each micro-batch raises.
        last = passes[-1]
        if last.is_plain or trace.of("unscale", after=last, near=clip):
            return False
    steps = trace.of("step", "bare", beside=clip)
    return trace.is_per_micro_batch(clip, steps)


def unscale_per_micro_batch(source: Source, trace: Trace, each: Event) -> bool:
    """Return whether gradients are unscaled in each micro-batch, which raises in the second one."""
    waits = any(guard.window for guard in each.guards)
    if source.accumulates and not waits:
        return trace.scaled(each) is not None
    steps = trace.of("step", beside=each)
    own = [step for step in steps if (step.of, step.on) == (each.of, each.on)]
    return trace.is_per_micro_batch(each, own)
