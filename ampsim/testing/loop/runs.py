"""Runs of a loop: from fresh objects, with the kit's scaler, batch by batch, in the framework that its maker names."""

import copy
import importlib
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args, get_origin

from ampsim.testing.loop.loop import Loop, LoopError, blame_user_code
from ampsim.testing.loop.run import Run

Make = Callable[
    ..., Any
]  # make(scaler), or make(scaler, group=None), gives a Loop, or what has its attributes
NEVER = 2**30  # a growth interval that no run reaches
BACKENDS = {  # where the class lives that make's parameter is annotated with -> the runs that give it one
    "ampsim.jax": "jax:JaxRun",
    "flax": "jax:JaxRun",
    "jmp": "jax:JaxRun",
}
DEFAULT = "torch:TorchRun"


@dataclass(frozen=True)
class Batch:
    """A batch with its place in the user's list, from which the seed of the step is made."""

    place: int
    data: Any


def scaler_class(make: Make) -> type | None:
    """Return the class that the first parameter of `make` is annotated with, or ``type[...]`` of; None for none."""
    try:
        parameters = inspect.signature(make, eval_str=True).parameters
    except (NameError, TypeError, ValueError):
        return None
    found = next((each.annotation for each in parameters.values()), None)
    if get_origin(found) is type:
        (found,) = get_args(found)
    return found if isinstance(found, type) else None


def run_class(make: Make) -> type[Run]:
    """Return the kind of runs for a maker, and import no other framework than its own."""
    home = getattr(scaler_class(make), "__module__", "")
    module, _, name = next(
        (backend for top, backend in BACKENDS.items() if home == top or home.startswith(f"{top}.")),
        DEFAULT,
    ).partition(":")
    return getattr(importlib.import_module(f"ampsim.testing.loop.backends.{module}"), name)  # type: ignore[no-any-return]


def begin(make: Make, scale: float, growth_interval: int = NEVER, **group: Any) -> Run:
    """Make a fresh loop with a scaler at this scale, on a rank with its ``group=``, and look at its state."""
    run = run_class(make)(scaler_class(make), scale, growth_interval, **group)
    run.seed(0)
    with blame_user_code("make"):
        loop = make(run.scaler, **group)
    if not (hasattr(loop, "step") and hasattr(loop, "state")):
        raise LoopError(
            f"make returned {type(loop).__name__}: expected a Loop(step, state={{...}})"
        )
    given: dict[str, Any] = {each.name: getattr(loop, each.name, None) for each in fields(Loop)}
    run.loop = run.named(Loop(**given))
    run.see(first=True)
    return run


def advance(
    run: Run, batches: Iterable[Batch], data: Callable[[Any], Any] = lambda batch: batch
) -> Run:
    """Train on batches, each under a seed of its own, and look at the state after each one."""
    for batch in batches:
        seen = len(run.found)
        run.scales.append(run.scale)
        run.seed(1 + batch.place)
        with blame_user_code(f"step, in batch {batch.place} at scale {run.scales[-1]:g},"):
            run.step(data(copy.deepcopy(batch.data)))
        run.verdicts.append(run.found[seen:])
        run.see()
    return run


def play(make: Make, batches: Sequence[Batch], scale: float, growth_interval: int = NEVER) -> Run:
    """Train a fresh loop on batches, from this scale."""
    return advance(begin(make, scale, growth_interval), batches)


def iterations(make: Make, batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    """Cut batches after each one in which the scaler is updated, as a loop may accumulate gradients over several."""
    of, known, found = _LAST[0] if _LAST else (None, (), [])
    if of is make and len(known) == len(batches) and all(map(operator.is_, known, batches)):
        return found
    _LAST[:] = [(make, [*batches], _iterations(make, batches))]
    return _LAST[0][-1]


_LAST: list[
    tuple[Make, Sequence[Batch], list[Sequence[Batch]]]
] = []  # what was cut last: each check asks for it


def _iterations(make: Make, batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    run, begun = play(make, batches, 1.0), 0
    found: list[Sequence[Batch]] = []
    for index, verdicts in enumerate(run.verdicts):
        if verdicts:
            found += [batches[begun : index + 1]]
            begun = index + 1
    return found
