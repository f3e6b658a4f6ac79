"""Runs of JAX loops, which return what they carry: ``step(state, batch)`` gives the state after it.

A mutable module, as flax.nnx has it, may be a part of the state.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.tree_util import keystr, tree_flatten_with_path

from ampsim.testing.loop.backend import NOTHING, Fault, Run, Seeded
from ampsim.testing.loop.backends.jax_faults import FAULTS, make_scale
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.state import State, differences, snapshot

TRAINED = {"params", "model"}  # what a parameter's name holds
OPTIMIZER = "the optimizer"
OPTIMIZERS = re.compile(r"(^|\.)opt(_state|imizer)?\.")


class JaxRun(Run):
    """A run of a loop that was given a loss scale of ampsim, flax or jmp, which it carries in its
    state.

    Its losses go through `FAULTS`, which tells that the scale was used; updates show in the state
    of the scale.
    """

    def __init__(self, wanted: type | None, scale: float, growth_interval: int) -> None:
        super().__init__(wanted, scale, growth_interval)
        self._passes = 0
        if wanted is None:
            raise TypeError(
                "expected a make whose parameter is annotated with a loss scale class"
            )
        try:
            self.scaler = make_scale(wanted, scale, growth_interval)
        except TypeError as error:
            raise LoopError(f"make takes a {error}") from error

    @property
    def used(self) -> bool:
        return self._passes > 0 or bool(self.found)

    def step(self, data: Any) -> None:
        before = self.scaler_arrays()
        scale = self.scale
        passes = FAULTS.passes
        self._train(data)
        self._passes += FAULTS.passes - passes
        if differences(before, self.scaler_arrays()):
            self.found.append(self.scale < scale)

    @contextmanager
    def seeding(self, fault: Fault = Fault()) -> Iterator[Seeded]:  # noqa: B008
        seeded = Seeded()
        FAULTS.plant(fault)
        try:
            yield seeded
        finally:
            FAULTS.fault = NOTHING
            seeded.passes |= {"": FAULTS.passes} if FAULTS.passes else {}

    def _train(self, data: Any) -> None:
        after = self.loop.step(self.loop.state, data)
        state, *logged = (
            after if isinstance(after, tuple) and len(after) == 2 else (after,)
        )
        if not isinstance(state, Mapping):
            raise LoopError(
                f"step returned {type(state).__name__}: expected the new state, a mapping like Loop.state, or the new "
                "state and a mapping of logged values"
            )
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]
        self.loop = replace(
            self.loop,
            state=state,
            logged=(lambda: logged[0]) if logged else self.loop.logged,
        )

    @property
    def scale(self) -> float:
        return float(getattr(self._carried(), self._name))

    def set_scale(self, scale: float) -> None:
        def change(value: Any) -> Any:
            if not self._is_scaler(value):
                return value
            changed = {
                self._name: jax.numpy.full_like(getattr(value, self._name), scale)
            }
            return replace(value, **changed)

        self.loop = replace(
            self.loop,
            state=jax.tree.map(change, self.loop.state, is_leaf=self._is_scaler),
        )

    def scaler_state(self) -> Mapping[str, Any]:
        leaves = tree_flatten_with_path(self._carried())[0]
        return {
            keystr(path, simple=True, separator="."): np.array(leaf)
            for path, leaf in leaves
        }

    def unpack(self, value: Any) -> Any:
        if self._is_scaler(value):
            return {}
        if isinstance(value, Array) and jax.numpy.issubdtype(
            value.dtype, jax.dtypes.prng_key
        ):
            return np.array(jax.random.key_data(value))
        leaves = tree_flatten_with_path(value, is_leaf=self._is_scaler)[0]
        if [path for path, _ in leaves] == [()]:
            return value
        return {keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

    def parameters(self) -> State:
        state = snapshot(self.loop.state, self.unpack, {})
        return {
            name: array
            for name, array in state.items()
            if TRAINED & {*name.split(".")}
            and jax.numpy.issubdtype(array.dtype, jax.numpy.inexact)
        }

    def owners(self) -> Mapping[str, str]:
        """Return the names of what is in an optimizer's state, by its name or by optax's types: all
        as of one.
        """
        leaves = tree_flatten_with_path(dict(self.loop.state), is_leaf=_is_of_optax)[0]
        of = tuple(
            f"{keystr(path, simple=True, separator='.')}."
            for path, leaf in leaves
            if _is_of_optax(leaf)
        )
        return {
            name: OPTIMIZER
            for name in self.states[-1]
            if name.startswith(of) or OPTIMIZERS.search(name)
        }

    def save(self) -> Any:
        return self.loop.save(self.loop.state) if self.loop.save else super().save()

    def load(self, checkpoint: Any) -> None:
        if self.loop.load is None:
            return super().load(checkpoint)
        state = self.loop.load(checkpoint)
        if not isinstance(state, Mapping):
            raise LoopError(
                f"load returned {type(state).__name__}: expected the state, a mapping like Loop.state"
            )
        self.loop = replace(self.loop, state=state)

    def loads(self, value: Any) -> bool:
        return True

    def held(self, names: Collection[str]) -> Any:
        return {key: jax.tree.leaves(self.loop.state[key]) for key in names}

    def hold(self, held: Any) -> None:
        state = dict(self.loop.state)
        for key, leaves in held.items():
            state[key] = jax.tree.unflatten(jax.tree.structure(state[key]), leaves)
        if held:
            self.loop = replace(self.loop, state=state)

    @property
    def _name(self) -> str:
        return next(
            each.name
            for each in fields(self.scaler)
            if each.name in ("loss_scale", "scale")
        )

    def _is_scaler(self, value: Any) -> bool:
        return isinstance(value, type(self.scaler))

    def _carried(self) -> Any:
        """Return the scaler in the state."""
        found = [
            x
            for x in jax.tree.leaves(self.loop.state, is_leaf=self._is_scaler)
            if self._is_scaler(x)
        ]
        if not found:
            raise LoopError(
                "the given scaler is not in state: expected it there, and expected step to update it"
            )
        return found[0]


def _is_of_optax(value: Any) -> bool:
    return (
        isinstance(value, tuple) and type(value).__module__.partition(".")[0] == "optax"
    )
