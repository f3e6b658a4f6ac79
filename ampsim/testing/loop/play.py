"""Runs of a loop: from fresh objects, with a given scaler, batch by batch, in the framework that
its maker names.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampsim.testing.loop.backend import Run
from ampsim.testing.loop.loop import Loop, LoopError, blame_user_code
from ampsim.testing.loop.state import same

Make = Callable[..., Any]  # make(scaler) gives a Loop
NEVER = 2**30  # a growth interval that no run reaches
# where the classes live that annotate the parameter of a JAX loop's make
OF_JAX = ("ampsim.jax", "flax", "jmp")
# and those of torch's scaler, whatever its device
OF_TORCH = ("torch.amp", "torch.cuda.amp", "torch.cpu.amp")


@dataclass(frozen=True)
class Batch:
    """A batch with its place in the user's list, from which the seed of the step is made."""

    place: int
    data: Any


def scaler_class(make: Make) -> type | None:
    """Return the class that the first parameter of `make` is annotated with; None for torch's.

    Raises:
        LoopError: The annotation is no class.
    """
    try:
        parameters = inspect.signature(make, eval_str=True).parameters
    except NameError as error:
        raise LoopError(
            f"annotations of make: {error}; expected names that its module imports when it runs"
        ) from error
    except (TypeError, ValueError):  # written in C, without a signature
        return None
    found = next((each.annotation for each in parameters.values()), None)
    if found in (None, inspect.Parameter.empty, Any, object):
        return None
    if not isinstance(found, type):
        raise LoopError(f"make takes a {found}: expected the class of a scaler")
    return None if found.__module__.startswith(OF_TORCH) else found


def run_class(make: Make) -> type[Run]:
    """Return the kind of runs for a maker, and import no other framework than its own."""
    home = getattr(scaler_class(make), "__module__", "")
    if home.startswith(OF_JAX):
        from ampsim.testing.loop.backends.jax import JaxRun

        return JaxRun
    from ampsim.testing.loop.backends.torch import TorchRun

    return TorchRun


def begin(make: Make, scale: float, growth_interval: int = NEVER) -> Run:
    """Make a fresh loop with a scaler at this scale, and look at its state."""
    run = run_class(make)(scaler_class(make), scale, growth_interval)
    run.seed(0)
    with blame_user_code("make"):
        loop = make(run.scaler)
    if not isinstance(loop, Loop):
        raise LoopError(
            f"make returned {type(loop).__name__}: expected a Loop(step, state={{...}})"
        )
    run.loop = loop
    if not isinstance(loop.state, Mapping):
        kind = type(loop.state).__name__
        raise LoopError(
            f"state has type {kind}: expected a mapping of names, as {{'model': model}}"
        )
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
        with blame_user_code(
            f"step, in batch {batch.place} at scale {run.scales[-1]:g},"
        ):
            run.step(data(copy.deepcopy(batch.data)))
        run.verdicts.append(run.found[seen:])
        run.see()
    return run


def play(
    make: Make, batches: Sequence[Batch], scale: float, growth_interval: int = NEVER
) -> Run:
    """Train a fresh loop on batches, from this scale."""
    return advance(begin(make, scale, growth_interval), batches)


def iterations(make: Make, batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    """Cut batches after each one in which the scaler is updated, as a loop may accumulate gradients
    over several.

    A loop that trains and never updates its scaler is cut after each batch.
    """
    run = play(make, batches, 1.0)
    begun = 0
    found: list[Sequence[Batch]] = []
    names = run.parameters().keys() & run.states[0].keys()
    has_trained = any(
        not same(run.states[0][name], run.states[-1].get(name)) for name in names
    )
    is_updated = any(run.verdicts) or not has_trained
    for index, verdicts in enumerate(run.verdicts):
        if verdicts or not is_updated:
            found += [batches[begun : index + 1]]
            begun = index + 1
    return found
