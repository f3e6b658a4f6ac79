"""Runs of Keras loops, on its JAX or torch backend, which change variables in place.

``make`` is given a class to call with the inner optimizer in place of ``LossScaleOptimizer``; the kit sets its scale.
State names what has ``variables``: models and optimizers, which are built.
"""

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np

from ampsim.testing.loop.faults import FaultyRun
from ampsim.testing.loop.loop import LoopError
from ampsim.testing.loop.state import Array

HALF = ("float16", "bfloat16")


class KerasRun(FaultyRun):
    """A run of a loop that makes its optimizer with the class that it was given."""

    def __init__(self, wanted: type | None, scale: float, growth_interval: int) -> None:
        super().__init__(wanted, scale, growth_interval)
        if wanted is not keras.optimizers.LossScaleOptimizer:
            name = getattr(wanted, "__name__", wanted)
            raise LoopError(f"make takes a {name}: expected keras.optimizers.LossScaleOptimizer")
        keras.utils.clear_session(free_memory=False)  # or layers are numbered on
        fallible = importlib.import_module(f"ampsim.testing.loop.backends.{keras.backend.backend()}_faults").fallible
        self._made: list[Any] = []
        made = self._made

        class Fallible(keras.optimizers.LossScaleOptimizer):  # type: ignore[misc]
            def __init__(self, inner_optimizer: Any, *_: Any, **__: Any) -> None:
                super().__init__(inner_optimizer, initial_scale=scale, dynamic_growth_steps=growth_interval)
                made.append(self)

            def scale_loss(self, loss: Any) -> Any:
                return super().scale_loss(fallible(loss))

        self.scaler = Fallible

    @staticmethod
    def seed(number: int) -> None:
        keras.utils.set_random_seed(number)

    def _train(self, data: Any) -> None:
        self.loop.step(data)

    @property
    def scale(self) -> float:
        return float(self.scaler_state()["dynamic_scale"])

    def set_scale(self, scale: float) -> None:
        self._optimizer.dynamic_scale.assign(scale)

    def scaler_state(self) -> Mapping[str, Any]:
        return {each.name: keras.ops.convert_to_numpy(each.value).item() for each in self._own()}

    def unpack(self, value: Any) -> Any:
        if hasattr(value, "variables"):
            own = {id(each) for each in self._own()}
            return {
                f"{place}.{each.name}": keras.ops.convert_to_numpy(each.value).copy()
                for place, each in enumerate(value.variables)
                if id(each) not in own
            }
        return keras.ops.convert_to_numpy(value).copy() if keras.ops.is_tensor(value) else value

    def parameters(self) -> Mapping[str, Array]:
        return {
            f"{key}.{place}.{each.name}": keras.ops.convert_to_numpy(each.value).copy()
            for key, value in self.loop.state.items()
            if isinstance(value, keras.layers.Layer)
            for place, each in enumerate(value.variables)
            if each.trainable
        }

    def held(self, names: Collection[str]) -> Any:
        return {
            key: [np.array(keras.ops.convert_to_numpy(each.value)) for each in self.loop.state[key].variables]
            for key in names
            if self.loads(self.loop.state[key])
        }

    def hold(self, held: Any) -> None:
        for key, arrays in held.items():
            for each, array in zip(self.loop.state[key].variables, arrays, strict=True):
                each.assign(array)

    def loads(self, value: Any) -> bool:
        return hasattr(value, "variables")

    @staticmethod
    def inexact(replay: Callable[[], object], *, tiny: bool) -> str:
        dtype = keras.config.dtype_policy().compute_dtype
        return f"keras.config.dtype_policy() computes in {dtype}" if dtype in HALF else ""

    @property
    def _optimizer(self) -> Any:
        if not self._made or not self._made[-1].built:
            raise LoopError(
                "no optimizer was made with the class that make is given, or it is not built: expected "
                "optimizer = scaled(inner), and optimizer.build(model.trainable_variables)"
            )
        return self._made[-1]

    def _own(self) -> list[Any]:
        return [self._optimizer.dynamic_scale, self._optimizer.step_counter]
