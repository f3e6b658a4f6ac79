"""State dicts of a scaler, and forked processes."""

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

Dict = dict[str, Any]  # numbers, lists of numbers, and strings, for pickle and JSON
States = tuple[Any, ...]  # States or PolicyStates: of the next ticket and every newer one


def to_dict(rule: Rule | Policy, states: States, depth: int) -> Dict:
    """Return torch's five keys and, with depth > 0, ``pending``; for a policy its name, numbers, and state."""
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
    """Return the attributes of a pickled scaler of torch, under torch's names."""
    constants = {f"_{name}": getattr(rule, name) for name in FIELDS if hasattr(rule, name)}
    starts = {"_init_scale": states[0].scale, "_init_growth_tracker": states[-1].growth_tracker}
    return {"_scale": None, "_growth_tracker": None, **starts, **constants}


class MissingKeyError(KeyError):
    """Raised if a state dict lacks a key; a KeyError, as in torch."""

    def __str__(self) -> str:
        """Return the message itself; KeyError would print its repr."""
        return str(self.args[0])


def from_dict(
    saved: Dict, rule: Rule | Policy, options: config.Options
) -> tuple[Rule | Policy, States]:
    """Return the rule and the states of a dict; raise before anything is changed.

    Only the newest state needs a tracker: the others are not updated again. Of more pending scales than `depth` allows,
    the newest are used.
    """
    if isinstance(rule, Policy):
        return rule, (_policy_state(saved, rule),)
    if len(saved) == 0:
        raise refusals.EMPTY_STATE_DICT.error()
    missing = [name for name in ("scale", *FIELDS, "_growth_tracker") if name not in saved]
    if missing and not options.exact_torch:
        raise MissingKeyError(
            f"the state dict has no {', '.join(map(repr, missing))}, only {sorted(saved)}: expected all five keys of a "
            "GradScaler's state_dict(); load an unchanged state dict"
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
        tracker = as_int("_growth_tracker", tracker, 0, "load an unchanged state dict")
    return rule, tuple(State(scale, tracker) for scale in scales)


def _policy_state(saved: Dict, policy: Policy) -> PolicyState:
    name = type(policy).__name__
    if saved.get("policy") != name:
        raise ValueError(
            f"policy={saved.get('policy')!r} in the state dict: expected {name!r}; "
            "load it into a scaler with the policy it was saved from"
        )
    return unflatten(policy, saved.get("state"))


class Forkable(Protocol):
    """Interface of an object with locks that a forked child must recreate."""

    def after_fork(self) -> None:
        """Recreate the locks: threads that do not exist in the child may hold them."""


alive: weakref.WeakSet[Forkable] = weakref.WeakSet()


def _fork_all() -> None:
    for scaler in list(alive):
        scaler.after_fork()


os.register_at_fork(after_in_child=_fork_all)
