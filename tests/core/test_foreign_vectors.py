"""What other projects' own tests say of their scalers, as numbers: the dialects say the same.

A history has a letter per update, ``x`` an overflow and ``.`` a clean one. After each stands the
scale that the project's test expects, or None where it expects none. The files were read, not run;
a row names the test's function.
"""

import numpy as np
import pytest

from ampsim import dialects, replay

TOP = float(np.finfo(np.float32).max)
CAPPED = [TOP / 4, TOP / 2, TOP / 2, TOP, TOP, TOP]

# tensorflow 2.2 python/training/experimental/loss_scale_test.py; tf_keras took the class over
TF = (
    "tf.compat.v1.mixed_precision.DynamicLossScale",
    "tf_keras._DynamicLossScaleState",
)
TENSORFLOW = {
    "increase": ({}, "......", [1, 2, 2, 4, 4, 8]),
    "keep_increasing_until_capped": ({"init_scale": TOP / 4}, "......", CAPPED),
    "keep_decreasing_until_one": ({"init_scale": 16}, "xxxxxx", [8, 4, 2, 1, 1, 1]),
    "nan_clear_good_step": ({}, "...x.", [1, 2, 2, 1, 1]),
    "nondefault_multiplier": (
        {"init_scale": 4, "factor": 3},
        "..x..",
        [4, 12, 4, 4, 12],
    ),
    "random_mix": ({"init_scale": 4}, "x...x.x...x", [2, 2, 4, 4, 2, 2, 1, 1, 2, 2, 1]),
}

# tensorflow 1.15 contrib/mixed_precision/python/loss_scale_manager_test.py
CONTRIB = {
    "increase_every_n_steps": ({}, "......", [1, 2, 2, 4, 4, 8]),
    "keep_decreasing_until_one": ({"init_scale": 16}, "xxxxxxxxxx", [16, 8, 8, 4, 4, 2, 2, 1, 1, 1]),
    "incr_bad_step_clear_good_step": ({}, "...x.", [1, 2, 2, 2, 2]),
    "incr_good_step_does_not_clear_bad_step": ({}, "...x.x", [1, 2, 2, 2, 2, 1]),
    "trigger_loss_scale_update_each_step": (
        {"growth_interval": 1, "decr_every_n_nan_or_inf": 1}, "...x..", [2, 4, 8, 4, 8, 16],
    ),
    "random_mix": ({"init_scale": 4}, "xx...x.x...x", [4, 2, 2, 4, 4, 4, 4, 2, 2, 4, 4, 4]),
}  # fmt: skip

# deepspeed tests/unit/runtime/half_precision/test_dynamic_loss_scale.py @ 7f0482c
NO_OVERFLOW = (
    {"init_scale": 256},
    "..........",
    [256 * 2 ** (i // 2) for i in range(10)],
)
SOME_OVERFLOW = ({"init_scale": 256}, "xx...x", [None, 64, None, None, 128, 64])
FUSED = {
    "no_overflow": NO_OVERFLOW,
    "all_overflow": ({"init_scale": 16}, "xxxxxxxx", [8, 4, 2, 1, 1, 1, 1, 1]),
    "some_overflow": SOME_OVERFLOW,
}
UNFUSED = FUSED | {
    "all_overflow": (
        {"init_scale": 16, "min_scale": 2},
        "xxxxxxxx",
        [8, 4, 2, 2, 2, 2, 2, 2],
    )
}
# Its optimizers of stage 0 have a hysteresis since 0.19.8 was released; until then the scaler of
# the other stages has.
HYSTERESIS = {
    "hysteresis": ({"init_scale": 256, "delayed_shift": 3}, "xxxx", [256, 256, 128, 64]),
    "consecutive_hysteresis": (
        {"init_scale": 256, "delayed_shift": 2, "consecutive_hysteresis": True}, "x.x.x.x.", [*[None] * 7, 256],
    ),
}  # fmt: skip

# keras/src/optimizers/loss_scale_optimizer_test.py @ 1937d48
KERAS = {
    "downscaling": ({"init_scale": 400}, "xxxx", [None, None, None, 25]),
    "upscaling": (
        {"init_scale": 2, "growth_interval": 2},
        "........",
        [*[None] * 7, 32],
    ),
}


def halved(factor: float, least: float) -> list[float]:
    """Return what jmp expects of a hundred overflows, to its own tolerance."""
    return [pytest.approx(max(least, 10 / factor**n), rel=1e-5) for n in range(1, 101)]


# jmp/_src/loss_scale_test.py @ 107217e
JMP = {
    "increases_on_finite(20, 2)": ({"growth_interval": 20, "factor": 2}, "." * 20, [*[10] * 19, 20]),
    "increases_on_finite(30, 3)": ({"growth_interval": 30, "factor": 3}, "." * 30, [*[10] * 29, 30]),
    "reduce_on_non_finite(20, 2)": ({"growth_interval": 20, "factor": 2}, "x" * 100, halved(2, 1)),
    "reduce_on_non_finite(30, 3)": ({"growth_interval": 30, "factor": 3}, "x" * 100, halved(3, 1)),
    **{
        f"explicit_min_loss_scale({interval}, {factor}, {least})": (
            {"growth_interval": interval, "factor": factor, "min_loss_scale": least}, "x" * 100, halved(factor, least),
        )
        for interval, factor, least in ((20, 2, 0.3125), (30, 3, 0.37), (5, 2, 0.0))
    },
}  # fmt: skip

SOURCES = [
    *((name, {"init_scale": 1, "growth_interval": 2}, TENSORFLOW) for name in TF),
    ("tf.contrib.ExponentialUpdateLossScaleManager",
     {"init_scale": 1, "growth_interval": 2, "growth_factor": 2, "backoff_factor": 0.5,
     "decr_every_n_nan_or_inf": 2}, CONTRIB),
    ("deepspeed.FP16_Optimizer", {"growth_interval": 2}, FUSED),
    ("deepspeed.FP16_UnfusedOptimizer", {"growth_interval": 2}, UNFUSED),
    ("deepspeed.DynamicLossScaler", {"growth_interval": 1000}, HYSTERESIS),
    *((f"keras.LossScaleOptimizer[{backend}]", {}, KERAS) for backend in ("torch", "tensorflow", "jax")),
    ("jmp.DynamicLossScale", {"init_scale": 10}, JMP),
]  # fmt: skip
CASES = [
    pytest.param(name, usual | given, history, scales, id=f"{name} {test}")
    for name, usual, vectors in SOURCES
    for test, (given, history, scales) in vectors.items()
]


@pytest.mark.parametrize(("name", "parameters", "history", "expected"), CASES)
def test_dialect_matches_framework_test_vectors(
    name: str, parameters: dict[str, object], history: str, expected: list[float | None]
) -> None:
    scales = replay(
        dialects.get(name, **parameters), [letter == "x" for letter in history]
    ).tolist()
    known = [
        scale if wanted is not None else None
        for scale, wanted in zip(scales, expected, strict=True)
    ]
    assert known == expected
