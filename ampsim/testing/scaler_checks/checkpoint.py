"""Level 4: a run that is saved and resumed at any point equals the uninterrupted run."""

import copy
import io
import pickle

import torch
from hypothesis import strategies as st

from ampsim.core.machine import SETTABLE
from ampsim.testing.scaler_checks.adapter import (
    Constants,
    Flags,
    ScalerAdapter,
    Scales,
)
from ampsim.testing.scaler_checks.check import check
from ampsim.testing.scaler_checks.strategies import overflow_sequences, rules

OTHER = {
    "init_scale": 512.0,
    "growth_factor": 2.5,
    "backoff_factor": 0.3,
    "growth_interval": 7,
}


def plain(interval: int, before: int, after: int) -> Constants:
    """Return an example of finite steps before and after a plain resume."""
    options = dict.fromkeys(["used", "again", "overrides", "sets"], False)
    flags = {"before": [False] * before, "after": [False] * after}
    return {"rule": {"growth_interval": interval}, **flags, **options}


@check(
    4,
    issue="mosaicml/composer#1376",
    needs="state_dict",
    rule=rules(),
    before=overflow_sequences(longest=8),
    after=overflow_sequences(longest=8),
    used=st.booleans(),
    again=st.booleans(),
    overrides=st.booleans(),
    sets=st.booleans(),
    # saved before its first scale()
    found=[plain(interval=2, before=0, after=2)],
    # a growth tracker that neither 8 bits nor bfloat16 can represent
    last=[plain(interval=300, before=299, after=1)],
)
def state_dict_continues_run(
    case: ScalerAdapter,
    rule: Constants,
    before: Flags,
    after: Flags,
    used: bool,
    again: bool,
    overrides: bool,
    sets: bool,
) -> None:
    """A state dict loaded into another scaler, before or after its first use, continues the run
    exactly.

    This includes a state dict taken after others, after a setter call, or saved again without an
    iteration. A scaler that saves its constants may resume in a scaler made with others.
    """
    scaler = case.make(**rule)
    after = after + [False] * (case.traits.delay + 1)
    for overflows in before:
        case.iterate(scaler, overflows)
        scaler.state_dict()
    if overrides:
        case.loss_scale(scaler)
        scaler.update(8.0)
    if sets:
        scaler.set_growth_interval(4)
    saved = copy.deepcopy(scaler.state_dict())
    shown = scaler.get_scale()
    expected = case.iterate_each(scaler, after)

    def resume(constants: Constants) -> Scales:
        resumed = case.make(**constants)
        if used:
            case.iterate(resumed, False)
        resumed.load_state_dict(copy.deepcopy(saved))
        loaded = resumed.get_scale()
        text = f"get_scale() is {loaded} after loading, and was {shown}"
        assert loaded == shown, text
        if again:
            saved_again = resumed.state_dict()
            resumed = case.make(**{**constants, "init_scale": 64.0})
            resumed.load_state_dict(saved_again)
        return case.iterate_each(resumed, after)

    alike = {**rule, "init_scale": 512.0}
    if sets:
        alike["growth_interval"] = 4
    scales = resume(alike)
    text = f"after resuming the scales are {scales}, without it {expected}"
    assert scales == expected, text
    if "saved_constants" in case.traits.unsupported:
        return
    scales = resume(OTHER)
    constants = ", ".join(f"{name}={value}" for name, value in OTHER.items())
    text = (
        f"the constants are not saved: resumed in a scaler made with {constants}, "
        f"the scales are {scales}, without resuming {expected}"
    )
    assert scales == expected, text


@check(
    4,
    needs="pickle",
    rule=rules(),
    before=overflow_sequences(longest=8),
    after=overflow_sequences(longest=8),
)
def pickling_is_exact(
    case: ScalerAdapter, rule: Constants, before: Flags, after: Flags
) -> None:
    """A scaler pickled between iterations continues the run exactly."""
    scaler = case.make(**rule)
    after = after + [False] * (case.traits.delay + 1)
    case.iterate_each(scaler, before)
    pickled = pickle.dumps(scaler)
    expected = case.iterate_each(scaler, after)
    scales = case.iterate_each(pickle.loads(pickled), after)
    text = f"after pickling the scales are {scales}, without it {expected}"
    assert scales == expected, text


@check(
    4,
    needs="state_dict",
    before=overflow_sequences(longest=4),
    after=overflow_sequences(longest=4),
    loads=st.booleans(),
)
def state_dict_is_snapshot(
    case: ScalerAdapter, before: Flags, after: Flags, loads: bool
) -> None:
    """A state dict does not change when the run continues, in a file, or after it is loaded."""
    scaler = case.make(growth_interval=3)
    case.iterate_each(scaler, before)
    saved = scaler.state_dict()
    then = repr(saved)
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded = repr(torch.load(file, weights_only=True))
    text = f"saved {then}, torch.load(weights_only=True) returned {loaded}"
    assert loaded == then, text
    if loads:
        scaler = case.make(growth_interval=3)
        scaler.load_state_dict(saved)
    for overflows in after:
        case.iterate(scaler, overflows)
        scaler.state_dict()
    assert repr(saved) == then, f"{then} became {saved!r}"


@check(4, needs="state_dict", missing=st.sampled_from([*SETTABLE, "_growth_tracker"]))
def invalid_state_dict_changes_nothing(case: ScalerAdapter, missing: str) -> None:
    """Loading a state dict without a required key raises and changes nothing."""
    scaler = case.make(**OTHER)
    case.iterate(scaler, False)
    before = scaler.state_dict()
    other = case.make(growth_interval=3).state_dict()
    other.pop(missing, None)
    try:
        scaler.load_state_dict(other)
    except Exception:
        after = scaler.state_dict()
        assert after == before, f"load_state_dict() raised, but {before} became {after}"
    else:
        is_loaded = missing not in before
        assert is_loaded, "load_state_dict() accepted a state dict without a key"
