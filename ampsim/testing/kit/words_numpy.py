"""The same words in numpy, where torch is not installed: for a scaler that works on arrays."""

# mypy: ignore-errors

import math

import numpy as np


class Parameter:
    def __init__(self):
        self.value, self.momentum, self.grad = np.ones(3, np.float32), np.zeros(3, np.float32), None


class SGD:
    def __init__(self, params):
        self.param_groups = [{"params": params}]

    def step(self):
        for each in self.param_groups[0]["params"]:
            each.momentum = np.float32(0.9) * each.momentum + each.grad
            each.value = each.value - np.float32(0.125) * each.momentum


param = Parameter()
optimizer = SGD([param])


def loss_scale(scaler):  # returns what a loss is multiplied by
    return float(scaler.scale(np.float32(1.0)))


def iterate(scaler, found_inf):  # returns the scale that it used
    scale = float(scaler.scale(np.float32(1.0)))
    param.grad = np.array([scale, scale, math.inf if found_inf else scale], np.float32)
    scaler.step(optimizer)
    scaler.update()
    return scale


def held():
    return param.value.tobytes() + param.momentum.tobytes()


params = [Parameter() for _ in range(3)]
optimizers = [SGD([each]) for each in params]


def iterate_all(scaler, overflows):  # one flag per optimizer; returns the scale that it used
    scale = float(scaler.scale(np.float32(1.0)))
    for each, overflow in zip(params, overflows):
        each.grad = np.array([scale, scale, math.inf if overflow else scale], np.float32)
    for each in optimizers:
        scaler.step(each)
    scaler.update()
    return scale
