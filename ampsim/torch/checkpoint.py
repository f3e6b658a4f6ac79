"""A scaler beyond one process: its state as a dict, and the child of a fork."""

import dataclasses
import os
import weakref
from typing import Any, Protocol

from torch import Tensor

from ampsim.core.machine import Rule, State
from ampsim.core.policies import Policy, PolicyState, flatten, unflatten
from ampsim.core.torch_model import refusals
from ampsim.core.torch_model.protocol import FIELDS
from ampsim.core.validation import as_int
from ampsim.torch import config

Dict = dict[str, Any]  # numbers, lists of numbers and strings; plain pickle and JSON take it
States = tuple[Any, ...]  # States or PolicyStates: of the next ticket and every newer one


def to_dict(rule: Rule | Policy, states: States, depth: int) -> Dict:
    """Return torch's five keys and, with depth > 0, ``pending``; for a policy its name, its numbers and its state."""
    if isinstance(rule, Policy):
        return {
            "policy": type(rule).__name__,
            "constants": dataclasses.asdict(rule),
            "state": flatten(states[-1]),
        }
    saved = {
        "scale": states[0].scale,
        **{name: getattr(rule, name) for name in FIELDS},
        "_growth_tracker": states[-1].growth_tracker,
    }
    return saved | ({"pending": [state.scale for state in states[1:]]} if depth else {})


def as_torch_has_it(rule: Rule | Policy, states: States) -> Dict:
    """Return under the names of torch's attributes what a pickled scaler of torch's holds."""
    constants = {f"_{name}": getattr(rule, name) for name in FIELDS if hasattr(rule, name)}
    starts = {"_init_scale": states[0].scale, "_init_growth_tracker": states[-1].growth_tracker}
    return {"_scale": None, "_growth_tracker": None, **starts, **constants}


class MissingKeyError(KeyError):
    """A state dict lacks a key; still a KeyError, as torch's scaler raises."""

    def __str__(self) -> str:
        """Return the message itself; KeyError would print its repr."""
        return str(self.args[0])


def from_dict(
    saved: Dict, rule: Rule | Policy, options: config.Options
) -> tuple[Rule | Policy, States]:
    """Return the rule and the states of `to_dict`; raise before anything is changed.

    Only the newest state's tracker counts: the others are never updated again. Of scales from a deeper scaler, those
    that `depth` can still delay.
    """
    if isinstance(rule, Policy):
        return rule, (_policy_state(saved, rule),)
    if len(saved) == 0:
        raise refusals.EMPTY_STATE_DICT.error()
    missing = [name for name in ("scale", *FIELDS, "_growth_tracker") if name not in saved]
    if missing and not options.exact_torch:
        raise MissingKeyError(
            f"the state dict has no {', '.join(map(repr, missing))}, only {sorted(saved)}: expected all five keys of a "
            "GradScaler's state_dict(); load what it returned"
        )
    saved = {
        name: value.item() if isinstance(value, Tensor) else value for name, value in saved.items()
    }
    rule = config.changed(rule, options, **{name: saved[name] for name in FIELDS})
    scales, tracker = (
        [saved["scale"], *saved.get("pending", ())][-(options.depth + 1) :],
        saved["_growth_tracker"],
    )
    if not options.exact_torch:
        scales = [config.within_bounds("scale", scale, rule) for scale in scales]
        tracker = int(tracker) if isinstance(tracker, float) and tracker.is_integer() else tracker
        tracker = as_int("_growth_tracker", tracker, 0, "load what state_dict() returned")
    return rule, tuple(State(scale, tracker) for scale in scales)


def _policy_state(saved: Dict, policy: Policy) -> PolicyState:
    name = type(policy).__name__
    if saved.get("policy") != name:
        raise ValueError(
            f"policy={saved.get('policy')!r} in the state dict: expected {name!r}; "
            "load it into a scaler made with the policy it was saved from"
        )
    return unflatten(policy, saved.get("state"))


class Forkable(Protocol):
    """An object with locks that the child of a fork must make anew."""

    def after_fork(self) -> None:
        """Make the locks anew: they may be held by threads that are not there."""


alive: weakref.WeakSet[Forkable] = weakref.WeakSet()


def _fork_all() -> None:
    for scaler in list(alive):
        scaler.after_fork()


os.register_at_fork(after_in_child=_fork_all)
