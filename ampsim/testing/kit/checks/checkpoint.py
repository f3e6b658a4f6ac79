"""Level 4: a run that is saved and resumed, at any point, is the run that was not."""

import io
import pickle

import torch
from hypothesis import strategies as st

from ampsim.core.machine import Rule
from ampsim.testing.kit.check import check
from ampsim.testing.kit.strategies import OTHER, histories, rules
from ampsim.testing.kit.subject import CONSTANTS, Scaler
from ampsim.testing.kit.trial import RULE, Trial


def _resumes(t: Trial, resumed: Scaler, after: list[bool]) -> None:
    """Run both scalers on from here, and fail unless they use the same scales."""
    goes_on = t.scaler
    for number, flag in enumerate([*after, *[False] * (t.traits.delay + 1)]):
        used = []
        for scaler in (goes_on, resumed):
            t.scaler = scaler
            used.append(t.iterate(flag))
            t.events.pop()
        t.log_event("inf" if flag else "clean")
        t.require(
            used[0] == used[1], f"{number} updates after resuming the scale is {used[1]!r}, without it {used[0]!r}"
        )


@check(
    4,
    issue="huggingface/accelerate#4289",
    needs="state_dict",
    rule=rules(),
    before=histories(longest=8),
    after=histories(longest=8),
    used=st.booleans(),
)
def resume_is_invisible(t: Trial, rule: Rule, before: list[bool], after: list[bool], used: bool) -> None:
    """A state dict loaded into another scaler, before its first use or after, continues the run to the last bit."""
    resumed = t.start(OTHER)
    if used:
        t.iterate()
        t.events.clear()
        t.scales.clear()
    t.start(rule)
    for flag in before:
        t.iterate(flag)
    t.log_event(f"state_dict -> load_state_dict ({'used' if used else 'fresh'} scaler)")
    resumed.load_state_dict(t.scaler.state_dict())
    _resumes(t, resumed, after)


@check(4, issue="mosaicml/composer#1376", needs="state_dict", rule=rules(), after=histories(longest=4))
def resume_before_first_use_is_invisible(t: Trial, rule: Rule, after: list[bool]) -> None:
    """A scaler saved before its first scale() is resumed as it would have begun."""
    resumed = t.start(OTHER)
    t.start(rule)
    t.log_event("state_dict -> load_state_dict")
    resumed.load_state_dict(t.scaler.state_dict())
    _resumes(t, resumed, after)


@check(4, needs="pickle", rule=rules(), before=histories(longest=8), after=histories(longest=8))
def pickling_is_invisible(t: Trial, rule: Rule, before: list[bool], after: list[bool]) -> None:
    """A scaler pickled between iterations continues the run to the last bit."""
    t.start(rule)
    for flag in before:
        t.iterate(flag)
    t.log_event("pickle")
    _resumes(t, pickle.loads(pickle.dumps(t.scaler)), after)  # noqa: S301  our own bytes


@check(4, needs="state_dict", before=histories(longest=4), after=histories(longest=4))
def a_state_dict_is_a_snapshot(t: Trial, before: list[bool], after: list[bool]) -> None:
    """A state dict does not change when the run goes on."""
    t.start()
    for flag in before:
        t.iterate(flag)
    t.log_event("state_dict")
    saved = t.scaler.state_dict()
    before_going_on = repr(saved)
    for flag in after:
        t.iterate(flag)
    t.require(repr(saved) == before_going_on, f"{before_going_on} became {saved!r}")


@check(4, needs="state_dict", before=histories(longest=4))
def a_state_dict_loads_without_running_code(t: Trial, before: list[bool]) -> None:
    """A state dict goes through ``torch.save`` and ``torch.load(weights_only=True)`` unchanged."""
    t.start()
    for flag in before:
        t.iterate(flag)
    t.log_event("torch.save -> torch.load(weights_only=True)")
    saved, file = t.scaler.state_dict(), io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    t.require(repr(loaded) == repr(saved), f"saved {saved!r}, loaded {loaded!r}")


@check(4, needs="state_dict", missing=st.sampled_from([*CONSTANTS[1:], "_growth_tracker"]))
def a_refused_state_dict_changes_nothing(t: Trial, missing: str) -> None:
    """A state dict that lacks a key is refused, and none of it is taken over."""
    resumed, other = t.start(OTHER), t.subject.make(t.traits.possible(RULE))
    t.iterate()
    before, source = resumed.state_dict(), other.state_dict()
    source.pop(missing, None)
    t.log_event(f"load_state_dict without {missing!r}")
    try:
        resumed.load_state_dict(source)
    except Exception:
        after = resumed.state_dict()
        t.require(after == before, f"refused, but {before} became {after}")
    else:
        t.require(missing not in before, "taken although a key is missing")
