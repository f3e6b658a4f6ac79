"""What goes on in a skipped step, or lets a step that should be skipped through."""

import re

from ampsim.lint.event import Event, Guard
from ampsim.lint.names import has, leaf, name_of
from ampsim.lint.source import Source, Trace

_HALVES = ("first_step", "second_step")  # of SAM, which scaler.step() does not call
_ASKS_FINITE = re.compile(r"is_?finite|isnan|isinf|non_?finite|is_nan|has_nan|found_inf", re.I)


def scheduler_steps_on_skip(trace: Trace, each: Event) -> bool:
    """Return whether a schedule steps also on a skip; a foreign one may follow the optimizer."""
    of_an_average = re.search("(^|_)ema", leaf(each.on), re.I)
    if of_an_average or trace.source.prepared or leaf(each.on) in trace.source.foreign:
        return False
    own, steps = _optimizers_of(trace.source, each), trace.skippable()
    mine = [step for step in steps if leaf(step.of) in own]
    others = any(leaf(bare.of) in own and bare not in steps for bare in trace.of("bare"))
    return any(map(each.regardless, mine if mine or others else steps))


def _optimizers_of(source: Source, schedule: Event) -> set[str]:
    """Return the names of the optimizers with which a schedule was made."""
    made = source.made.get(leaf(schedule.on))
    if made is None:
        return set()
    named = [word.value for word in made.keywords if word.arg == "optimizer"]
    return {leaf(name_of(arg)) for arg in (*made.args[:1], *named)}


def average_updates_on_skip(trace: Trace, each: Event) -> bool:
    """Return whether an average is updated whether or not the scaler stepped."""
    return any(map(each.regardless, trace.skippable()))


def schedule_by_iteration(trace: Trace, each: Event) -> bool:
    """Return whether the learning rate is set in every iteration, also on a skip."""
    steps = (step for step in trace.skippable() if step.loops)
    around = [step for step in steps if step.loops == each.loops[: len(step.loops)]]
    plain = all(guard.benign or guard.window for guard in each.guards)
    return plain and any(not each.apart(step) for step in around)


def conditional_update(trace: Trace, update: Event) -> bool:
    """Return whether a condition on the gradients leaves an update out."""
    start = trace.scaled(update)
    if start is None or start.loops != update.loops:
        return False
    unscaled = trace.of("unscale", after=start, before=update, beside=update)
    for guard in update.beyond(unscaled[-1] if unscaled else start):
        on_gradients = unscaled or has(guard.words, "grad")
        everywhere = all(guard in other.guards for other in trace.of("update"))
        if _is_verdict(guard) and on_gradients and everywhere:
            return True
    return False


def _is_verdict(guard: Guard) -> bool:
    """Return whether a condition is about gradients being finite, or about their norm."""
    finite = any(map(_ASKS_FINITE.search, guard.words))
    clipped = has(guard.words, r"clip_grad_norm|get_total_norm") and not guard.benign
    return (finite or clipped) and "%" not in guard.words


def optimizer_bypasses_scaler(trace: Trace, bare: Event) -> bool:
    """Return whether an optimizer steps by itself with gradients of a scaled loss."""
    start = trace.scaled(bare)
    if start is None or start.loops[: len(bare.loops)] != bare.loops:
        return False
    passes = trace.of("backward", before=bare, beside=bare)
    instead = any(each.apart(bare) for each in trace.of("step", "update"))
    asked = any(guard.asks for guard in bare.guards)
    if leaf(name_of(bare.node)) in _HALVES:
        return not asked and not trace.of("unscale", after=start, before=bare, beside=bare)
    known = all(guard.benign or guard.window for guard in bare.beyond(start))
    cleared = trace.of("zero", after=start, before=bare, beside=bare)
    scaled = all(each.on.startswith("scaled") for each in passes)
    return known and scaled and not (asked or instead or cleared)


def zero_grad_only_after_step(trace: Trace, zero: Event) -> bool:
    """Return whether gradients are cleared only where the step was not skipped."""
    steps = [step for step in trace.of("step", before=zero) if step.loops == zero.loops]
    beyond = zero.beyond(steps[-1]) if steps else []
    asked = any(guard.asks or guard.text.endswith("update()") for guard in beyond)
    return asked and len(trace.of("zero")) == 1 and bool(trace.scaled(zero))


def skip_detected_by_equality(trace: Trace, event: Event) -> bool:
    """Return whether a schedule or an average waits for two scales to be equal."""
    return any(guard.asks and guard.words >= {"get_scale", "=="} for guard in event.guards)
