"""Sentences that were printed of some log and were false of its run: each with what has to be said instead."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from ampsim.diagnose.explain import explain, in_words
from ampsim.diagnose.readers.sniff import read_history
from ampsim.diagnose.readers.text import read_text
from ampsim.diagnose.report import skip_rows

OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale:"
SEARCHED = [f"{OVERFLOW} {2**k}, reducing to {2 ** (k - 1)}" for k in range(16, 8, -1)]
RANK = "[2026-01-01 10:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0]"
SCALER = (
    "[2026-01-01 10:00:00,000] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
)
SEARCH = [f"{SCALER} Attempted loss scale: {2**k}, reducing to {2 ** (k - 1)}" for k in range(16, 6, -1)]
MEGATRON = (
    " iteration {:8d}/   99999 | learning rate: 1.0E-05 |{} loss scale: 65536.0 | grad norm: {:.3f} "
    "| number of skipped iterations:   0 | number of nan iterations:   0 |"
)
APEX = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to"
BAR = "Steps:   0%|          | {}/2000 [00:14<8:16:07, 14.89s/it, lr=1e-5, step_loss=nan, td=2.85s]"

TRAINER = "{{'loss': {}, 'grad_norm': {}, 'learning_rate': 1e-05, 'epoch': {}}}"
EVALUATED = "{'eval_loss': nan, 'eval_runtime': 0.2, 'epoch': 5.0}"

NOTE = "2026-01-01 NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 8.0"
SWIN = "INFO Train: [{}/2][{}/40]\teta 0:00:03 lr 0.1\tloss {} ({})\tgrad_norm {} (1.5)"


def yolo(*rows):
    """Return the lines of some epochs: the loss, and what the evaluation scores."""
    return [
        line
        for epoch, (loss, score) in enumerate(rows, 1)
        for line in (
            "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size",
            f"       {epoch}/20     1.16G       {loss}       {loss}       {loss}         16        448: 100%|#| 1/1",
            f"                   all         51         42      {score}      {score}      {score}      {score}",
        )
    ]


FAIRSEQ = "| train | epoch 001: {} / 1374 loss=14.3, num_updates={}, gnorm=3.9, loss_scale={}, train_loss_scale={}"

CASES = {
    "one rank notes each overflow": (
        [
            f"{line}"
            for at in range(4)
            for line in (NOTE, f"2026-01-01 epoch 001: loss=3, num_updates={100 * at}, loss_scale=8")
        ],
        ["Skipped: at least 4 steps"],
        [],
    ),
    "the lines are of all steps, also where the run was started again": (
        [f"step: {at}, loss: {9 - at / 99}, loss_scale: 8" for at in (0, 500, 900, 20)],
        ["4 rows"],
        [],
    ),
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
    "a loss of 0 is printed, and that it was NaN is how the Trainer prints": (
        [TRAINER.format(0.0, "nan", at) for at in range(4)],
        ["LOSS 0 BESIDE THE NORM: The loss is printed as 0 and the gradient norm is not finite on at least 4 records"],
        ["A loss is not finite"],
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
    "a scale in a printed configuration is none": (
        ["{", ' "amp_loss_scaling": 12800,', ' "learning_rate": 0.1,', "}", "step: 1, loss: 2.0, grad_norm: 1.0"],
        ["1 rows"],
        ["The printed loss scale"],
    ),
    "fairseq2 says its skips": (
        [
            f"Overflow detected at step {at}, ignoring gradient, decreasing loss scale from {2 * to}.0 to {to}.0."
            for at, to in enumerate((4, 2, 1))
        ]
        + ["..."]
        + [f"Train Metrics (step {50 * at}) - Loss: 540.0 | grad_scale: 1.0" for at in (1, 2)],
        ["Skipped: at least 3 steps"],
        ["LOW SCALE"],
    ),
    "where nothing but 0 is printed no gradient shows": (
        [SWIN.format(0, at, "0.0000", 0, "0.0000") + f"\tloss_scale {2 ** (16 + at // 4)}" for at in range(20)],
        ["NO GRADIENT: The loss and the gradient norm are printed as 0 on at least 20 records"],
        ["Healthy"],
    ),
    "a schedule goes on where apex skips": (
        [f"{{'loss': 0.{70 + at % 3}, 'learning_rate': {1e-5 - at * 1e-7}, 'epoch': {at / 9}}}" for at in range(9)]
        + [f"{APEX} 32768.0"]
        + [f"{{'loss': 0.7, 'learning_rate': {9e-6 - at * 1e-7}, 'epoch': {at / 9 + 1}}}" for at in range(9)],
        ["cannot tell"],
        ["count of updates", "learning rate moves on"],
    ),
    "ten lines of a thousand are not many": (
        [*(f"{APEX} {2.0**k}" for k in range(20, 10, -1)), *(f"loss {4 - at / 400:.4f}" for at in range(1000))],
        ["the losses that were read go on falling"],
        ["many of its lines"],
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
    "ten skips lie in no two steps": (
        [*SEARCH, *(f"{RANK} step={at}, skipped=10, lr=[0.1]" for at in range(20, 200, 10))],
        ["lines 1 to 28", "healthy"],
        ["steps 19 to 20", "steps 9 to 10"],
    ),
    "a search behind a hysteresis is one": (
        [f"{SCALER} Attempted loss scale: 65536, but hysteresis is 2. Reducing hysteresis to 1", *SEARCH[:7]]
        + [f"{RANK} step={at}, skipped=8, lr=[0.1]" for at in range(8, 109)],
        [],
        ["SKIPS TOO OFTEN"],
    ),
    "a count of 0 beside a norm that stands is no proof": (
        [MEGATRON.format(at, f" lm loss: {4 - at / 100:.6E} |", 464441.887) for at in range(20)],
        ["cannot tell"],
        ["its skips are counted and few"],
    ),
    "two engines' scales rise nowhere": (  # as DeepSpeed-Chat's actor and critic, whose lines have one tag
        [f"{RANK} step=0, skipped=0, lr=[0.1]", *(each for each in SEARCH[:3] for _ in range(2))]
        + [f"{RANK} step=10, skipped=3, lr=[0.{engine}]" for engine in range(2)],
        ["cannot tell"],
        ["rises", "its scale grew"],
    ),
    "a run without fp16 has no scale to judge": (
        ["[INFO] [config.py:964:print]   fp16_enabled ................. False"]
        + [f"{RANK} step={at}, skipped=0, lr=[0.1]" for at in range(0, 200, 10)],
        ["cannot tell", "fp16 is off"],
        ["its skips are counted and few"],
    ),
    "of two engines one may have fp16": (
        [f"[INFO] [config.py:964:print]   fp16_enabled ................. {on}" for on in (True, False)]
        + [f"{RANK} step={at}, skipped=0, lr=[0.1]" for at in range(0, 200, 10)],
        ["healthy"],
        ["fp16 is off"],
    ),
    "three lines of an unfused optimizer tell of one skip": (
        [
            f"[INFO] [unfused_optimizer.py:1:step] {text}"
            for scale in (65536, 32768)
            for text in (
                "Grad overflow on iteration: 3",
                f"Using dynamic loss scale of: {scale}",
                f"[deepspeed] overflow! Skipping step. Attempted loss scale: {scale}, reducing to {scale / 2}",
            )
        ],
        ["Skipped: at least 2 steps"],
        ["at least 3", "at least 4"],
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
    "a search of which only the counts are left": (
        [f"{RANK} step=5, skipped=5, lr=[0.1]", f"{RANK} step=15, skip"],
        ["cannot tell"],
        ["NO STEP SEEN"],
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
        ["Healthy", "its count of skips shows steps that were taken in its last third"],
        ["counted and few"],
    ),
    "a loss at which the program stops is an error": (
        ["Epoch: [0]  [20/1251]  eta: 1:00:00  lr: 0.1  loss: 1.0 (0.9)  time: 1.0", "Loss is nan, stopping training"],
        ["ERROR", "an error that is known: loss not finite"],
        [],
    ),
    "a function that returned NaN ends a log": (
        ["step: 1, loss: 2.0", "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."],
        ["the log holds an error"],
        [],
    ),
    "a scale that rises again from below 1 is no alarm": (
        [  # THUDM/Chinese-Transformer-XL#7
            f" iteration {at:8d}/    3000 | learning rate 6.300E-06 | lm loss {loss} | loss scale {scale} |"
            for at, loss, scale in zip(
                range(400, 1300, 100),
                ["6.76", "6.29", "5.76", "NAN", "5.19", "4.79", "4.45", "4.33", "3.98"],
                ["64.0", "8.0", "4.0", "4.0", "0.1", "0.1", "0.1", "0.1", "0.2"],
                strict=True,
            )
        ],
        ["cannot tell", "and the log goes on"],
        ["LOW SCALE"],
    ),
    "a fall before a total is in the total": (
        [SEARCH[0], SEARCH[6], f"{RANK} step=20, skipped=20, lr=[0.1]", SEARCH[9]],
        ["at least 20 steps"],
        [],
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
    "a scale of 0 is no rise": (
        [f"{APEX} {scale}" for scale in ("2e-323", "1e-323", "5e-324", "0.0")],
        ["The printed loss scale ends at 0"],
        [],
    ),
    "0 % is no step": ([BAR.format(at) for at in (1, 2, 3)], ["lines 1 to 3"], ["step 0"]),
    "the last loss is not finite": (
        ["step 1, loss: 2.0", "step 2, loss: 2.0", "step 3, loss: 2.0", "step 4, loss: inf"],
        ["LOSS NOT FINITE: A loss is not finite on at least 1 record, step 4."],
        ["finite at the end", "FORWARD", "forward pass, whatever"],
    ),
    "where a scaler acts the last loss is a doubt": (
        [
            f"step {at}, loss: {'nan' if at == 9 else 3 - at / 9}, loss_scale: {2.0 ** (16 - at // 3)}"
            for at in range(10)
        ],
        ["cannot tell", "the last one among them"],
        ["LOSS NOT FINITE"],
    ),
    "a loss that came back once may do so again": (
        [f"step {at}, loss: {'inf' if at in (4, 19) else 3 - at / 99}" for at in range(20)],
        ["cannot tell", "the last one among them"],
        ["LOSS NOT FINITE"],
    ),
    "of what tells the scale after the cut each line overflowed at twice that at most": (
        ["loss 2.0", "grad_norm: 1.0, loss: 2.0", *(f"{APEX} {2.0**k}" for k in range(3, -3, -1))],
        ["LOW SCALE: If an overflow halves the scale, at least one step overflowed at a scale of 0.5 or less, lines"],
        ["although the loss scale was down to"],
    ),
    "a running loss of NaN beside a loss that is finite is none": (
        [
            f"Epoch 0: 3%|# | {at}/99 [00:10<05:00, 3.1it/s, loss=nan, v_num=0, train_loss_step={3 - at / 50}]"
            for at in range(9)
        ],
        ["cannot tell"],
        ["LOSS NOT FINITE"],
    ),
    "fairseq sums over tokens": (
        [
            *(f"| WARNING: overflow detected, setting loss scale to: {2.0**-k}" for k in (6, 7, 8)),
            *(FAIRSEQ.format(at, at, 0.004, 0.004) for at in range(1, 9)),
        ],
        ["healthy", "every gradient norm that was read is finite"],
        ["LOW SCALE"],
    ),
    "a word is no rest of a number": (
        [f"{APEX} 32768.0", "Epoch 0 loss: 3.0", f"{APEX} 16384.0"],
        ["Skipped: at least 2 steps", "32768 at first"],
        [],
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
    "17 skips of 40 are not few": (
        [*SEARCH, *(f"{RANK} step={at}, skipped=17, lr=[0.1]" for at in range(17, 41))],
        ["its count of skips shows steps that were taken in its last third"],
        ["counted and few"],
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
    "some norms are not finite": (
        [f"step {at}, loss: {3 - at / 50:.2f}, grad_norm: {'inf' if at == 9 else 1 + at / 7:.4}" for at in range(40)],
        ["most gradient norms that were read are finite"],
        ["every gradient norm that was read"],
    ),
    "a run that has gone on for 5000 steps has started": (
        [MEGATRON.format(at, "", float("nan")) for at in range(5426, 5432)],
        ["No line that was read shows that a step was taken"],
        ["NEVER STARTED"],
    ),
    "steps of an epoch are no steps of the run": (
        [f"Epoch [{epoch}][100/62598]\tlr: 1.000e-03, loss: 1.9, grad_norm: 3.{epoch}" for epoch in range(1, 6)],
        ["lines 1 to 5"],
        ["62698"],
    ),
    "overflows that are told without a count are in the log": (
        [f"step: {at} loss: {4 - at / 100}\nGrad overflow on iteration  {at}" for at in range(9)],
        ["cannot tell", "tells of overflows"],
        ["no loss scale, skip count"],
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
    "a date behind a number does not go on with it": (
        [f"{APEX} 2.926047721682624e-98", "2021-04-29 15:20:07,805 - mmdet - INFO - loss: nan"],
        ["TINY SCALE"],
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
    "a bar at its end is of any loop": (
        ["100%|███| 7/7 [00:00<00:00, 1809.34it/s]"]
        + [
            f"{{'loss': {2 - at / 9:.3f}, 'grad_norm': 1.{at}, 'learning_rate': 0.1, 'epoch': 0.{at}}}"
            for at in range(1, 9)
        ],
        ["lines 2 to 9"],
        ["step 7"],
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
    "few lines that show a step are no short log": (
        [
            f"{APEX} 32768.0",
            *(f"iter: {at}  loss: {3 - at / 999:.4f} (0.7219)" for at in range(20, 900, 20)),
            f"{APEX} 65536.0",
        ],
        ["too few of the lines that were read show"],
        ["too short"],
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
    "a loss is not finite beside a norm that is skipped": (
        ["Step 0: loss=nan, grad_norm=nan, nan_skipped=1.0 (skipped)"]
        + [f"Step {at}00: loss=0.{9 - at}, grad_norm=0.{at}, nan_skipped=0.0" for at in range(1, 8)],
        ["A loss is not finite on at least 1 record, step 0"],
        ["stays finite", "up to step 100"],
    ),
    "a time per step is no step": (
        [f"Step {at}0/20 | Loss: nan | LR: 0.0 | ms/step: {374.6 - 99 * at}" for at in range(2)],
        ["on at least 2 records, steps 0 to 10"],
        ["goes back"],
    ),
    "a step stands without a colon, and the bar beside it counts batches": (
        [
            f" 35%|###   | {666 + at}/1974 [10:00<20:00, 1.0it/s]Train loss {130950 + at} nan Grad Norm nan"
            for at in (0, 1)
        ],
        ["on at least 2 records, steps 130950 to 130951"],
        ["step 666"],
    ),
    "iterations and losses alone": (
        ["1:\t30.65", "2:\tnan", "3:\tnan", "4:\tnan"],
        ["LOSS NOT FINITE: A loss is not finite on at least 3 records, steps 2 to 4"],
        [],
    ),
    "a person has written beside the values": (
        [
            *("{", '"epoch": 0.02,', '"grad_norm": NaN,', '"loss": 14577.9766,  ← the first loss', '"step": 10', "},"),
            *("{", '"epoch": 0.04,', '"grad_norm": NaN,  ← NaN (bad)', '"loss": 0.0,  # now 0', '"step": 20', "}"),
        ],
        ["2 rows"],
        [],
    ),
    "a count that is more than the steps since the last line is of the whole run": (
        [
            f" iteration {822 + at}/ 99999 | lm loss: 3.9 | loss scale: {2 ** (16 - max(at - 1, 0))}.0 "
            f"| grad norm: 1.0 | number of skipped iterations: {max(at - 1, 0)} | number of nan iterations: 0 |"
            for at in range(4)
        ],
        ["Skipped: at least 2 steps"],
        ["at least 3"],
    ),
    "a cause besides the scale": (
        [
            f"{RANK} step=1, skipped=0, lr=[0.1]",
            f"{RANK} step=2, skipped=0, lr=[0.1]",
            f"{RANK} step=1000, skipped=700, lr=[0.1]",
            f"{SCALER} Attempted loss scale: 2.0, reducing to 1.0",
            f"{RANK} step=1001, skipped=701, lr=[0.1]",
            f"{SCALER} Attempted loss scale: 1.0, reducing to 1.0",
            f"{RANK} step=1002, skipped=702, lr=[0.1]",
            f"{RANK} step=1003, skipped=702, lr=[0.1]",
        ],
        ["; some of what was found is of the loss scale itself", "SKIPS TOO OFTEN", "LOW SCALE"],
        ["and it is the loss scale"],
    ),
    "a search that begins anew where no number shows a start": (
        [*SEARCHED, *["Reading the data"] * 6, *SEARCHED],
        ["Cannot tell"],
        ["COLLAPSE", "Something is wrong"],
    ),
    "a warning is no error that ends the log": (
        [
            *(f"step {at}: loss: {9 - at / 9:.2f}, grad_norm: 1.{at}" for at in range(20)),
            "lr_scheduler.py:100: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
        ],
        ["Healthy"],
        ["ends in an error"],
    ),
    "lines follow that say nothing of the scale": (
        [*(f"{APEX} {2.0**k}" for k in range(15, 9, -1)), *(f"example {at} of the data" for at in range(99))],
        ["Cannot tell"],
        ["still looking", "no step is known"],
    ),
}

CASES |= {
    "fairseq prints its newest scale, and no mean": (
        [FAIRSEQ.format(at, at, scale, scale) for at, scale in enumerate([4, 4, *[1] * 17])],
        ["falls from", "healthy"],
        ["means"],
    ),
    "fairseq rounds": (
        [FAIRSEQ.format(at, at, scale, scale) for at, scale in [(1, 0.125), (2, 0.062), (3, 0.062)]],
        ["they may be rounded"],
        [],
    ),
    "apex divides by 0": (
        [f"{APEX} {2.0**k}" for k in range(15, 10, -1)] + ["...", "ZeroDivisionError: float division by zero"],
        ["wrong", "Where the traceback ends in apex/amp/scaler.py"],
        [],
    ),
    "others divide by 0 too": (
        [f"{SCALER} Attempted loss scale: 65536, reducing to 32768", "ZeroDivisionError: float division by zero"],
        [],
        ["divides by its loss scale"],
    ),
}

STATE = "{{'loss': {}, 'learning_rate': {}, 'epoch': 0.{}}}"
SICK = {
    "a loss that becomes 0 at once is one that the Trainer left out": (
        [STATE.format(loss, 2e-4 - at / 1e5, at) for at, loss in enumerate([1.28, 1.26, 1.3, 34023.79, 0.0, 0.0, 0.0])],
        ["LOSS 0", "the Trainer of transformers prints 0"],
    ),
    "one loss of 0 is a doubt": (
        [STATE.format(loss, 2e-4 - at / 1e5, at) for at, loss in enumerate([*[1.28] * 9, 34023.79, 0.0])],
        ["cannot tell", "its last loss is printed as 0"],
    ),
    "three losses of 0 behind one of 0.3 may have been learned": (
        [STATE.format(loss, 2e-4 - at / 1e5, at) for at, loss in enumerate([*[1.28] * 9, 0.3, 0.0, 0.0, 0.0])],
        ["cannot tell", "its last loss is printed as 0"],
    ),
    "a scale of 2^-14 is tiny": (
        [f"Epoch 1, batch {50 * at}, loss: 0.6, grad_scale: 6.103515625e-05" for at in range(3)],
        ["TINY SCALE"],
    ),
    "OpenNMT's loss is a cross-entropy": (
        [f"Step {50 * at}/50000; acc: 0.19; ppl: nan; xent: {2.3 if at < 3 else 'nan'}; lr: 0.00070; 1928/2310 tok/s;"
         for at in range(6)],
        ["LOSS NOT FINITE", "steps 150 to 250"],
    ),
    "Marian's loss is a cost": (
        [f"[2020-09-05 20:22:42] Ep. 1 : Up. {at}00 : Sen. 137,255 : Cost {cost} : Time 17.18s : gNorm 41172.8250"
         for at, cost in enumerate(["314.004", "211.394", "nan", "nan"], 1)],
        ["LOSS NOT FINITE", "steps 300 to 400"],
    ),
    "a GAN has several losses": (
        ["INFO:mi-test:loss_disc=3.322, loss_gen=3.670", "INFO:mi-test:loss_disc=nan, loss_gen=nan"],
        ["LOSS NOT FINITE"],
    ),
    "HiFi-GAN's losses have names of their own": (
        [f"Steps : {at}, Gen Loss Total : {loss}, Mel-Spec. Error : 2.021, s/b : 0.443"
         for at, loss in [(0, "101.349"), (5, "94.055"), (10, " nan"), (15, " nan"), (20, " nan")]],
        ["LOSS NOT FINITE", "on at least 3 records, steps 10 to 20"],
    ),
    "XLM says that its loss is NaN": (
        [f"WARNING - 10/04/19 16:19:1{at} - 0:19:06 - NaN detected" for at in range(4)]
        + ["INFO - 10/04/19 16:19:14 - 0:19:07 -    4150 -  118.0 sent/s - MLM-en:      nan -  - model LR: 1.3920e-05"],
        ["LOSS NOT FINITE", "on at least 5 records"],
    ),
    "Ascend's scaler tells of a skip in two sentences": (
        [
            line
            for k in range(15, -20, -1)
            for line in ("Gradient overflow. Skipping step", f"Loss scaler reducing loss scale to {2.0**k}")
            for _ in range(2)
        ],
        ["NO STEP SEEN", "at least 35 steps"],
    ),
    "a net's loss is a loss": (
        [f"02:29:53: train iter: {at} loss_net: {loss} loss_scale: {scale} norm: {norm} norm_average: 1.01"
         for at, loss, scale, norm in [(0, 0.94, 32768.0, 21.8), (100, "nan", 785.4, "nan"), (200, "nan", 1.0, "nan")]],
        ["LOSS NOT FINITE", "on at least 2 records, steps 100 to 200"],
    ),
    "a trainer raises what it found": (
        ["     | > loss_gen: 2.44422  (2.17234)", "RuntimeError:  > Detected NaN loss - {'loss_disc': tensor(nan)}."],
        ["an error that is known: loss not finite."],
    ),
    "gradients that are made zero were not finite": (
        [f"[NeMo W 10:{at}] detected inf or nan values in gradients! Setting gradients to zero." for at in range(20)],
        ["NO STEP SEEN"],
    ),
    "a loss of 0 from the first line on is one that the Trainer left out": (
        [STATE.format("0.0", 2e-4 - at / 1e5, at) for at in range(9)],
        ["The loss is printed as 0 on at least 9 records"],
    ),
    "Composer's loss is a path": (
        [f"\t Train loss/train/total: {'nan' if at > 2 else 9 - at}" for at in range(9)],
        ["LOSS NOT FINITE", "on at least 6 records"],
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
    ),
    "YOLO's losses have their names above, and no box is found": (
        yolo(("nan", 0), ("nan", 0), ("nan", 0)),
        ["LOSS NOT FINITE", "on at least 3 records"],
    ),
    "a bar and a sentence share a line": (
        [
            f"[Train]: 0%| | {at}/8614 [00:00<1:00:07, 2.39it/s, loss={loss}, lr=2.5e-05][deepscale] OVERFLOW! "
            f"Rank 0 Skipping step. Attempted loss scale: {2.0 ** (33 - at)}, reducing to {2.0 ** (32 - at)}"
            for at, loss in [(1, 265.25), (2, "nan"), (3, "nan"), (4, "nan")]
        ],
        ["LOSS NOT FINITE", "on at least 3 records, lines 2 to 4", "at least 4 steps"],
    ),
    "what is not finite has its name in the exception": (
        ["[55045] core_hours=5.4, uptime=19705.6", "train_utils.TrainingDivergedError: NaN detected in train_loss"],
        ["an error that is known: loss not finite."],
    ),
    "BMTrain tells both scales": (
        [f"Gradient overflow, change scale from {2.0**k:f} to {2.0 ** (k - 1):f}" for k in range(20, -5, -1)],
        ["NO STEP SEEN", "at least 25 steps"],
    ),
}  # fmt: skip
"""Public runs that were sick, and were acquitted or not read."""
CASES |= {name: (lines, said, ["Healthy"]) for name, (lines, said) in SICK.items()}


def test_of_a_notebook_what_its_cells_printed_is_read_and_not_their_source(tmp_path: Path) -> None:
    table = ["<div>\n", " [30/30]\n", "<table><tr>\n", " <th>Step</th>\n", " <th>Training Loss</th>\n", "</tr>\n"]
    table += [f"<tr>\n <td>{at}</td>\n <td>{4 - at / 10}</td>\n</tr>\n" for at in range(1, 9)]
    outputs = [{"data": {"text/html": table}}, {"text": "step: 9, loss: 3.0\n"}, {"data": {"text/plain": "0"}}]
    cells = [{"source": ["total_loss = 0.0\n"]}, {"source": [], "outputs": outputs}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}, indent=1))
    assert read_history(tmp_path / "a.ipynb").loss.tolist() == pytest.approx([3.9 - at / 10 for at in range(8)] + [3.0])


def test_a_loss_of_0_in_a_trainers_own_file_is_one_that_was_not_finite(tmp_path: Path) -> None:
    row = '{{"current_steps": {}, "loss": {}, "lr": 1e-05, "percentage": {}}}\n'
    losses = [2.5, 2.4, 0.0, 0.0, 0.0]
    (tmp_path / "log.jsonl").write_text("".join(row.format(at, loss, at) for at, loss in enumerate(losses)))
    assert "LOSS 0" in in_words(explain(read_history(tmp_path / "log.jsonl")))


def test_a_norm_of_an_epoch_is_a_mean_also_where_it_is_often_not_finite(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    norms = ["1.5", "Infinity"]
    row = '{{"epoch": {}, "train_loss": {}, "train_grad_norm": {}}}\n'
    log.write_text("".join(row.format(at, 5 - at / 50, norms[at % 2]) for at in range(60)))
    explanation = explain(read_history(log))
    assert explanation.verdict == "cannot tell"
    assert "it is a mean over several steps" in in_words(explanation)


def test_a_sentence_without_a_number_lies_in_no_two_steps() -> None:
    lines = [f"{APEX} 32768.0", "step: 10 loss: 2.0 grad_norm: 1.0", f"{APEX} 16384.0"]
    assert [row[:2] for row in skip_rows(read_text("-", [f"{line}\n" for line in lines]))] == []


@pytest.mark.parametrize("case", CASES)
def test_a_false_sentence_is_not_said_again(case: str) -> None:
    lines, said, unsaid = CASES[case]
    history = read_text("-", [f"{line}\n" for text in lines for line in text.split("\n")])
    explanation = explain(history)
    text = f"{explanation.verdict}\n{in_words(explanation)}\n{history.rows} rows"
    for part in said:
        assert part in text
    for part in unsaid:
        assert part not in text


CASES |= {
    "sentences and the medians beside them are two series": (
        [f"{SCALER} Attempted loss scale: 512, reducing to 256"]
        + [
            line
            for at in range(60)
            for line in (
                *([f"{SCALER} Attempted loss scale: 256, reducing to 128"] if at % 20 == 10 else []),
                f"Epoch: [0]  [{20 * at}/9999]  eta: 1:00:00  loss: {4 - at / 60:.4f} (3.1)  "
                f"loss_scale: {128 if at % 20 > 14 else 256}.0000 (200.1)",
            )
        ],
        ["Skipped: at least 4 steps"],
        ["at least 5", "256 to 128, is 1 halving"],
    ),
    "what a later start tells before its first number is none of the first start": (
        [f"step {at}: loss {4 - at / 60:.4f}, loss_scale: {2.0**17}, grad_norm: 1.{at}" for at in range(40)]
        + [*SEARCH[:4]]
        + [f"step {at}: loss {4 - at / 60:.4f}, loss_scale: 4096.0, grad_norm: 1.{at}" for at in range(10)],
        ["Skipped: at least 4 steps", "the run was started again"],
        ["at least 5", "fell from", "falls from 131072"],
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
    "of a total that a later start takes over only what it grows by counts": (
        [f"{RANK} step={at}, skipped={6 + at // 50}, lr=[0.1]" for at in (50, 100, 150)]
        + [f"{RANK} step={at}, skipped={6 + at // 50}, lr=[0.1]" for at in (100, 150, 200)],
        ["Skipped: at least 11 steps"],
        ["at least 19", "Skipped: 1"],
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
    "a part of the loss has a line of its own": (
        [
            "(trainer:831) INFO: (Step: 95400) train_f0_loss = 0.0659.",
            "(trainer:831) INFO: (Step: 95400) train_mel_loss_after = nan.",
        ],
        ["A loss is not finite on at least 1 record, step 95400"],
        ["no loss scale"],
    ),
    "a traceback is cut": (
        ["loss_gen: 2.4", 'trainer.py", line 466, in _optimize', '    raise RuntimeError(f" > Detected NaN'],
        ["the log holds an error that is known: loss not finite"],
        ["higher", "rise"],
    ),
    "a fall is not to the end where a later start prints a higher scale": (
        [f"step {at}: loss 4.{at}, loss_scale: {2.0 ** (12 - at)}, grad_norm: inf" for at in range(16)]
        + ["step 0: loss 4.0, loss_scale: 2048.0, grad_norm: inf"],
        ["goes back"],
        ["COLLAPSE"],
    ),
    "each start may look for its scale": (
        [
            f"{at}/100 [00:01<00:09, 80.0it/s]{{'loss': 3.1, 'grad_norm': {'inf' if at < 6 else 1.5}, 'epoch': 0.{at}}}"
            for at in [*range(1, 9), *range(1, 9)]
        ],
        [],
        ["Something is wrong"],
    ),
    "a legend in a summary is no record": (
        [f"[OVERFLOW] step={at} loss=nan" for at in range(3)] + ["Overflow steps (loss=inf/nan): 3/3 (99.7%)"],
        ["not finite on at least 3 records"],
        ["at least 4"],
    ),
    "a loss that is left out may be 0": (
        [
            MEGATRON.format(1, "", math.nan),
            MEGATRON.format(2, "", 0.0),
            *(MEGATRON.format(at, " lm loss: 1.0E+01 |", 0.0) for at in range(3, 16)),
        ],
        [
            "The gradient norm is not finite on at least 1 record, step 1",
            "printed as 0 on the last lines that have one, at least 14 records, steps 2 to 15",
            "shows for certain",
        ],
        ["loss is not finite", "a finite gradient norm would"],
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
    "a loss of 0 is told, whatever the program is": (
        [f"Epoch {at}: Loss 0.000, Acc 0.000%" for at in range(20)],
        ["printed as 0 on at least 20 records", "cannot tell"],
        [],
    ),
    "a warning alone is no end": (
        ["UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`."],
        ["the log holds a warning that is known", "cannot tell"],
        ["ERROR", "ends in an error"],
    ),
    "a loss of 0 throughout is no NaN": (
        [f"{{'loss': 0.0, 'learning_rate': {1e-5 - at * 1e-7}, 'epoch': {at / 9}}}" for at in range(9)],
        ["cannot tell", "printed as 0 on at least 9 records"],
        ["Something is wrong"],
    ),
    "two handlers print each line": (
        [f"{before}{line}" for line in SEARCH for before in ("INFO:root:", "")],
        ["Skipped: at least 10 steps"],
        ["at least 20"],
    ),
    "two of apex' scalers are two": (
        [f"{APEX.replace(' 0 ', f' {which} ')} {2.0 ** (15 - at - 6 * which)}" for at in range(4) for which in (0, 1)],
        ["32768 at first and 4096 at last", "told apart"],
        ["lowest 64", "rose", "grew"],
    ),
}


CONFIGURATIONS = [
    '{\n "total_steps": 1000,\n "loss_scale": 0,\n "lr": 0.1\n}',
    "0: 8252.pt', keep=None, learning_rate=0.0015, log_freq=0.0, loss_scale=0.0, x=False, y=True, z=1",
    "python train.py --fp16 --loss_scale 0 --max-steps 500 --lr 0.001",
    "deepspeed train.py --loss_scale=0 --save_steps=500 --num_epoch=3 --learning_rate=1e-5",
    '{"fp16": {"enabled": true, "loss_scale": 0}, "optimizer": {"params": {"lr": 1e-05}}, "steps_per_print": 10}',
    "args: {'lr': 0.001, 'loss_scale': 0, 'epochs': 10, 'fp16': True, 'save_steps': 500}",
    "Resuming from step 5000 with {'scale': 0.0, 'growth_factor': 2.0}",
    "    loss_scale: 0.0, learning_rate: 1e-4, epochs: 3, warmup_steps: 100, eval_steps: 50",
]


@pytest.mark.parametrize("line", CONFIGURATIONS)
def test_a_scale_in_a_configuration_is_none_of_the_run(line: str) -> None:
    """It is 0 there where the scale is dynamic; a terminal or a launcher may have cut the line."""
    run = [f"step {at}: loss: {3 - at / 99:.3f}, grad_norm: 1.{at}\n" for at in range(30)]
    history = read_text("-", [*(f"{part}\n" for part in line.split("\n")), *run])
    assert np.isnan(history.scale).all()
    assert explain(history).verdict == "healthy"


def test_a_scale_of_0_beside_nothing_is_no_finding() -> None:
    assert explain(read_text("-", ["step 3: scale: 0\n"])).verdict == "cannot tell"
    fell = ["step 3: loss: 2.0, scale: 1\n", "step 4: loss: 2.0, scale: 0\n"]
    assert explain(read_text("-", fell)).verdict == "wrong"
    off = "INFO Train: [0/300][{}/34]\tloss 0.9 (0.9)\tgrad_norm 0.0 (0.0)\tloss_scale 0.0000 (0.0000)\n"
    assert explain(read_text("-", [off.format(at) for at in range(9)])).verdict == "cannot tell"


@pytest.mark.parametrize("name", ["scale", "loss_scale"])
def test_a_scale_of_0_that_comes_back_is_none(name: str) -> None:
    """It was printed with few digits; and what is called a mere scale and lies on no power of two is no loss scale."""
    lines = [f"iter {at}: loss: {3 - at / 99:.3f} {name}: {at * 7 % 10 / 10}\n" for at in range(60)]
    explanation = explain(read_text("-", lines))
    assert not [each for each in explanation.statements if each.kind == "scale 0"]
    assert (name == "scale") == (not [each for each in explanation.statements if each.kind in ("scale", "skips")])


def test_a_prediction_without_a_step_does_not_make_steps_epochs(tmp_path: Path) -> None:
    rows = [{"loss": 2.0, "grad_norm": 1.0, "epoch": 0.9, "step": 500}, {"predict_loss": 1.5, "epoch": 1.0}]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}, indent=2))
    assert read_history(tmp_path / "trainer_state.json").unit == "step"


NOT_FINITE = """
loss -> nan
Loss => nan
INFO: loss_total nan
losses: {'loss_ce': nan, 'loss_bbox': 0.2}
the loss of step 3: nan
mse_loss nan
Loss at step 30: nan
Training loss at epoch 25 - nan
lossD nan lossG nan
gen_loss nan disc_loss nan
(epoch: 1, iters: 100, time: 0.1, data: 0.2) G_GAN: nan G_L1: nan D_real: nan D_fake: nan
NaN loss at step 100
NaN loss encountered
Warning: NaN or Inf found in loss
WARNING: loss is NaN, skipping batch
loss became nan at step 3
1: nan, nan avg loss, 0.001000 rate, 3.2 seconds, 64 images
OrderedDict([('epoch', 3), ('train_loss', nan), ('eval_top1', 0.1)])
"""
NO_TRAINING = """
best loss inf
last_loss: inf
delta_loss: nan
lowest_loss: inf
previous loss: inf
Evaluation: loss = nan
Test set: Average loss: nan
2026-01-01 10:00:00 Val: loss nan
loss weights: inf
loss_threshold: inf
stop if loss is nan: True
    LOSS_GAMMA: 2.0
prediction_loss_only=True,
loss_nan_count: 0
loss delta: nan
Is it normal that the loss is nan in the first epoch?
Why is loss nan at step 3?
I use a loss scale; the log says loss is nan and then goes on.
no gradient overflow: scale from 1024 to 2048
https://stackoverflow.com/questions/1/loss-is-nan
"""


@pytest.mark.parametrize("line", NOT_FINITE.strip().split("\n"))
def test_a_loss_that_is_not_finite_is_read_under_any_name(line: str) -> None:
    assert [each.kind for each in explain(read_text("-", [f"{line}\n"])).wrong] == ["forward overflow"]


@pytest.mark.parametrize("line", NO_TRAINING.strip().split("\n"))
def test_what_is_not_finite_beside_the_training_is_no_finding(line: str) -> None:
    run = [f"step {at}: loss: {3 - at / 99:.3f}, grad_norm: 1.{at}\n" for at in range(30)]
    for history in (read_text("-", [f"{line}\n"]), read_text("-", [*run, f"{line}\n"])):
        assert not len(history.step) or not explain(history).wrong


def test_a_loss_under_a_name_that_is_not_known_is_one_loss() -> None:
    """Of several names the first; where a known name comes, no other."""
    parts = [f"step {at}: gen loss total: {2 + at / 9}, loss_kl: {9 - at / 9}\n" for at in range(9)]
    history = read_text("-", parts)
    assert history.loss.tolist() == pytest.approx([2 + at / 9 for at in range(9)])
    assert history.settings["loss"] == "gen_loss_total"
    known = read_text("-", ["step 1: loss: 2.0\n", "step 2: loss_kl: nan\n", "step 3: loss: 1.0, loss_kl: nan\n"])
    assert known.loss.tolist() == [2.0, math.inf, 1.0]


def test_a_trainers_state_of_one_line_is_read(tmp_path: Path) -> None:
    rows = [{"loss": 2.0 - at / 10, "grad_norm": 1.0 + at, "epoch": at / 10, "step": at} for at in range(9)]
    for name in ("trainer_state.json", "state.txt"):
        (tmp_path / name).write_text(json.dumps({"best_metric": None, "log_history": rows, "global_step": 9}))
        assert read_history(tmp_path / name).loss.tolist() == [row["loss"] for row in rows]
