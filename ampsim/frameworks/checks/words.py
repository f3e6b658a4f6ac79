"""Adapter of the conformance suite for framework adapters."""

# mypy: ignore-errors

import math


def loss_scale(scaler):  # returns what a loss is multiplied by
    return scaler.scale_loss(1.0)


def iterate(scaler, found_inf):  # returns the scale that it used
    return scaler.step((1.0, math.inf if found_inf else 1.0, 1.0)).used


def run(scaler, found_inf):  # returns the scale before each update, and after the last one
    used = [iterate(scaler, each) for each in [*found_inf, *[False] * delay]]
    return [*used, scaler.get_scale()][delay:]


def applied(
    scaler, gradients, fused=False, unscales=False
):  # these are scaled; returns what the optimizer is given
    return [*(scaler.step(gradients).unscaled or [0.0] * len(gradients))]
