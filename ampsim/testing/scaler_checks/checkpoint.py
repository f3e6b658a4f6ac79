"""Level 4: a run that is saved and resumed at any point equals the uninterrupted run."""

import copy
import io
import pickle
from typing import Any

import torch
from hypothesis import strategies as st

from ampsim.testing.construction import CONSTANTS
from ampsim.testing.scaler_checks.adapter import ScalerAdapter
from ampsim.testing.scaler_checks.check import check
from ampsim.testing.scaler_checks.strategies import overflow_sequences, rules

OTHER = {
    "init_scale": 512.0,
    "growth_factor": 2.5,
    "backoff_factor": 0.3,
    "growth_interval": 7,
}


def others(
    case: ScalerAdapter, rule: dict[str, Any], sets: bool = False
) -> dict[str, Any]:
    """Return other constants for the scaler that resumes, which the checkpoint overrides if it
    holds them.
    """
    if "saved_constants" not in case.traits.unsupported:
        return OTHER
    return {**rule, "init_scale": 512.0, **({"growth_interval": 4} if sets else {})}


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
    found=[  # saved before its first scale()
        {
            "rule": {"growth_interval": 2},
            "before": [],
            "after": [False, False],
            **dict.fromkeys(["used", "again", "overrides", "sets"], False),
        }
    ],
    last=[  # a growth tracker that neither 8 bits nor bfloat16 can represent
        {
            "rule": {"growth_interval": 300},
            "before": [False] * 299,
            "after": [False],
            **dict.fromkeys(["used", "again", "overrides", "sets"], False),
        }
    ],
)
def state_dict_continues_run(
    case: ScalerAdapter,
    rule: dict[str, Any],
    before: list[bool],
    after: list[bool],
    used: bool,
    again: bool,
    overrides: bool,
    sets: bool,
) -> None:
    """A state dict loaded into another scaler, before or after its first use, continues the run
    exactly.

    This includes a state dict taken after others, after a setter call, or saved again without an
    iteration.
    """
    scaler, after = case.make(**rule), after + [False] * (case.traits.delay + 1)
    other = others(case, rule, sets)
    for overflows in before:
        case.iterate(scaler, overflows)
        scaler.state_dict()
    if overrides:
        case.loss_scale(scaler)
        scaler.update(8.0)
    if sets:
        scaler.set_growth_interval(4)
    saved, shown = copy.deepcopy(scaler.state_dict()), scaler.get_scale()
    expected = [case.iterate(scaler, overflows) for overflows in after]
    resumed = case.make(**other)
    if used:
        case.iterate(resumed, False)
    resumed.load_state_dict(saved)
    loaded = resumed.get_scale()
    assert loaded == shown, f"get_scale() is {loaded} after loading, and was {shown}"
    if again:
        saved, resumed = (
            resumed.state_dict(),
            case.make(**{**other, "init_scale": 64.0}),
        )
        resumed.load_state_dict(saved)
    scales = [case.iterate(resumed, overflows) for overflows in after]
    assert scales == expected, (
        f"after resuming the scales are {scales}, without it {expected}"
    )


@check(
    4,
    needs="pickle",
    rule=rules(),
    before=overflow_sequences(longest=8),
    after=overflow_sequences(longest=8),
)
def pickling_is_exact(
    case: ScalerAdapter, rule: dict[str, Any], before: list[bool], after: list[bool]
) -> None:
    """A scaler pickled between iterations continues the run exactly."""
    scaler, after = case.make(**rule), after + [False] * (case.traits.delay + 1)
    for overflows in before:
        case.iterate(scaler, overflows)
    pickled = pickle.dumps(scaler)
    expected = [case.iterate(scaler, overflows) for overflows in after]
    resumed = pickle.loads(pickled)
    scales = [case.iterate(resumed, overflows) for overflows in after]
    assert scales == expected, (
        f"after pickling the scales are {scales}, without it {expected}"
    )


@check(
    4,
    needs="state_dict",
    before=overflow_sequences(longest=4),
    after=overflow_sequences(longest=4),
    loads=st.booleans(),
)
def state_dict_is_snapshot(
    case: ScalerAdapter, before: list[bool], after: list[bool], loads: bool
) -> None:
    """A state dict does not change when the run continues, in a file, or after it is loaded."""
    scaler = case.make(growth_interval=3)
    for overflows in before:
        case.iterate(scaler, overflows)
    saved = scaler.state_dict()
    then, file = repr(saved), io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert repr(loaded) == then, (
        f"saved {then}, torch.load(weights_only=True) returned {loaded!r}"
    )
    if loads:
        scaler = case.make(growth_interval=3)
        scaler.load_state_dict(saved)
    for overflows in after:
        case.iterate(scaler, overflows)
        scaler.state_dict()
    assert repr(saved) == then, f"{then} became {saved!r}"


@check(
    4, needs="state_dict", missing=st.sampled_from([*CONSTANTS[1:], "_growth_tracker"])
)
def invalid_state_dict_changes_nothing(case: ScalerAdapter, missing: str) -> None:
    """Loading a state dict without a required key raises and changes nothing."""
    scaler = case.make(**OTHER)
    case.iterate(scaler, False)
    before, other = scaler.state_dict(), case.make(growth_interval=3).state_dict()
    other.pop(missing, None)
    try:
        scaler.load_state_dict(other)
    except Exception:
        after = scaler.state_dict()
        assert after == before, f"load_state_dict() raised, but {before} became {after}"
    else:
        assert missing not in before, (
            "load_state_dict() accepted a state dict without a key"
        )
