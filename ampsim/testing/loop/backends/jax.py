"""Runs of JAX loops, which return what they carry: ``step(state, batch)`` gives the state after it.

A mutable module, as flax.nnx has it, may be a part of the state.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.tree_util import keystr, tree_flatten_with_path

from ampsim.testing.loop.backends.jax_exact import watched
from ampsim.testing.loop.backends.jax_faults import make_scale
from ampsim.testing.loop.faults import FaultyRun
from ampsim.testing.loop.loop import Loop, LoopError
from ampsim.testing.loop.state import State, snapshot

TRAINED = {"params", "model"}  # what a parameter's name holds


class JaxRun(FaultyRun):
    """A run of a loop that was given a loss scale of ampsim, flax or jmp, which it carries in its state."""

    traces = False  # instead of running a step: enough to see the types of numbers, and quick

    def __init__(self, wanted: type | None, scale: float, growth_interval: int) -> None:
        super().__init__(wanted, scale, growth_interval)
        if wanted is None:
            raise TypeError("expected a maker whose parameter is annotated with a class of loss scales")
        try:
            self.scaler = make_scale(wanted, scale, growth_interval)
        except TypeError as error:
            raise LoopError(f"make takes a {error}") from error

    def _train(self, data: Any) -> None:
        if self.traces:
            with suppress(TypeError):  # of a step that cannot be traced as a whole
                jax.eval_shape(lambda *args: self.loop.step(*args), self.loop.state, data)  # a new one is traced anew
                return
        after = self.loop.step(self.loop.state, data)
        state, *logged = after if isinstance(after, tuple) and len(after) == 2 else (after,)
        if not isinstance(state, Mapping):
            raise LoopError(
                f"step returned {type(state).__name__}: expected the state after it, a mapping as Loop's, or that and "
                "a mapping of what is logged"
            )
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]
        self.loop = replace(self.loop, state=state, logged=(lambda: logged[0]) if logged else self.loop.logged)

    @property
    def scale(self) -> float:
        return float(getattr(self._carried(), self._name))

    def set_scale(self, scale: float) -> None:
        def change(value: Any) -> Any:
            if not self._is_scaler(value):
                return value
            changed = {self._name: jax.numpy.full_like(getattr(value, self._name), scale)}
            return replace(value, **changed)

        self.loop = replace(self.loop, state=jax.tree.map(change, self.loop.state, is_leaf=self._is_scaler))

    def scaler_state(self) -> Mapping[str, Any]:
        leaves = tree_flatten_with_path(self._carried())[0]
        return {keystr(path, simple=True, separator="."): np.array(leaf) for path, leaf in leaves}

    def unpack(self, value: Any) -> Any:
        if self._is_scaler(value):
            return {}
        if isinstance(value, Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            return np.array(jax.random.key_data(value))
        leaves = tree_flatten_with_path(value, is_leaf=self._is_scaler)[0]
        if [path for path, _ in leaves] == [()]:
            return value
        return {keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

    def parameters(self) -> State:
        state = snapshot(Loop(self.loop.step, self.loop.state), self.unpack)
        return {
            name: array
            for name, array in state.items()
            if TRAINED & {*name.split(".")} and jax.numpy.issubdtype(array.dtype, jax.numpy.inexact)
        }

    def save(self) -> Any:
        if self.loop.save:
            return self.loop.save(self.loop.state)
        return jax.tree.leaves(self.loop.state)

    def load(self, checkpoint: Any) -> None:
        if self.loop.load:
            state = self.loop.load(checkpoint)
            if not isinstance(state, Mapping):
                raise LoopError(f"load returned {type(state).__name__}: expected the state, a mapping as Loop's")
        else:
            state = jax.tree.unflatten(jax.tree.structure(self.loop.state), checkpoint)
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

    @staticmethod
    def inexact(replay: Callable[[], object], *, tiny: bool) -> str:
        with jax.disable_jit(), watched(values=tiny) as seen:
            JaxRun.traces = not tiny
            try:
                replay()
            finally:
                JaxRun.traces = False
        return seen.half or seen.tiny

    @property
    def _name(self) -> str:
        return next(each.name for each in fields(self.scaler) if each.name in ("loss_scale", "scale"))

    def _is_scaler(self, value: Any) -> bool:
        return isinstance(value, type(self.scaler))

    def _carried(self) -> Any:
        """Return the scaler in the state."""
        found = [x for x in jax.tree.leaves(self.loop.state, is_leaf=self._is_scaler) if self._is_scaler(x)]
        if not found:
            raise LoopError("the scaler that make is given is not in state: expected it there, and step to update it")
        return found[0]
