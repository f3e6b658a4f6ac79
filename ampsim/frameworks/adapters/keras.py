"""keras.optimizers.LossScaleOptimizer on JAX; one process can have one of Keras' backends."""

import os
from collections.abc import Sequence
from typing import Any

from ampsim.frameworks.adapter import Adapter, Step


class KerasJax(Adapter):
    """Keras' scaler around SGD, by stateless_apply() under jit, as fit() calls it."""

    name = "keras-jax"
    requirement = "keras==3.15.1"
    target = "keras.optimizers.LossScaleOptimizer"
    source = "https://github.com/keras-team/keras/blob/v3.15.1/keras/src/optimizers/loss_scale_optimizer.py#L16"
    dialect = "keras.LossScaleOptimizer[jax]"
    constants = {
        "initial_scale": "init_scale",
        "dynamic_growth_steps": "growth_interval",
    }

    def start(self, **constants: Any) -> None:
        os.environ["KERAS_BACKEND"] = "jax"
        self._given = constants
        self._make(1)

    def _make(self, size: int) -> None:
        import jax
        import keras

        self._param = keras.Variable([0.0] * size)
        self.scaler: Any = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), **self._given
        )
        self.scaler.build([self._param])
        self._step = jax.jit(self.scaler.stateless_apply)

    def get_scale(self) -> float:
        return float(self.scaler.dynamic_scale)

    def scale_loss(self, loss: float) -> float:
        return float(self.scaler.scale_loss(loss))

    def step(self, scaled: Sequence[float]) -> Step:
        import keras

        # An optimizer is built for parameters of one shape.
        if len(scaled) != self._param.shape[0]:
            state = self.state_dict()
            self._make(len(scaled))
            self.load_state_dict(state)
        used = self.get_scale()
        before = int(self.scaler.iterations)
        self._param.assign(keras.ops.zeros(len(scaled)))
        self._apply(keras.ops.convert_to_tensor(list(scaled), "float32"))
        stepped = int(self.scaler.iterations) > before
        unscaled = None
        if stepped:  # SGD with a learning rate of 1 has subtracted them from zeros
            moved = keras.ops.convert_to_numpy(self._param)
            unscaled = tuple(map(float, -moved))
        return Step(used, stepped, unscaled, self.get_scale())

    def _apply(self, gradients: Any) -> None:
        (param,), state = self._step(
            [v.value for v in self.scaler.variables], [gradients], [self._param.value]
        )
        self._param.assign(param)
        for variable, value in zip(self.scaler.variables, state, strict=True):
            variable.assign(value)

    def state_dict(self) -> object:
        store: dict[str, Any] = {}
        self.scaler.save_own_variables(store)
        return {name: float(value) for name, value in store.items()}

    def load_state_dict(self, state: object) -> None:
        self.scaler.load_own_variables(state)
