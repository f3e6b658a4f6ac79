"""Resuming is invisible."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ampsim.testing.loop.law import SAVING, Broken, NotAsked, Verdict, law
from ampsim.testing.loop.loop import Loop
from ampsim.testing.loop.runs import Batch, Make, Run, Scaler, advance, begin, iterations, told
from ampsim.testing.loop.state import LOGGED, State, differences

SCALE, GROWTH_INTERVAL = 2.0**8, 3  # so that a scaler which is not saved shows in its tracker or its scale


@law(issue="https://github.com/huggingface/accelerate/issues/4289")
def resume_is_invisible(make: Make, batches: Sequence[Batch]) -> Verdict:
    """Save, make all anew, load and go on leaves what going on leaves, the scaler included; saving changes nothing.

    Exact because the same program computes from the same state; each batch has its own seed.
    """
    groups = iterations(make, batches)
    if len(groups) < 2:
        return NotAsked("fewer than 2 batches after which the scaler is updated")
    before, after = ([b for group in part for b in group] for part in _halves(groups))
    run = advance(begin(make, Scaler(SCALE, GROWTH_INTERVAL)), before)
    with told("save"):
        checkpoint = copy.deepcopy(_save(run))
    run.see()
    if found := differences(*(_carried(run, index) for index in (-2, -1))):
        return Broken(f"after saving, after batch {before[-1].place}", len(before) - 1, found, pattern=SAVING)
    other = begin(make, Scaler(SCALE, GROWTH_INTERVAL))
    with told("load"):
        _load(other, checkpoint)
    other.see(first=True)
    if found := differences(_carried(run, -1), _carried(other, -1)):
        if lost := [each.name for each in found if _is_left_out(run.loop, each.name)]:
            return NotAsked(f"{lost[0]} can be read but not loaded: give Loop save= and load=")
        return Broken(f"after loading what was saved after batch {before[-1].place}", len(before) - 1, found)
    for step, batch in enumerate(after):
        for each in (run, other):
            advance(each, [batch])
        if found := differences(run.states[-1] | run.scalers[-1], other.states[-1] | other.scalers[-1]):
            if not run.loop.load:
                return NotAsked(f"training carries more than state names, or Loop needs save= and load=: {found[0]}")
            return Broken(f"after batch {batch.place}, having loaded", len(before) + step, found)
    return None


def _halves(groups: list[Sequence[Batch]]) -> tuple[list[Sequence[Batch]], list[Sequence[Batch]]]:
    return groups[: len(groups) // 2], groups[len(groups) // 2 :]


def _carried(run: Run, index: int) -> State:
    kept = {name: array for name, array in run.states[index].items() if not name.startswith(f"{LOGGED}.")}
    return kept | run.scalers[index]


def _save(run: Run) -> Any:
    if run.loop.save:
        return run.loop.save()
    return {"scaler": run.scaler.state_dict()} | {
        f"state.{key}": value.state_dict() if hasattr(value, "state_dict") else value
        for key, value in run.loop.state.items()
        if _loads(value)
    }


def _load(run: Run, checkpoint: Any) -> None:
    if run.loop.load:
        run.loop.load(checkpoint)
        return
    run.scaler.load_state_dict(checkpoint["scaler"])
    for key, value in run.loop.state.items():
        if hasattr(value, "load_state_dict"):
            value.load_state_dict(checkpoint[f"state.{key}"])
        elif _loads(value):
            with torch.no_grad():
                value[...] = checkpoint[f"state.{key}"]


def _loads(value: Any) -> bool:
    return hasattr(value, "load_state_dict") or isinstance(value, (torch.Tensor, np.ndarray))


def _is_left_out(loop: Loop, name: str) -> bool:
    """Return whether the kit has no way to load what this array was read from."""
    if loop.load:
        return False
    return any(name == key or name.startswith(f"{key}.") for key, value in loop.state.items() if not _loads(value))
