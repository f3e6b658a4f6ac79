"""Sentences that were false of logs that count epochs, as those of vision: each with what has to be said instead."""

import pytest

from tests.diagnose.said import SWIN, hold, yolo

CASES = {
    "a test's loss is none of the training, nor is that of a cross-validation": (
        [
            "Train: [0/2][0/9] loss 2.0 grad_norm 1.0",
            "INFO Test: [0/9]\tTime 1.3\tLoss 9.5 (9.5)",
            "Epoch 0 [CV] progress 290/341 loss nan",
            "DEBUG CV Batch 4/0 loss 28.5 loss_att 24.1 rank 2",
        ],
        ["1 rows"],
        ["not finite"],
    ),
    "another run's loss is no rise": (
        [SWIN.format(0, at, 3 - at / 40, 0, 1.0 + at) for at in range(40)]
        + [SWIN.format(0, at, 15 - at / 40, 0, 1.0 + at) for at in range(40)],
        ["The number of the step goes back"],
        ["LOSS ROSE"],
    ),
    "where nothing but 0 is printed no gradient shows": (
        [SWIN.format(0, at, "0.0000", 0, "0.0000") + f"\tloss_scale {2 ** (16 + at // 4)}" for at in range(20)],
        ["NO GRADIENT: The loss and the gradient norm are printed as 0 on at least 20 records"],
        ["Healthy"],
    ),
    "a detector that stops has its error at the end": (
        ["eta: 0:00:01  iter: 19  total_loss: 2.5", "FloatingPointError: Loss became infinite or NaN at iteration=20!"],
        ["an error that is known: loss not finite."],
        [],
    ),
    "losses in a list, and a cross-entropy": (
        ["step: 1, Losses: [nan, 2.0], lr: 0.1"] + [f"Epoch[0] Batch [{at}] cross-entropy=nan" for at in range(3)],
        ["A loss is not finite on at least 4 records"],
        [],
    ),
    "a fall that goes on to 0 before the run is started again is not told to have ended": (
        [
            f"Speed 150.16   Loss {41.0 if x > 4000 else 'nan'}   Epoch: 0   Global Step: {at}0   Fp16 Grad Scale: {x}"
            for at, x in [*enumerate([4096, 4096, 8192, 8192, 512, 2, 0, 0, 0]), *enumerate([4096, 4096, 8192, 8192])]
        ],
        [],
        ["did not go on falling"],
    ),
    "skips are not few because few are counted, where the scale falls further than they bring it": (
        [
            f"Epoch:[  1/  1], step:[ {at}/  125], loss:[2.2/2.2], time:7480.9 ms, lr:[1e-6], "
            f"overflow cond: {x > 2**14}, loss_scale: {x}"
            for at, x in [(4, 2.0**28), (8, 2.0**24), (116, 2.0**14), (120, 2.0**14), (124, 2.0**14)]
        ],
        ["Healthy", "what it says of skips shows steps that were taken in its last third"],
        ["counted and few"],
    ),
    "a loss at which the program stops is an error": (
        ["Epoch: [0]  [20/1251]  eta: 1:00:00  lr: 0.1  loss: 1.0 (0.9)  time: 1.0", "Loss is nan, stopping training"],
        ["ERROR", "an error that is known: loss not finite"],
        [],
    ),
    "a running loss of NaN beside a loss that is finite is none": (
        [
            f"Epoch 0: 3%|# | {at}/99 [00:10<05:00, 3.1it/s, loss=nan, v_num=0, train_loss_step={3 - at / 50}]"
            for at in range(9)
        ],
        ["cannot tell"],
        ["LOSS NOT FINITE"],
    ),
    "thousands have a comma": (
        [f"INFO: <epoch: 86, iter: 107,{at}00, lr:2.500e-05> l_g_pix: nan l_g_fea: 1.0389e+00" for at in range(2, 5)],
        ["steps 107200 to 107400"],
        ["step 107 "],
    ),
    "a mean over the epoch is NaN by one batch, and the run scores": (
        yolo(("nan", 0), ("nan", 0.01), ("nan", 0.2)),
        ["cannot tell", "cannot tell"],
        ["LOSS NOT FINITE"],
    ),
    "a mean that is finite again": (
        yolo(("nan", 0), ("nan", 0), ("nan", 0), (1.7, 0.2)),
        ["cannot tell"],
        ["LOSS NOT"],
    ),
    "steps of an epoch are no steps of the run": (
        [f"Epoch [{epoch}][100/62598]\tlr: 1.000e-03, loss: 1.9, grad_norm: 3.{epoch}" for epoch in range(1, 6)],
        ["lines 1 to 5"],
        ["62698"],
    ),
    "where gradients saturate no inf goes into a parameter": (
        [
            f"Epoch 1/9, Step {at}/99, loss: 0.2{at}\noverflow, still update, loss scale adjust to 1024.0"
            for at in "123"
        ],
        ["cannot tell", "updates in spite of an overflow"],
        ["inf and NaN go into"],
    ),
    "a guard that is off and a loss that explodes": (
        ["overflow, still update, loss scale adjust to 1024.0"]
        + [f"Epoch 1/9, Step {at}/99, loss: {loss}" for at, loss in enumerate((11.6, 8.8, 8712.5))],
        ["GUARD OFF"],
        [],
    ),
    "a 0 of no decimals is no scale of 0": (
        [
            f"Loss {2 - at / 9:.2f}   Global Step: {at}   Fp16 Grad Scale: {4 if at < 9 else ' 0'}   Required: 7 hours"
            for at in range(12)
        ],
        ["The printed loss scale ends at 0", "cannot tell"],
        ["SCALE 0", "no loss scale"],
    ),
    "a mean of norms tells of one step in many": (
        [
            f"2022-12-05 16:28:38,593 - mmdet - INFO - Epoch [12][{at}/3953]\t loss: 4.{at}, grad_norm: nan"
            for at in range(700, 900, 50)
        ],
        ["cannot tell", "a mean over several steps"],
        ["NO STEP SEEN", "NORM NOT FINITE"],
    ),
    "a program's name is what only it prints": (
        ["2023-11-24 08:25:19,871 (build_trainer:733) INFO: 1epoch:train:1-50batch:50num_updates: loss=198.566"],
        [],
        ["fairseq"],
    ),
    "a person has written beside the values": (
        [
            *("{", '"epoch": 0.02,', '"grad_norm": NaN,', '"loss": 14577.9766,  ← the first loss', '"step": 10', "},"),
            *("{", '"epoch": 0.04,', '"grad_norm": NaN,  ← NaN (bad)', '"loss": 0.0,  # now 0', '"step": 20', "}"),
        ],
        ["2 rows"],
        [],
    ),
    "a scale of 2^-14 is tiny": (
        [f"Epoch 1, batch {50 * at}, loss: 0.6, grad_scale: 6.103515625e-05" for at in range(3)],
        ["TINY SCALE"],
        ["Healthy"],
    ),
    "a net's loss is a loss": (
        [
            f"02:29:53: train iter: {at} loss_net: {loss} loss_scale: {scale} norm: {norm} norm_average: 1.01"
            for at, loss, scale, norm in [
                (0, 0.94, 32768.0, 21.8),
                (100, "nan", 785.4, "nan"),
                (200, "nan", 1.0, "nan"),
            ]
        ],
        ["LOSS NOT FINITE", "on at least 2 records, steps 100 to 200"],
        ["Healthy"],
    ),
    "VITS prints its losses in a list": (
        [
            line
            for at in range(4)
            for line in (
                f"INFO:ljs:Train Epoch: 1 [{at}%]",
                f"INFO:ljs:[{'nan, nan' if at > 1 else '2.7, 1.9'}, 9.37, 20.8, 0.0, 1.2, {200 * at}, 0.0002]",
            )
        ],
        ["LOSS NOT FINITE", "on at least 2 records, steps 400 to 600"],
        ["Healthy"],
    ),
    "YOLO's losses have their names above, and no box is found": (
        yolo(("nan", 0), ("nan", 0), ("nan", 0)),
        ["LOSS NOT FINITE", "on at least 3 records"],
        ["Healthy"],
    ),
    "a range does not span two starts": (
        [SWIN.format(0, at, "nan", "nan", "nan") for at in range(20, 40)]
        + [SWIN.format(0, at, "nan", "nan", "nan") for at in range(10, 30)],
        ["not finite on at least 40 records, lines 1 to 40"],
        ["steps 10", "up to step"],
    ),
    "a scale that is printed as 0 ends its fall": (
        [
            f"Loss {2 + at / 9:.2f}   Global Step: {at}   Fp16 Grad Scale: {scale}   Required: 7 hours"
            for at, scale in enumerate([64, 32, 16, 8, 4, 2, *[" 0"] * 30])
        ],
        ["The printed loss scale ends at 0, steps 6 to 35, and was 2 before", "lowest 0"],
        ["falls from 64 to 2,", "it is not the loss scale", "Healthy"],
    ),
    "a record of another data set is none of the training": (
        [
            line
            for at in range(20)
            for line in (
                SWIN.format(0, at, 3 - at / 40, 0, 1.0 + at),
                "INFO:root:Epoch 1, validation: loss=nan, ppl=9.1",
                f"dev | step {at} | loss nan |",
            )
        ],
        ["20 rows", "healthy"],
        ["not finite", "goes back"],
    ),
    "each start may look for its scale": (
        [
            f"{at}/100 [00:01<00:09, 80.0it/s]{{'loss': 3.1, 'grad_norm': {'inf' if at < 6 else 1.5}, 'epoch': 0.{at}}}"
            for at in [*range(1, 9), *range(1, 9)]
        ],
        [],
        ["Something is wrong"],
    ),
    "a loss of 0 is told, whatever the program is": (
        [f"Epoch {at}: Loss 0.000, Acc 0.000%" for at in range(20)],
        ["printed as 0 on at least 20 records", "cannot tell"],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_false_sentence_is_not_said_again(case: str) -> None:
    hold(CASES[case])
