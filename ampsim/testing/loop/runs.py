"""Runs of a loop: from fresh objects, with the kit's scaler, batch by batch, with an inf planted where a law asks."""

import copy
import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampsim.testing.loop.loop import Loop, LoopError
from ampsim.testing.loop.state import State, snapshot

Make = Callable[[Any], Loop]
NEVER = 2**30  # a growth interval that no run reaches


class Scaler(torch.amp.GradScaler):
    """torch's scaler, which also notes whether it was used and which updates found an inf."""

    def __init__(self, scale: float, growth_interval: int = NEVER) -> None:
        super().__init__("cpu", init_scale=scale, growth_interval=growth_interval)
        self.verdicts: list[bool] = []
        self.used = False

    def scale(self, outputs: Any) -> Any:
        self.used = True
        return super().scale(outputs)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        self.used = True
        found = [inf for each in self._per_optimizer_states.values() for inf in each["found_inf_per_device"].values()]
        self.verdicts.append(any(bool(inf) for inf in found))
        super().update(new_scale)


@dataclass
class Run:
    """A run of a fresh loop, as far as it has come.

    Attributes:
        states: before the first batch, then after each one.
        scales: in force at the begin of each batch.
        verdicts: for each batch, one per update in it: whether an inf was found.
        scalers: the scaler's state dict, before the first batch and after each one, as a state.
    """

    loop: Loop
    scaler: Scaler
    states: list[State]
    scales: list[float] = field(default_factory=list)
    verdicts: list[list[bool]] = field(default_factory=list)
    scalers: list[State] = field(default_factory=list)

    def see(self, *, first: bool = False) -> None:
        """Look at all that the loop and the scaler carry now."""
        with told("state or logged"):
            self.states.append(snapshot(Loop(self.loop.step, self.loop.state) if first else self.loop))
        self.scalers.append({f"scaler.{key}": np.array(value) for key, value in self.scaler.state_dict().items()})

    def overflows(self, step: int) -> bool:
        """Return whether an update in this step found an inf."""
        return any(self.verdicts[step])


@dataclass(frozen=True)
class Batch:
    """A batch with its place in the user's list, from which the seed of the step is made."""

    place: int
    data: Any


def begin(make: Make, scaler: Scaler) -> Run:
    """Make a fresh loop with a scaler and look at its state."""
    _seed(0)
    with told("make"):
        loop = make(scaler)
    if not isinstance(loop, Loop):
        raise LoopError(f"make returned {type(loop).__name__}, expected a Loop(step, state={{...}})")
    run = Run(loop, scaler, [])
    run.see(first=True)  # nothing is logged before the first batch
    return run


def advance(run: Run, batches: Iterable[Batch], data: Callable[[Any], Any] = lambda batch: batch) -> Run:
    """Train on batches, each under a seed of its own, and look at the state after each one."""
    for batch in batches:
        seen = len(run.scaler.verdicts)
        run.scales.append(run.scaler.get_scale())
        _seed(1 + batch.place)
        with told(f"step, in batch {batch.place} at scale {run.scales[-1]:g},"):
            run.loop.step(data(copy.deepcopy(batch.data)))
        run.verdicts.append(run.scaler.verdicts[seen:])
        run.see()
    return run


def play(make: Make, batches: Sequence[Batch], scale: float, growth_interval: int = NEVER) -> Run:
    """Train a fresh loop on batches, from this scale."""
    return advance(begin(make, Scaler(scale, growth_interval)), batches)


def iterations(make: Make, batches: Sequence[Batch]) -> list[Sequence[Batch]]:
    """Cut batches after each one in which the scaler is updated, as a loop may accumulate gradients over several."""
    run, begun = play(make, batches, 1.0), 0
    found: list[Sequence[Batch]] = []
    for index, verdicts in enumerate(run.verdicts):
        if verdicts:
            found += [batches[begun : index + 1]]
            begun = index + 1
    return found


def parameters(loop: Loop) -> Mapping[str, Tensor]:
    """Return the parameters that the loop trains, by name: of modules and optimizers in its state."""
    found: dict[int, tuple[str, Tensor]] = {}
    for key, value in loop.state.items():
        if isinstance(value, nn.Module):
            for name, param in value.named_parameters():
                found.setdefault(id(param), (f"{key}.{name}", param))
    for key, value in loop.state.items():
        for index, group in enumerate(getattr(value, "param_groups", ())):
            for place, param in enumerate(group["params"]):
                found.setdefault(id(param), (f"{key}.param_groups.{index}.params.{place}", param))
    return {name: param for name, param in found.values() if param.requires_grad}


@contextmanager
def hooked(loop: Loop, seen: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call `seen` with a parameter's name and gradient, each time that a backward pass has added to it."""
    handles = [
        param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda p, name=name: seen(name, p.grad)
        )
        for name, param in parameters(loop).items()
        if param.is_leaf
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)  # noqa: NPY002 - loops draw from it
    random.seed(number)


@contextmanager
def told(where: str) -> Iterator[None]:
    """Say where an exception of the user's code was raised; its own traceback stays above as the cause."""
    try:
        yield
    except LoopError:
        raise
    except Exception as error:
        theirs = [call for call in traceback.extract_tb(error.__traceback__) if _is_theirs(call.filename)]
        at = f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""
        raise LoopError(f"{where} raised {type(error).__name__}: {error}{at}") from error


def _is_theirs(filename: str) -> bool:
    return "site-packages" not in filename and Path(__file__).parent not in Path(filename).parents
