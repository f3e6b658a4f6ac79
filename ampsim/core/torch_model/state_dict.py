"""Getters, setters, state dicts, and pickles of torch.amp.GradScaler.

A checkpoint has five numbers: the scale, the two factors, the interval, and the growth tracker. A state dict taken in
mid-iteration silently lacks the stages and found_inf; pickling raises there.

Source: torch/amp/grad_scaler.py of torch 2.13.0.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import replace

from ampsim.core import machine
from ampsim.core.machine import Rule
from ampsim.core.torch_model import refusals
from ampsim.core.torch_model.protocol import FIELDS, Outcome, Protocol, Result, refuse


def get(p: Protocol, name: str) -> Result:
    """Do ``get_growth_factor()`` and the like; `name` is one of FIELDS."""
    if name in p.unset:
        return refuse(p, refusals.unset(name))
    return p, Outcome(value=getattr(p.rule, name))


def put(p: Protocol, name: str, value: object) -> Protocol:
    """Do ``set_growth_factor(value)`` and the like; nothing is checked, `name` is one of FIELDS."""
    known = {f.name: getattr(p.rule, f.name) for f in dataclasses.fields(p.rule)}
    return replace(p, rule=Rule.unchecked(**{**known, name: value}), unset=p.unset - {name})


def get_scale(p: Protocol) -> float:
    """Return ``get_scale()``: the number that was given until the scale exists; 1.0 if disabled."""
    return p.state.scale if p.enabled else 1.0


def get_growth_tracker(p: Protocol) -> int:
    """Return ``_get_growth_tracker()``; 0 if disabled."""
    return p.state.growth_tracker if p.enabled else 0


def state_dict(p: Protocol) -> dict[str, object]:
    """Return ``state_dict()``: the stages are not in it, nor any found_inf; {} if disabled."""
    if not p.enabled:
        return {}
    factors = {name: getattr(p.rule, name) for name in FIELDS}
    return {"scale": p.state.scale, **factors, "_growth_tracker": p.state.growth_tracker}


def load_state_dict(p: Protocol, source: Mapping[str, float]) -> Result:
    """Do ``load_state_dict(source)``. Keys are loaded one by one: those before a missing key stay loaded."""
    if not p.enabled:
        return p, Outcome()
    if not source:
        return refuse(p, refusals.EMPTY_STATE_DICT)
    for key in ("scale", *FIELDS, "_growth_tracker"):
        if key not in source:
            return refuse(p, refusals.missing_key(key))
        if key == "scale" and p.exists and (refusal := refusals.overflow(source[key])):
            return refuse(p, refusal)
        p = _load(p, key, source[key])
    return p, Outcome()


def _load(p: Protocol, key: str, value: float) -> Protocol:
    if key in FIELDS:
        return put(p, key, value)
    if key == "_growth_tracker":
        return replace(p, state=replace(p.state, growth_tracker=value))  # type: ignore[arg-type]
    held = machine.override(p.rule, p.state, value) if p.exists else replace(p.state, scale=value)
    return replace(p, state=held)


def pickled(p: Protocol) -> Result:
    """Do ``pickle.loads(pickle.dumps(scaler))``, the outcome's value: the same, its scale not yet made.

    A copy.deepcopy is the same. A copy.copy is not: it shares the stages with the original until an update.
    """
    if p.enabled and p.records:
        return refuse(p, refusals.PICKLED_LATE)
    return p, Outcome(value=replace(p, exists=False))
