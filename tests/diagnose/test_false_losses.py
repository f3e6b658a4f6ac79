"""Sentences on losses that were false of logs of many programs: each with what has to be said instead."""

import pytest

from tests.diagnose.said import hold

CASES = {
    "a function that returned NaN ends a log": (
        ["step: 1, loss: 2.0", "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."],
        ["the log holds an error"],
        [],
    ),
    "the last loss is not finite": (
        ["step 1, loss: 2.0", "step 2, loss: 2.0", "step 3, loss: 2.0", "step 4, loss: inf"],
        ["LOSS NOT FINITE: A loss is not finite on at least 1 record, step 4."],
        ["finite at the end", "FORWARD", "forward pass, whatever"],
    ),
    "a loss that came back once may do so again": (
        [f"step {at}, loss: {'inf' if at in (4, 19) else 3 - at / 99}" for at in range(20)],
        ["cannot tell", "the last one among them"],
        ["LOSS NOT FINITE"],
    ),
    "some norms are not finite": (
        [f"step {at}, loss: {3 - at / 50:.2f}, grad_norm: {'inf' if at == 9 else 1 + at / 7:.4}" for at in range(40)],
        ["finite gradient norms were read"],
        ["every gradient norm that was read"],
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
    "OpenNMT's loss is a cross-entropy": (
        [
            f"Step {50 * at}/50000; acc: 0.19; ppl: nan; xent: {2.3 if at < 3 else 'nan'}; lr: 0.00070; 1928 tok/s;"
            for at in range(6)
        ],
        ["LOSS NOT FINITE", "steps 150 to 250"],
        ["Healthy"],
    ),
    "Marian's loss is a cost": (
        [
            f"[2020-09-05 20:22:42] Ep. 1 : Up. {at}00 : Sen. 137,255 : Cost {cost} : Time 17.18s : gNorm 41172.8250"
            for at, cost in enumerate(["314.004", "211.394", "nan", "nan"], 1)
        ],
        ["LOSS NOT FINITE", "steps 300 to 400"],
        ["Healthy"],
    ),
    "a GAN has several losses": (
        ["INFO:mi-test:loss_disc=3.322, loss_gen=3.670", "INFO:mi-test:loss_disc=nan, loss_gen=nan"],
        ["LOSS NOT FINITE"],
        ["Healthy"],
    ),
    "HiFi-GAN's losses have names of their own": (
        [
            f"Steps : {at}, Gen Loss Total : {loss}, Mel-Spec. Error : 2.021, s/b : 0.443"
            for at, loss in [(0, "101.349"), (5, "94.055"), (10, " nan"), (15, " nan"), (20, " nan")]
        ],
        ["LOSS NOT FINITE", "on at least 3 records, steps 10 to 20"],
        ["Healthy"],
    ),
    "XLM says that its loss is NaN": (
        [f"WARNING - 10/04/19 16:19:1{at} - 0:19:06 - NaN detected" for at in range(4)]
        + ["INFO - 10/04/19 16:19:14 - 0:19:07 -    4150 -  118.0 sent/s - MLM-en:      nan -  - model LR: 1.3920e-05"],
        ["LOSS NOT FINITE", "on at least 5 records"],
        ["Healthy"],
    ),
    "a trainer raises what it found": (
        ["     | > loss_gen: 2.44422  (2.17234)", "RuntimeError:  > Detected NaN loss - {'loss_disc': tensor(nan)}."],
        ["an error that is known: loss not finite."],
        ["Healthy"],
    ),
    "gradients that are made zero were not finite": (
        [f"[NeMo W 10:{at}] detected inf or nan values in gradients! Setting gradients to zero." for at in range(20)],
        ["NO STEP SEEN"],
        ["Healthy"],
    ),
    "Composer's loss is a path": (
        [f"\t Train loss/train/total: {'nan' if at > 2 else 9 - at}" for at in range(9)],
        ["LOSS NOT FINITE", "on at least 6 records"],
        ["Healthy"],
    ),
    "what is not finite has its name in the exception": (
        ["[55045] core_hours=5.4, uptime=19705.6", "train_utils.TrainingDivergedError: NaN detected in train_loss"],
        ["an error that is known: loss not finite."],
        ["Healthy"],
    ),
    "a traceback is cut": (
        ["loss_gen: 2.4", 'trainer.py", line 466, in _optimize', '    raise RuntimeError(f" > Detected NaN'],
        ["the log holds an error that is known: loss not finite"],
        ["higher", "rise"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_false_sentence_is_not_said_again(case: str) -> None:
    hold(CASES[case])
