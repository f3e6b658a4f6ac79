"""Sentences that were false of logs of DeepSpeed, Megatron and fairseq: each with what has to be said instead."""

import math

import pytest

from tests.diagnose.said import FAIRSEQ, MEGATRON, NOTE, RANK, SCALER, SEARCH, SEARCHED, hold

CASES = {
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
    "two engines' scales rise nowhere": (  # as DeepSpeed-Chat's actor and critic, whose lines have one tag
        [f"{RANK} step=0, skipped=0, lr=[0.1]", *(each for each in SEARCH[:3] for _ in range(2))]
        + [f"{RANK} step=10, skipped=3, lr=[0.{engine}]" for engine in range(2)],
        ["cannot tell"],
        ["rises", "its scale grew"],
    ),
    "a run that is started again counts from 0 by the same engine": (
        [
            f"[d2.utils.events]:  eta: 1:16:10  iter: {at}  total_loss: {3 - at / 999:.3f}" if text is None else text
            for start in range(2)
            for at, text in [
                (0, f"{RANK} step=0, skipped=0, lr=[0.1]"),
                *((20 * k, SEARCH[k] if k < 6 else None) for k in range(60)),
                *((1200 + 20 * k, SEARCH[4] if k % 9 == 3 else None) for k in range(40)),
            ]
        ],
        ["healthy"],
        ["NO STEP SEEN", "several ranks, engines"],
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
    "a search of which only the counts are left": (
        [f"{RANK} step=5, skipped=5, lr=[0.1]", f"{RANK} step=15, skip"],
        ["cannot tell"],
        ["NO STEP SEEN"],
    ),
    "a fall before a total is in the total": (
        [SEARCH[0], SEARCH[6], f"{RANK} step=20, skipped=20, lr=[0.1]", SEARCH[9]],
        ["at least 20 steps"],
        [],
    ),
    "17 skips of 40 are not few": (
        [*SEARCH, *(f"{RANK} step={at}, skipped=17, lr=[0.1]" for at in range(17, 41))],
        ["what it says of skips shows steps that were taken in its last third"],
        ["counted and few"],
    ),
    "a cause besides the scale": (
        [
            f"{RANK} step=1, skipped=0, lr=[0.1]",
            f"{RANK} step=2, skipped=0, lr=[0.1]",
            f"{RANK} step=1000, skipped=700, lr=[0.1]",
            f"{SCALER} Attempted loss scale: 2.0, reducing to 1.0",
            f"{RANK} step=1001, skipped=701, lr=[0.1]",
            f"{SCALER} Attempted loss scale: 2.0, reducing to 1.0",
            f"{RANK} step=1002, skipped=702, lr=[0.1]",
            f"{SCALER} Attempted loss scale: 1.0, reducing to 1.0",
            f"{RANK} step=1003, skipped=703, lr=[0.1]",
            f"{RANK} step=1004, skipped=703, lr=[0.1]",
        ],
        ["; some of what was found is of the loss scale itself", "SKIPS TOO OFTEN", "LOW SCALE"],
        ["and it is the loss scale"],
    ),
    "a search that begins anew where no number shows a start": (
        [*SEARCHED, *["Reading the data"] * 6, *SEARCHED],
        ["Cannot tell"],
        ["COLLAPSE", "Something is wrong"],
    ),
    "others divide by 0 too": (
        [f"{SCALER} Attempted loss scale: 65536, reducing to 32768", "ZeroDivisionError: float division by zero"],
        [],
        ["divides by its loss scale"],
    ),
    "a bar and a sentence share a line": (
        [
            f"[Train]: 0%| | {at}/8614 [00:00<1:00:07, 2.39it/s, loss={loss}, lr=2.5e-05][deepscale] OVERFLOW! "
            f"Rank 0 Skipping step. Attempted loss scale: {2.0 ** (33 - at)}, reducing to {2.0 ** (32 - at)}"
            for at, loss in [(1, 265.25), (2, "nan"), (3, "nan"), (4, "nan")]
        ],
        ["LOSS NOT FINITE", "on at least 3 records, lines 2 to 4", "at least 4 steps"],
        ["Healthy"],
    ),
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
    "of a total that a later start takes over only what it grows by counts": (
        [f"{RANK} step={at}, skipped={6 + at // 50}, lr=[0.1]" for at in (50, 100, 150)]
        + [f"{RANK} step={at}, skipped={6 + at // 50}, lr=[0.1]" for at in (100, 150, 200)],
        ["Skipped: at least 11 steps"],
        ["at least 19", "Skipped: 1"],
    ),
    "a legend in a summary is no record": (
        [f"[OVERFLOW] step={at} loss=nan" for at in range(3)] + ["Overflow steps (loss=inf/nan): 3/3 (99.7%)"],
        ["not finite on at least 3 records"],
        ["at least 4"],
    ),
    "two handlers print each line": (
        [f"{before}{line}" for line in SEARCH for before in ("INFO:root:", "")],
        ["Skipped: at least 10 steps"],
        ["at least 20"],
    ),
    "a count of 0 beside a norm that stands is no proof": (
        [MEGATRON.format(at, f" lm loss: {4 - at / 100:.6E} |", 464441.887) for at in range(20)],
        ["cannot tell"],
        ["its skips are counted and few"],
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
    "a run that has gone on for 5000 steps has started": (
        [MEGATRON.format(at, "", float("nan")) for at in range(5426, 5432)],
        ["No line that was read shows that a step was taken"],
        ["NEVER STARTED"],
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
    "one rank notes each overflow": (
        [
            f"{line}"
            for at in range(4)
            for line in (NOTE, f"2026-01-01 epoch 001: loss=3, num_updates={100 * at}, loss_scale=8")
        ],
        ["Skipped: at least 4 steps"],
        [],
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
    "fairseq sums over tokens": (
        [
            *(f"| WARNING: overflow detected, setting loss scale to: {2.0**-k}" for k in (6, 7, 8)),
            *(FAIRSEQ.format(at, at, 0.004, 0.004) for at in range(1, 9)),
        ],
        ["healthy", "every gradient norm that was read is finite"],
        ["LOW SCALE"],
    ),
    "fairseq prints its newest scale, and no mean": (
        [FAIRSEQ.format(at, at, scale, scale) for at, scale in enumerate([4, 4, *[1] * 17])],
        ["falls from", "healthy"],
        ["means"],
    ),
    "a search ends where many steps were taken": (
        [
            *(MEGATRON.format(at + 1, "", 1.0).replace("65536.0", str(2.0 ** (16 - at))) for at in range(4)),
            *(MEGATRON.format(at, "", 1 + at / 99).replace("65536.0", "8192.0") for at in range(5, 40)),
            *(MEGATRON.format(at, "", 1 + at / 99).replace("65536.0", str(2.0 ** (52 - at))) for at in range(40, 44)),
        ],
        ["begins with a fall of the scale, from 65536 to 8192, steps 1 to 4", "falls from 8192 to 512, steps 39 to 43"],
        ["from 65536 to 512"],
    ),
    "fairseq rounds": (
        [FAIRSEQ.format(at, at, scale, scale) for at, scale in [(1, 0.125), (2, 0.062), (3, 0.062)]],
        ["they may be rounded"],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_false_sentence_is_not_said_again(case: str) -> None:
    hold(CASES[case])
