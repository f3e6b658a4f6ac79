"""Keras 3 on JAX or torch: ``train_on_batch`` of a compiled model, whose optimizer is a ``LossScaleOptimizer``."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")  # its own default is TensorFlow

import keras

from ampsim.testing.loop.adapters import numpy_tiny as tiny
from ampsim.testing.loop.loop import Loop

batches = tiny.batches()


def make(scaled: type[keras.optimizers.LossScaleOptimizer]) -> Loop:
    """Make a loop with an average of the weights and clipping, both inside of the optimizer."""
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = scaled(keras.optimizers.Adam(0.01, global_clipnorm=0.1, use_ema=True))
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, "mse")
    logs: dict[str, float] = {}

    def step(batch: tiny.Batch) -> None:
        logs.update(model.train_on_batch(*batch, return_dict=True))

    return Loop(step, {"model": model, "optimizer": optimizer}, logged=lambda: logs)
