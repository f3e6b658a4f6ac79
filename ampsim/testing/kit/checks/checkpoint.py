"""Level 4: a run that is saved and resumed at any point equals the uninterrupted run."""

import copy
import io
import pickle
from typing import Any

import torch
from hypothesis import strategies as st

from ampsim.testing.kit.check import check
from ampsim.testing.kit.strategies import histories, rules
from ampsim.testing.kit.subject import CONSTANTS, Traits


def others(
    traits: Traits, rule: dict[str, Any], *, sets: bool = False, **_: object
) -> dict[str, Any]:
    """Return other constants for the scaler that resumes, which the checkpoint overrides: those that it holds."""
    if "saved_constants" in traits.unsupported:
        return {**rule, "init_scale": 512.0} | ({"growth_interval": 4} if sets else {})
    return {"init_scale": 512.0, "growth_factor": 2.5, "backoff_factor": 0.3, "growth_interval": 7}


NOTHING_ELSE = dict.fromkeys(["used", "again", "overrides", "sets"], False)


@check(
    4,
    issue="huggingface/accelerate#4289",
    needs="state_dict",
    rule=rules(),
    before=histories(longest=8),
    after=histories(longest=8),
    used=st.booleans(),
    other=others,
    again=st.booleans(),
    overrides=st.booleans(),
    sets=st.booleans(),
    last=[  # a growth tracker that neither 8 bits nor bfloat16 can represent
        {
            "rule": {"growth_interval": 300},
            "before": [False] * 299,
            "after": [False],
            **NOTHING_ELSE,
        }
    ],
)
def state_dict_continues_run(
    make, iterate, loss_scale, delay, rule, before, after, used, again, overrides, sets, other
):
    """A state dict loaded into another scaler, before or after its first use, continues the run exactly.

    This includes a state dict taken after others, after a setter call, or saved again without an iteration.
    """
    scaler, after = make(**rule), after + [False] * (delay + 1)
    for overflows in before:
        iterate(scaler, overflows)
        scaler.state_dict()
    if overrides:
        loss_scale(scaler)
        scaler.update(8.0)
    if sets:
        scaler.set_growth_interval(4)
    saved, shown = copy.deepcopy(scaler.state_dict()), scaler.get_scale()
    expected = [iterate(scaler, overflows) for overflows in after]
    resumed = make(**other)
    if used:
        iterate(resumed, False)
    resumed.load_state_dict(saved)
    assert resumed.get_scale() == shown, (
        f"get_scale() is {resumed.get_scale()} after loading, and was {shown}"
    )
    if again:
        saved, resumed = resumed.state_dict(), make(**{**other, "init_scale": 64.0})
        resumed.load_state_dict(saved)
    scales = [iterate(resumed, overflows) for overflows in after]
    assert scales == expected, f"after resuming the scales are {scales}, without it {expected}"


@check(
    4,
    issue="mosaicml/composer#1376",
    needs="state_dict",
    rule=rules(),
    after=histories(longest=4),
    other=others,
)
def resume_before_first_use_is_exact(make, iterate, delay, rule, after, other):
    """A scaler saved before its first scale() resumes exactly."""
    scaler, after = make(**rule), after + [False] * (delay + 1)
    saved = copy.deepcopy(scaler.state_dict())
    expected = [iterate(scaler, overflows) for overflows in after]
    resumed = make(**other)
    resumed.load_state_dict(saved)
    scales = [iterate(resumed, overflows) for overflows in after]
    assert scales == expected, f"after resuming the scales are {scales}, without it {expected}"


@check(4, needs="pickle", rule=rules(), before=histories(longest=8), after=histories(longest=8))
def pickling_is_exact(make, iterate, delay, rule, before, after):
    """A scaler pickled between iterations continues the run exactly."""
    scaler, after = make(**rule), after + [False] * (delay + 1)
    for overflows in before:
        iterate(scaler, overflows)
    pickled = pickle.dumps(scaler)
    expected = [iterate(scaler, overflows) for overflows in after]
    resumed = pickle.loads(pickled)
    scales = [iterate(resumed, overflows) for overflows in after]
    assert scales == expected, f"after pickling the scales are {scales}, without it {expected}"


@check(
    4,
    needs="state_dict",
    before=histories(longest=4),
    after=histories(longest=4),
    loads=st.booleans(),
)
def state_dict_is_snapshot(make, iterate, before, after, loads):
    """A state dict does not change when the run continues, when another one is taken, or after it is loaded."""
    scaler = make(growth_interval=3)
    for overflows in before:
        iterate(scaler, overflows)
    saved = scaler.state_dict()
    then = repr(saved)
    if loads:
        scaler = make(growth_interval=3)
        scaler.load_state_dict(saved)
    for overflows in after:
        iterate(scaler, overflows)
        scaler.state_dict()
    assert repr(saved) == then, f"{then} became {saved!r}"


@check(4, needs="state_dict", before=histories(longest=4))
def state_dict_loads_with_weights_only(make, iterate, before):
    """``torch.save`` and ``torch.load(weights_only=True)`` return a state dict unchanged."""
    scaler, file = make(growth_interval=3), io.BytesIO()
    for overflows in before:
        iterate(scaler, overflows)
    saved = scaler.state_dict()
    torch.save(saved, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert repr(loaded) == repr(saved), f"saved {saved!r}, loaded {loaded!r}"


@check(4, needs="state_dict", missing=st.sampled_from([*CONSTANTS[1:], "_growth_tracker"]))
def invalid_state_dict_changes_nothing(make, iterate, missing):
    """Loading a state dict without a required key raises and changes nothing."""
    scaler = make(init_scale=512.0, growth_factor=2.5, backoff_factor=0.3, growth_interval=7)
    iterate(scaler, False)
    before, other = scaler.state_dict(), make(growth_interval=3).state_dict()
    other.pop(missing, None)
    try:
        scaler.load_state_dict(other)
    except Exception:
        assert scaler.state_dict() == before, (
            f"load_state_dict() raised, but {before} became {scaler.state_dict()}"
        )
    else:
        assert missing not in before, "load_state_dict() accepted a state dict without a key"
