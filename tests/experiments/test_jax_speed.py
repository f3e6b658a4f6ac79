"""Every arm makes the same step and the ratios are what the times give; nothing here asserts a time."""

import importlib

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("flax")
pytest.importorskip("jmp")
jax_speed = importlib.import_module("experiments.jax_speed")


def test_every_arm_makes_the_same_step_and_skips_a_poisoned_one() -> None:
    trial = jax_speed.Trial("1x8", jax_speed.SMOKE, 0)
    x = trial.x
    for poison, scale in ((1.0, 1024.0), (float("inf"), 512.0)):
        trial.x = x * poison
        before = jax.tree.map(np.asarray, trial.carry["ours"][:2])
        for arm in jax_speed.ARMS:
            trial.once(arm)
        expected = jax.tree.map(np.asarray, trial.carry["flax"][:2])
        for arm in ("ours", "ours, value_and_grad", "jmp"):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9), trial.carry[arm][:2], expected
            )
        same = jax.tree.map(np.array_equal, before, jax.tree.map(np.asarray, trial.carry["ours"][:2]))
        assert all(jax.tree.leaves(same)) == (poison != 1.0)
        scales = [float(getattr(trial.carry[arm][2], name)) for arm, name in
                  (("ours", "loss_scale"), ("flax", "scale"), ("jmp", "loss_scale"))]  # fmt: skip
        assert scales == [scale] * 3


def test_the_ratios_are_ours_over_theirs() -> None:
    medians = {"ours": [2.0, 3.0], "ours, value_and_grad": [1.0, 1.0], "flax": [2.0, 4.0], "jmp": [4.0, 2.0]}
    assert jax_speed.summary(medians)["ratios"] == {"flax": [0.5, 0.25], "jmp": [0.5, 1.5]}
