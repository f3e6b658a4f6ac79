"""Sentences that were false of logs of many programs: each with what has to be said instead."""

import pytest

from tests.diagnose.said import BAR, hold

CASES = {
    "the lines are of all steps, also where the run was started again": (
        [f"step: {at}, loss: {9 - at / 99}, loss_scale: 8" for at in (0, 500, 900, 20)],
        ["4 rows"],
        [],
    ),
    "what a program says of its scale is not said to be another matter": (
        ["step: 1, loss: 2.0", "RuntimeError: grad_scale is too small, exiting: 2.3e-10"],
        ["as the program says itself", "scale too small"],
        ["it is not the loss scale", "minimum"],
    ),
    "icefall's note is its end": (
        ["step: 1, loss: 2.0", "  If you see this error, it means that the gradient scale is too small."],
        ["icefall gives up"],
        [],
    ),
    "an object of many lines is read": (
        [
            *("{", ' "loss": 14577.9,', ' "grad_norm": NaN,', ' "memory": "2 GB",', ' "step": 10', "},"),
            *("{", ' "loss": 0.0,', ' "grad_norm": NaN,', ' "step": 20', "}"),
        ],
        ["2 rows", "LOSS 0 BESIDE THE NORM"],
        ["no loss scale, skip count"],
    ),
    "a list of an epoch and its steps is no step": (
        [f'DLLL {{"type": "LOG", "step": "PARAMETER", "data": {{"loss_scale": {2.0 ** (9 - at)}}}}}' for at in range(3)]
        + [f'DLLL {{"type": "LOG", "step": [0, 0], "data": {{"step_loss": 3.{9 - at}}}}}' for at in range(4)],
        ["7 rows", "Skipped: at least 3 steps"],
        [],
    ),
    "an iteration behind a loss is none": (
        [f"Train loss {at} {4 - at / 10:.6f} Grad Norm {1 + at}.5 2.96s/it" for at in range(15, 35)],
        ["healthy"],
        ["rises", "higher at the end"],
    ),
    "a step stands before a count of iterations": (
        [
            f':::MLLOG {{"value": {{"iterations": 3, "loss_scale": 512.0}}, "metadata": {{"step": {at}}}}}'
            for at in range(9)
        ],
        ["9 rows", "steps 0 to 8"],
        ["step 3"],
    ),
    "an error is that of its program": (
        ["Grad scale is small: 1.2e-26", "RuntimeError: grad_scale is too small, exiting: 1.2e-26"],
        ["icefall gives up"],
        ["DeepSpeed"],
    ),
    "a mean behind a sentence is no rise": (
        [
            line
            for at in range(101)
            for line in (
                *([f"Found NaN, decreased lg_loss_scale to {22 - at}.0"] if at < 9 else []),
                f"| lg_loss_scale | {23 - min(at, 9)} |",
                f"| loss | {4 - at / 100} |",
                f"| step | {at} |",
                "-----",
            )
        ],
        [],
        ["SKIPS TOO OFTEN"],
    ),
    "0 % is no step": ([BAR.format(at) for at in (1, 2, 3)], ["lines 1 to 3"], ["step 0"]),
    "where a scaler acts the last loss is a doubt": (
        [
            f"step {at}, loss: {'nan' if at == 9 else 3 - at / 9}, loss_scale: {2.0 ** (16 - at // 3)}"
            for at in range(10)
        ],
        ["cannot tell", "the last one among them"],
        ["LOSS NOT FINITE"],
    ),
    "a leap of the loss needs few lines": (
        [f"step {at}: loss {loss}" for at, loss in enumerate([11.6, 8.8, 8712.5, 15806.3])],
        ["LOSS ROSE", "before is 10.2, that of those after is 1.23e+04"],
        [],
    ),
    "one of several losses may rise": (
        [f"step {at}: gen loss total: {2 if at < 9 else 900 + at}, loss_kl: 2.0" for at in range(18)],
        ["cannot tell"],
        ["LOSS ROSE"],
    ),
    "losses that are noise are not higher at the end": (
        [
            f"step {at}: loss: {loss}, grad_norm: 1.{at}"
            for at, loss in enumerate([2, 9, 1, 3, 1.5, 8, 7, 2.5, 9, 1, 3, 8])
        ],
        ["healthy"],
        ["higher"],
    ),
    "a scale of 12 is no mean": (
        [f"step {at}, loss: {3 - at / 10}, loss_scale: 12.0" for at in range(5)],
        ["Not every printed scale is a power of two"],
        ["The printed scales are means"],
    ),
    "no scale is printed that could show anything": (
        [f"step {at}, loss: nan" for at in range(5)],
        ["Something is wrong"],
        ["the loss scale shows it"],
    ),
    "a bar at its begin has done no step": (
        [
            "[train]: 100%|███| 5/5 [00:01<00:00,  3.76it/s]",
            "[eval]:   0%|   | 0/3 [00:00<?, ?it/s]",
            "train/loss : 6.1",
        ]
        * 2,
        ["lines 3 to 6"],
        ["step 0", "step 5"],
    ),
    "a step of three digits is no step": (
        ["| lg_loss_scale | 17.9     |", "| loss | 0.4 |", "| step | 1.09e+04 |", "-----"] * 2,
        ["lines 1 to 5"],
        ["10900"],
    ),
    "a validation's loss is none of the training": (
        [
            "Iter 1: Val loss 9.086, Val took 17.177s",
            *(f"Iter {at}: Train loss {2 - at / 99:.3f}, It/sec 0.999" for at in (25, 50)),
        ],
        ["2 rows", "steps 25 to 50"],
        ["steps 1"],
    ),
    "steps that are printed with three digits are not counted": (
        [
            line
            for at in range(240)
            for line in (
                *([f"Found NaN, decreased lg_loss_scale to {16 - at / 300}"] if at % 2 else []),
                f"| grad_norm     | {1 + at / 999:<8.3g} |",
                "| lg_loss_scale | 16       |",
                f"| loss          | {3 - at / 200:<8.3g} |",
                f"| step          | {500 * at:<8.3g} |",
                "-" * 28,
            )
        ],
        ["healthy"],
        ["SKIPS TOO OFTEN"],
    ),
    "a warning is no error that ends the log": (
        [
            *(f"step {at}: loss: {9 - at / 9:.2f}, grad_norm: 1.{at}" for at in range(20)),
            "lr_scheduler.py:100: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
        ],
        ["Healthy"],
        ["ends in an error"],
    ),
    "Ascend's scaler tells of a skip in two sentences": (
        [
            line
            for k in range(15, -20, -1)
            for line in ("Gradient overflow. Skipping step", f"Loss scaler reducing loss scale to {2.0**k}")
            for _ in range(2)
        ],
        ["NO STEP SEEN", "at least 35 steps"],
        ["Healthy"],
    ),
    "BMTrain tells both scales": (
        [f"Gradient overflow, change scale from {2.0**k:f} to {2.0 ** (k - 1):f}" for k in range(20, -5, -1)],
        ["NO STEP SEEN", "at least 25 steps"],
        ["Healthy"],
    ),
    "a part of the loss has a line of its own": (
        [
            "(trainer:831) INFO: (Step: 95400) train_f0_loss = 0.0659.",
            "(trainer:831) INFO: (Step: 95400) train_mel_loss_after = nan.",
        ],
        ["A loss is not finite on at least 1 record, step 95400"],
        ["no loss scale"],
    ),
    "a fall is not to the end where a later start prints a higher scale": (
        [f"step {at}: loss 4.{at}, loss_scale: {2.0 ** (12 - at)}, grad_norm: inf" for at in range(16)]
        + ["step 0: loss 4.0, loss_scale: 2048.0, grad_norm: inf"],
        ["goes back"],
        ["COLLAPSE"],
    ),
    "where skips are counted by means it is not said that they are not": (
        [
            line
            for at in range(40)
            for line in (
                f"| lg_loss_scale | {20 + at * 0.01 - at // 10:.3f} |",
                f"| loss | {4 - at / 40:.3f} |",
                "-----",
            )
        ],
        ["means or medians", "Skipped: at least 3 steps"],
        ["not counted by them"],
    ),
    "a warning alone is no end": (
        ["UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`."],
        ["the log holds a warning that is known", "cannot tell"],
        ["ERROR", "ends in an error"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_false_sentence_is_not_said_again(case: str) -> None:
    hold(CASES[case])
