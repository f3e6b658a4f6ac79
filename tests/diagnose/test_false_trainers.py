"""Sentences that were false of logs of the Trainer and of apex: each with what has to be said instead."""

import pytest

from tests.diagnose.said import APEX, EVALUATED, STATE, TRAINER, hold

CASES = {
    "a loss of 0 is printed, and that it was NaN is how the Trainer prints": (
        [TRAINER.format(0.0, "nan", at) for at in range(4)],
        ["LOSS 0 BESIDE THE NORM: The loss is printed as 0 and the gradient norm is not finite on at least 4 records"],
        ["A loss is not finite"],
    ),
    "a scale in a printed configuration is none": (
        ["{", ' "amp_loss_scaling": 12800,', ' "learning_rate": 0.1,', "}", "step: 1, loss: 2.0, grad_norm: 1.0"],
        ["1 rows"],
        ["The printed loss scale"],
    ),
    "a schedule goes on where apex skips": (
        [f"{{'loss': 0.{70 + at % 3}, 'learning_rate': {1e-5 - at * 1e-7}, 'epoch': {at / 9}}}" for at in range(9)]
        + [f"{APEX} 32768.0"]
        + [f"{{'loss': 0.7, 'learning_rate': {9e-6 - at * 1e-7}, 'epoch': {at / 9 + 1}}}" for at in range(9)],
        ["cannot tell"],
        ["count of updates", "learning rate moves on"],
    ),
    "an evaluation of NaN is a doubt beside a training that is fine": (
        [*(TRAINER.format(4 - at / 10, 1.5, at) for at in range(9)), EVALUATED],
        ["cannot tell", "The loss of the evaluation is not finite, on at least 1 line"],
        ["EVALUATION AND TRAINING", "The loss itself"],
    ),
    "an evaluation of NaN behind a norm of NaN is wrong": (
        [TRAINER.format(26.2, "nan", 5.0), EVALUATED],
        ["EVALUATION AND TRAINING"],
        ["The loss itself"],
    ),
    "the losses of a tracker's summary are told apart": (
        ["wandb: Run summary:", "wandb:   eval/loss nan", "wandb:  train/loss 0.0", "wandb: train/epoch 5.0"],
        ["EVALUATION AND TRAINING"],
        ["The loss itself"],
    ),
    "the results of an evaluation are read, those of the run are not": (
        ["***** train metrics *****", "  train_loss    =     nan", "***** eval metrics *****", "  eval_loss   =   nan"],
        ["cannot tell", "The loss of the evaluation is not finite"],
        ["The loss itself"],
    ),
    "a learning rate alone acquits nobody": (
        [f"{{'loss': {9 - at / 10}, 'learning_rate': {5e-5 - at * 1e-7}, 'epoch': {at / 100}}}" for at in range(60)],
        ["cannot tell", "nothing that was read but its learning rate"],
        ["Healthy"],
    ),
    "a bar at its end is of any loop": (
        ["100%|███| 7/7 [00:00<00:00, 1809.34it/s]"]
        + [
            f"{{'loss': {2 - at / 9:.3f}, 'grad_norm': 1.{at}, 'learning_rate': 0.1, 'epoch': 0.{at}}}"
            for at in range(1, 9)
        ],
        ["lines 2 to 9"],
        ["step 7"],
    ),
    "a loss that is 0 beside a finite norm is no NaN": (
        [TRAINER.format(0.0, norm, at) for at, norm in enumerate([0.1, "nan", 0.2, "nan", 0.1, 0.2, "nan", 0.1])],
        ["The gradient norm is not finite on at least 3 records"],
        ["LOSS 0"],
    ),
    "each norm of a short log is not finite": (
        [TRAINER.format(9 - at, "nan", at).replace("1e-05", "0.0") for at in range(2)],
        ["The gradient norm is not finite on any of at least 2 records"],
        [],
    ),
    "a loss that becomes 0 at once is one that the Trainer left out": (
        [STATE.format(loss, 2e-4 - at / 1e5, at) for at, loss in enumerate([1.28, 1.26, 1.3, 34023.79, 0.0, 0.0, 0.0])],
        ["LOSS 0", "the Trainer of transformers prints 0"],
        ["Healthy"],
    ),
    "one loss of 0 is a doubt": (
        [STATE.format(loss, 2e-4 - at / 1e5, at) for at, loss in enumerate([*[1.28] * 9, 34.79, 0.0])],
        ["cannot tell", "its last loss is printed as 0"],
        ["Healthy"],
    ),
    "one loss of 0 after one that is far above is none": (
        [STATE.format(loss, 2e-4 - at / 1e5, at) for at, loss in enumerate([*[1.28] * 9, 34023.79, 0.0])],
        ["LOSS 0: ", "and as 3.402e+04 on the one before"],
        ["Healthy"],
    ),
    "three losses of 0 behind one of 0.3 may have been learned": (
        [STATE.format(loss, 2e-4 - at / 1e5, at) for at, loss in enumerate([*[1.28] * 9, 0.3, 0.0, 0.0, 0.0])],
        ["cannot tell", "its last loss is printed as 0"],
        ["Healthy"],
    ),
    "a loss of 0 from the first line on is one that the Trainer left out": (
        [STATE.format("0.0", 2e-4 - at / 1e5, at) for at in range(9)],
        ["The loss is printed as 0 on at least 9 records"],
        ["Healthy"],
    ),
    "a loss of 0 throughout is no NaN": (
        [f"{{'loss': 0.0, 'learning_rate': {1e-5 - at * 1e-7}, 'epoch': {at / 9}}}" for at in range(9)],
        ["cannot tell", "printed as 0 on at least 9 records"],
        ["Something is wrong"],
    ),
    "ten lines of a thousand are not many": (
        [*(f"{APEX} {2.0**k}" for k in range(20, 10, -1)), *(f"loss {4 - at / 400:.4f}" for at in range(1000))],
        ["the losses that were read go on falling"],
        ["many of its lines"],
    ),
    "eight ranks of apex' old optimizer tell of one skip": (
        [
            text
            for at in range(3)
            for _ in range(8)
            for text in ("", f"Grad overflow on iteration  {at}", f"Using dynamic loss scale of  {2.0 ** (16 - at)}")
        ],
        ["Skipped: at least 3 steps"],
        ["at least 24", "tells of overflows"],
    ),
    "a run that goes on behind its skips has taken steps, or nothing is known": (
        [
            *(f"{APEX} {2.0**k}" for k in range(15, -3, -1)),
            *(f"with apex: MSE loss = {8.9 - at / 50:.2e}" for at in range(3)),
        ],
        [
            "many of its lines tell of skipped steps",
            "at least one step overflowed at a scale of 0.5 or less, lines 15 to 18, and the log goes on",
        ],
        ["NO STEP SEEN", "COLLAPSE", "LOW SCALE"],
    ),
    "a scale of 0 is no rise": (
        [f"{APEX} {scale}" for scale in ("2e-323", "1e-323", "5e-324", "0.0")],
        ["The printed loss scale ends at 0"],
        [],
    ),
    "of what tells the scale after the cut each line overflowed at twice that at most": (
        ["loss 2.0", "grad_norm: 1.0, loss: 2.0", *(f"{APEX} {2.0**k}" for k in range(3, -3, -1))],
        ["LOW SCALE: If an overflow halves the scale, at least one step overflowed at a scale of 0.5 or less, lines"],
        ["although the loss scale was down to"],
    ),
    "a word is no rest of a number": (
        [f"{APEX} 32768.0", "Epoch 0 loss: 3.0", f"{APEX} 16384.0"],
        ["Skipped: at least 2 steps", "32768 at first"],
        [],
    ),
    "overflows that are told without a count are in the log": (
        [f"step: {at} loss: {4 - at / 100}\nGrad overflow on iteration  {at}" for at in range(9)],
        ["cannot tell", "tells of overflows"],
        ["no loss scale, skip count"],
    ),
    "a date behind a number does not go on with it": (
        [f"{APEX} 2.926047721682624e-98", "2021-04-29 15:20:07,805 - mmdet - INFO - loss: nan"],
        ["TINY SCALE"],
        [],
    ),
    "few lines that show a step are no short log": (
        [
            f"{APEX} 32768.0",
            *(f"iter: {at}  loss: {3 - at / 999:.4f} (0.7219)" for at in range(20, 900, 20)),
            f"{APEX} 65536.0",
        ],
        ["Healthy", "its scale rose"],
        ["too short"],
    ),
    "lines follow that say nothing of the scale": (
        [*(f"{APEX} {2.0**k}" for k in range(15, 9, -1)), *(f"example {at} of the data" for at in range(99))],
        ["Cannot tell"],
        ["still looking", "no step is known"],
    ),
    "apex divides by 0": (
        [f"{APEX} {2.0**k}" for k in range(15, 10, -1)] + ["...", "ZeroDivisionError: float division by zero"],
        ["wrong", "Where the traceback ends in apex/amp/scaler.py"],
        [],
    ),
    "two of apex' scalers are two": (
        [f"{APEX.replace(' 0 ', f' {which} ')} {2.0 ** (15 - at - 6 * which)}" for at in range(4) for which in (0, 1)],
        ["32768 at first and 4096 at last", "told apart"],
        ["lowest 64", "rose", "grew"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_false_sentence_is_not_said_again(case: str) -> None:
    hold(CASES[case])
