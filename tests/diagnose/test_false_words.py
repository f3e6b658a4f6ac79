"""What was said falsely of strangers' logs in general sentences: where a log lies, why it is healthy, how it ends."""

import json
from pathlib import Path

import numpy as np
import pytest

from ampsim.cli.explain import _print_ledger
from ampsim.diagnose.evidence import Evidence
from ampsim.diagnose.explain import explain, in_words
from ampsim.diagnose.history import History
from ampsim.diagnose.readers.fields import field_of
from ampsim.diagnose.readers.sniff import read_history
from ampsim.diagnose.readers.text import read_text


def read(*lines: str) -> History:
    return read_text("train.log", [f"{line}\n" for line in lines])


def test_a_line_of_fairseq_before_its_first_update_has_a_scale() -> None:
    # facebookresearch/fairscale#121
    at = "2020-10-01 10:55:02 | INFO | "
    run = read(
        f"{at}train_inner | epoch 001:      2 / 78 loss_scale=32, train_wall=0, wall=6",
        f"{at}fairseq.trainer | NOTE: overflow detected, setting loss scale to: 16.0",
        f"{at}train_inner | epoch 001:      3 / 78 loss_scale=16, train_wall=0, wall=7",
    )
    assert "32 at first and 16 at last" in in_words(explain(run))


def test_a_norm_that_was_not_finite_at_last_is_not_said_to_end_the_log() -> None:
    line = "{{'loss': {}, 'grad_norm': {}, 'learning_rate': 1e-4, 'epoch': {}}}"
    rows = [line.format(3 - k / 9, 4.2 + k / 7, k / 9) for k in range(8)]
    why = explain(read(*rows, line.format(2.0, "nan", 1.0), "{'train_runtime': 406.5, 'train_loss': 2.5}")).why
    assert "tells of skipped steps, or of gradients that are not finite" in why
    assert "ends there" not in why


@pytest.mark.parametrize(("mean", "verdict"), [("0.0", "wrong"), ("nan", "wrong"), ("0.5", "cannot tell")])
def test_the_loss_of_the_whole_run_is_held_beside_an_evaluation_that_is_not_finite(mean: str, verdict: str) -> None:
    run = read(
        "{'loss': 2.5, 'learning_rate': 1e-4, 'epoch': 1.0}",
        "{'eval_loss': nan, 'eval_runtime': 3.1, 'epoch': 1.0}",
        f"{{'train_runtime': 36.3, 'train_steps_per_second': 0.2, 'train_loss': {mean}, 'epoch': 1.0}}",
    )
    assert explain(run).verdict == verdict
    assert ("mean loss of the whole run" in in_words(explain(run))) == (mean != "0.5")


@pytest.mark.parametrize(("begin", "verdict"), [("nan", "wrong"), ("5.0", "cannot tell")])
def test_a_trainer_that_ends_at_0_after_losses_that_were_nan_is_not_well(begin: str, verdict: str) -> None:
    losses = ("11.2", begin, "338.6", "0.0", "0.0")
    rows = [f"{{'loss': {loss}, 'learning_rate': 1e-4, 'epoch': {k / 9}}}" for k, loss in enumerate(losses)]
    assert explain(read(*rows)).verdict == verdict


def test_a_summary_without_a_loss_says_nothing_of_it() -> None:
    run = read("{'loss': 2.5, 'learning_rate': 1e-4, 'epoch': 1.0}",
               "{'train_runtime': 155.5, 'eval_loss': 0.65, 'epoch': 1.0}")  # fmt: skip
    assert "whole run" not in in_words(explain(run))


MEGATRON = (
    " iteration={:8d}/   10000 | consumed_samples=        1152 | {}loss_scale=1.0 | number_of_skipped_iterations=  {} "
    "| number_of_nan_iterations=  0 | samples_per_second=11.385 |"
)


def test_a_loss_that_megatron_leaves_out_is_no_good_sign() -> None:
    first = MEGATRON.format(1, "lm loss=11.198063 | ", 0)
    said = explain(read(first, *(MEGATRON.format(k, "", 0) for k in range(2, 9))))
    assert said.verdict == "cannot tell"
    assert "left out on at least 7 lines" in in_words(said)
    skipped = read(first, *(MEGATRON.format(k, "", 1) for k in range(2, 4)))
    assert "left out" not in in_words(explain(skipped))
    assert "left out" not in in_words(
        explain(read(first, "number of skipped iterations: 0 | number of nan iterations: 0"))
    )


def test_a_median_of_norms_is_called_one() -> None:
    line = "Epoch: [3]  [{}/625]  eta: 0:01:00  lr: 0.004  loss: {} (2.9)  grad_norm: {} (inf)  time: 0.1  data: 0.0"
    run = read(*(line.format(k, 2.9 - k / 90, 1.5 + k / 70) for k in range(12)))
    assert explain(run).why.endswith("each is a median over one step or more.")
    assert "a mean that is not finite is printed, on at least 12 lines: " in in_words(explain(run))


def test_the_deepest_falls_are_named_and_how_many_there_are() -> None:
    rows = []
    for k in range(14):  # the first is the search for a scale, which is told by itself
        scales = [2.0**16, 2.0 ** (14 - k)] if k in (3, 12) else [2.0**16, 2.0**14]
        rows += [*scales, 2.0**15, 2.0**16]
    run = read(
        *(f"step: {at}, loss: 2.5, loss_scale: {scale}, grad_norm: {1 + at / 99}" for at, scale in enumerate(rows))
    )
    said = [each for each in explain(run).statements if each.kind == "burst"]
    assert len(said) == 9
    assert {4.0, 2.0**11} <= {each.numbers["to"][0] for each in said}
    assert all("one of 13 falls of two halvings or more" in each.what for each in said)
    assert [each.first for each in said] == sorted(each.first for each in said)


def test_where_a_scale_that_overflowed_is_told_no_other_is_advised() -> None:
    told = [f"Using dynamic loss scale of {2**k}" for k in range(16, 10, -1)]
    run = read(*told, *(f"iter: {at}  loss: {3 - at / 99:.4f}  grad_norm: {1 + at / 77}" for at in range(20, 400, 20)))
    assert "initial scale of" not in in_words(explain(run))


def test_a_date_is_no_batch() -> None:
    line = "[05/23 23:1{}:09] ppdet.engine INFO: Epoch: [0] [{:3d}/125] learning_rate: 0.004 loss: {}"
    run = read(line.format(1, 0, 4.79), "Found inf or nan, current scale is: 1024.0, decrease to: 1024.0*0.5",
               line.format(8, 100, 4.62))  # fmt: skip
    assert 5 not in run.step
    assert [*run.step[run.numbered]] == [0, 100]


def test_one_overflow_at_a_low_scale_that_the_log_outlives_is_a_note() -> None:
    line = "Train: 0 [{}/3665 ( 42%)]  Loss: {} (5106.5)  Time: 0.711s"
    rows = [line.format(1200 + 50 * k, 1400 - 90 * k) for k in range(7)]
    once = ["Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1.0"]
    after = [line.format(1550, 545.1), line.format(1600, 379.5)]
    assert "LOW SCALE" not in in_words(explain(read(*rows, *once, *after)))
    assert "LOW SCALE" in in_words(explain(read(*rows, *once)))


def test_of_several_losses_one_that_is_not_finite_spoils_their_sum() -> None:
    line = "[{}000] model_grad_norm {} / image_loss {} / reward_loss 1.2 / model_loss {} / value_loss 6.4"
    run = read(line.format(5, 1.5, 11650.7, 5864.5), line.format(6, 2.5, 1e30, "inf"))
    assert [*np.isinf(run.loss)] == [False, True]
    icefall = "Epoch 1, batch {}, loss[loss=2.5, over 9 frames.], tot_loss[loss=nan, over 9 frames.], grad_scale: 1.0"
    assert not np.isinf(read(icefall.format(5), icefall.format(6)).loss).any()


def test_what_an_evaluation_says_behind_a_star_is_no_loss_of_the_training() -> None:
    # microsoft/unilm beit/engine_for_finetuning.py evaluate
    for line in ("* Acc@1 76.300 Acc@5 93.100 loss 1.052", "* loss 0.046"):
        run = read("Epoch: [0]  [ 0/10]  eta: 0:00:01  loss: 6.9000 (6.9000)", line)
        assert run.loss.tolist() == [6.9]


def test_a_grad_alone_is_a_norm_and_no_mean_or_largest_one() -> None:
    # duanzhiihao/qres-vae#5
    run = read("Epoch: 31/399 || grad=0.6021 || loss=0.2063", "Epoch: 31/399 || grad=nan || loss=0.2021")
    assert run.norm.tolist() == [0.6021, np.inf]
    assert np.isnan(read("step: 3, avg_grad: 0.01, G_grad: nan, loss: 2.0").norm).all()


def test_the_lines_of_a_notebook_are_said_to_be_of_what_its_cells_printed(tmp_path: Path) -> None:
    printed = [f"step: {k}, loss: 2.5, loss_scale: 65536\n" for k in range(4)]
    notebook = {"cells": [{"cell_type": "code", "outputs": [{"output_type": "stream", "text": printed}]}]}
    path = tmp_path / "run.ipynb"
    path.write_text(json.dumps(notebook, indent=1), encoding="utf-8")
    assert "Lines are counted in what the notebook's cells printed" in in_words(explain(read_history(path)))


def test_the_table_of_skips_says_how_many_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    told = [
        f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {2.0**k}" for k in range(15, 11, -1)
    ]
    late = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 2048.0"
    _print_ledger(read(*told, "iter: 10 loss: 2.5 grad_norm: 1.5", late, "iter: 20 loss: 2.4 grad_norm: 1.4"))
    assert "Skips whose steps are known, 1 of at least 5:" in capsys.readouterr().out


def test_a_compact_object_of_more_than_a_mebibyte_is_read_whole(tmp_path: Path) -> None:
    count = 24_000
    rows = [{"loss": 2.5, "grad_norm": 1.5, "learning_rate": 1e-4, "step": k} for k in range(count)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": rows}, separators=(",", ":")), encoding="utf-8")
    assert path.stat().st_size > 2**20
    assert read_history(path).rows == count


@pytest.mark.parametrize(("every", "stands"), [(4, True), (3, False)])
def test_a_scale_that_stood_for_so_many_steps_above_one_that_it_had_shows_steps(every: int, stands: bool) -> None:
    scales = [65536, 16384, 16384, 4096, 4096, 8192, 8192, 8192]
    run = Evidence(**vars(read(*(f"step: {k * every}, loss: 2.5, loss_scale: {s}" for k, s in enumerate(scales)))))
    assert run.stands.any() == stands


def test_a_weight_of_a_loss_in_a_configuration_is_no_scale() -> None:
    # k2-fsa/icefall train.py prints its parameters as one dictionary
    run = read(
        "2023-09-07 22:39:07,139 INFO [train.py:984] (0/2) {'best_valid_loss': inf, 'simple_loss_scale': 0.5, "
        "'start_epoch': 1, 'use_fp16': True, 'world_size': 2, 'print_diagnostics': False, 'inf_check': False}",
        "2023-09-07 22:40:11,000 INFO [train.py:902] (0/2) Epoch 1, batch 0, loss[loss=7.8, simple_loss=7.1], "
        "batch size: 30, lr: 2.25e-02, grad_scale: 2.0",
    )
    assert run.scale.tolist() == [2.0]
    assert len(read("{'loss': 2.5, 'loss_scale': 8.0, 'found_inf': False, 'skipped': False}").step) == 1


LINES_OF_HF = (
    "{'loss': 6.26, 'learning_rate': 0.001, 'epoch': 0.02}",
    "{'loss': 0.0, 'learning_rate': 0.001, 'epoch': 0.04}",
)


def test_skips_where_no_scale_rises_are_not_laid_on_the_growth_interval() -> None:
    # huggingface/transformers#14531
    skips = "[2021-11-26 03:07:16,494] [INFO] [logging.py:69:log_dist] [Rank 0] step=2000, skipped=1995, lr=[0.001]"
    said = explain(read(LINES_OF_HF[0], *[LINES_OF_HF[1]] * 2, skips, LINES_OF_HF[1]))
    assert "interval" not in in_words(said)
    assert said.why.endswith("nothing that was found shows that the loss scale is the cause.")
    assert {"loss 0", "skips and no rise"} == {each.kind for each in said.wrong}


def test_a_number_at_the_end_of_a_line_that_no_terminal_is_narrow_enough_to_cut_is_read() -> None:
    # NVIDIA/apex#289
    lines = ("Grad overflow on iteration 0", "Using dynamic loss scale of 65536",
             "  1% 1/184 [00:00<01:34,  1.93it/s, loss=4.215]")  # fmt: skip
    assert read(*lines).scale[0] == 65536


def test_where_a_tab_became_a_space_a_loss_that_is_nan_is_read() -> None:
    # NVIDIA/waveglow#228
    said = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 3.16e-322"
    run = read(said, "243413: nan")
    assert (run.left[0], run.loss[1], run.step[1]) == (3.16e-322, np.inf, 243413)


@pytest.mark.parametrize("last", ["29.4", "inf"])
def test_a_few_norms_that_a_scaler_answered_with_a_skip_are_no_fault_where_a_finite_one_follows(last: str) -> None:
    # NVIDIA/tacotron2#485
    lines = ["Train loss 12001 0.166 Grad Norm 0.372 2.51s/it"]
    for k, norm in enumerate(("inf", "inf", "inf", last)):
        lines += [f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {2.0 ** (14 - k)}",
                  f"Train loss {12002 + k} 4.97 Grad Norm {norm} 1.78s/it"]  # fmt: skip
    assert explain(read(*lines)).verdict == ("cannot tell" if last == "29.4" else "wrong")


def test_of_norms_of_which_the_last_is_finite_no_more_is_said() -> None:
    line = "2024-05-01 10:00:0{} - mmengine - INFO - Epoch(train)  [{}][10/10]  loss: 2.5  grad_norm: {}"
    said = in_words(explain(read(*(line.format(k, k, norm) for k, norm in enumerate((6.2, 6.4, 6.1, "inf", 6.3))))))
    assert "the last one is finite" in said
    assert "last ones" not in said


def test_epochs_of_fewer_batches_each_do_not_go_back() -> None:
    line = "Epoch: [{}]  [{:4}/{}]  eta: 0:00:22  loss: 4.9 (5.0)  loss_scale: 131072.0000 (91238.3630)"
    run = read(*(line.format(epoch, at, many) for epoch, many in enumerate((40, 20, 4)) for at in (0, many - 1)))
    assert run.step.tolist() == [0, 39, 40, 59, 60, 63]
    assert "goes back" not in in_words(explain(run))
    assert read(line.format(3, 2, 10), line.format(1, 5, 10)).step.tolist() == [32, 15]


def test_what_people_mark_in_a_thread_is_read() -> None:
    # TMElyralab/MuseTalk#230
    assert read("Steps: 2% 9/59 [19:15<11:20, 1.36it/s, data=0.0078, **loss=nan**, lr=4.99e-5]").loss.tolist() == [
        np.inf
    ]
    assert not len(read("a scale of 2**16, a loss=3**2").step)


def test_a_loss_in_a_sentence_before_another_is_read() -> None:
    # intel-analytics/BigDL#1486
    line = (
        "[Epoch 64 736512/1281167][Iteration {}][Wall Clock 1s] Train 1792. Loss is {}. Current learning rate is 0.046."
    )
    run = read(line.format(45457, 1.26), line.format(45458, "Infinity"))
    assert (run.loss.tolist(), run.step.tolist()) == ([1.26, np.inf], [45457, 45458])


def test_a_time_in_front_of_a_losss_name_is_no_part_of_it() -> None:
    line = "Epoch 0 itr {}/9364: lr: 5e-05 speed: 0.13(0.09s r0.04)s/itr 0.{}h/epoch loss_h: {} loss_c: 4.3"
    assert read(line.format(1, "00", 5.7), line.format(12, 34, 5.8), line.format(13, 33, "nan")).loss.tolist() == [
        5.7,
        5.8,
        np.inf,
    ]
    assert field_of("s/itr 0.34h/epoch loss_h")[0] == field_of("s/itr 0.00h/epoch loss_h")[0]


def test_an_error_that_a_program_logs_is_not_said_to_have_stopped_it() -> None:
    assert "stopped" not in in_words(
        explain(read("loss = 11.2, step = 1", "ERROR:tensorflow:Model diverged with loss = NaN."))
    )


def test_a_bar_that_is_sometimes_a_step_behind_loses_no_warm_up() -> None:
    lines = []
    for k in range(1, 40):
        lines.append(f" 10%|███ | {25 * k - (k % 4 > 0)}/23260 [6:47:18<64:13:24, 10.99s/it]")
        lines.append(f"{{'loss': 0.79, 'learning_rate': {25 * k * 1e-6}, 'epoch': {k / 9}}}")
    assert "behind the steps" not in in_words(explain(read(*lines)))


def test_the_number_of_an_epoch_in_brackets_is_no_batch() -> None:
    # jingyaogong/minimind trainer
    line = "Epoch:[1/1]({}/56608), loss: {}, logits_loss: 2.49, aux_loss: 0.0000, lr: 0.00001000, epoch_time: 116.0min"
    run = read(line.format(50, 2.49), line.format(100, 2.41), line.format(150, "nan"))
    assert run.loss.tolist() == [2.49, 2.41, np.inf]
    assert np.diff(run.step).tolist() == [50, 50]


RANK_0 = "[2023-05-01 10:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped={}, lr=[0.1]"


def test_a_share_that_is_a_lower_bound_is_not_rounded_up() -> None:
    told = in_words(explain(read(*(RANK_0.format(1000 * k, round(59.6 * k)) for k in range(11)))))
    assert "At least 536 steps of 9000 were skipped" in told
    assert "at least 5.9 %" in told


def test_a_growth_that_is_printed_is_not_said_to_be_reconstructed() -> None:
    # deepspeedai/DeepSpeedExamples DeepSpeed-Chat, its log of opt-350m
    rows = [RANK_0.format(0, 0)]
    for k in range(1, 6):
        rows.append("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4096.0, reducing to 2048.0")
        rows.append(RANK_0.format(110 * k, k))
    assert "Reconstructed" in in_words(explain(read(*rows)))
    grown = "[fused_optimizer.py:352:_update_scale] Increasing dynamic loss scale from 2048.0 to 4096.0"
    assert "Reconstructed" not in in_words(explain(read(*rows[:3], grown, *rows[3:])))


@pytest.mark.parametrize(("norm", "kind"), [("1.5", "needless scale"), ("1e-9", "endless growth")])
def test_a_scale_that_grows_for_ever_beside_norms_is_not_float16s(norm: str, kind: str) -> None:
    # OpenGVLab/VideoMAEv2: another run stands before
    line = '{{"epoch": {}, "train_loss": {}, "train_loss_scale": {}, "train_grad_norm": ' + norm + "}}"
    first = [line.format(k, 0.7, 2.0 ** (30 + 3 * k)) for k in range(10)]
    run = [line.format(k, 0.6 - k / 99, 2.0 ** (16 + 3 * k)) for k in range(14)]
    said = explain(read_text("log.txt", [f"{each}\n" for each in (*first, *run)]))
    [told] = [each for each in said.statements if "grown to" in each.what]
    assert told.kind == kind
    assert told.lines[0] > len(first)
    assert said.verdict == ("cannot tell" if kind == "needless scale" else "wrong")


def test_an_evaluation_under_any_of_its_names_is_told_where_it_is_not_finite() -> None:
    run = read(
        "INFO:root:avg. train_loss 2.701", "INFO:root:avg. test_loss nan avg. Accuracy@1 0.001 - avg. Accuracy@5 0.012"
    )
    assert "loss of the evaluation is not finite, on at least 1 line" in in_words(explain(run))
    assert run.loss.tolist() == [2.701]


def test_an_overflow_with_an_arrow_between_its_scales_is_read() -> None:
    run = read("OVERFLOW! Scale value 4294967296 -> 2147483648", "batch: 9, time: 28.32, loss: 55.84")
    assert (run.scale[0], run.left[0], run.told[0]) == (2.0**32, 2.0**31, 1)


def test_an_event_of_mllog_is_read() -> None:
    line = ':::MLLOG {{"key": "train_loss", "value": {}, "metadata": {{"lineno": 564}}}}'
    assert read(line.format(1.92), line.format(1.67)).loss.tolist() == [1.92, 1.67]


def test_numbers_of_a_configuration_are_no_losses() -> None:
    assert not len(
        read("    LOSS_ENTROPY_W: 0.01", "parameters of networks: {'netE': 3323008, 'vgg_loss': 3505740}").step
    )


def test_of_several_norms_the_largest_is_read_and_one_that_is_not_finite_before_all() -> None:
    # danijar/dreamer#58; MCG-NJU/MOTIP
    line = "[{}] model_grad_norm {} / value_grad_norm 40.3 / actor_grad_norm 0.3 / model_loss 58.5"
    assert read(line.format(5000, "nan"), line.format(6000, 61.0), line.format(7000, 2.0)).norm.tolist() == [
        np.inf,
        61.0,
        40.3,
    ]


def test_the_norm_of_a_batch_that_is_left_out_is_read() -> None:
    # ml-explore/mlx-lm#1658
    run = read("Iter 40: SKIPPED non-finite batch (loss 1.23, norm nan) -- weights untouched")
    assert run.norm.tolist() == [np.inf]


def test_a_total_in_brackets_behind_a_losss_name_is_of_the_name_and_a_unit_is_not() -> None:
    run = read("[1, 0] - train_losses - Autoencoder Loss (total): nan - elapsed time per iteration (ms): 4362.1")
    assert (run.loss.tolist(), run.unit) == ([np.inf], "line")


def test_where_there_is_no_record_an_error_is_not_said_to_follow_one() -> None:
    said = in_words(explain(read("ERROR:tensorflow:Model diverged with loss = NaN.")))
    assert "After the last record of a run, if one was read, the log holds an error" in said
    assert "Records were read" not in said


def test_parameters_that_a_program_says_are_not_finite_are_told() -> None:
    # speechbrain/speechbrain#2031
    run = read("2023-06-14 13:04:41,744 - speechbrain.core - WARNING - Parameter is not finite: Parameter containing:")
    assert [each.kind for each in explain(run).wrong] == ["parameters"]


def test_a_row_of_a_table_without_lines_is_read_where_its_loss_is_nan() -> None:
    # juliusfrost/dreamer-pytorch#86
    at = "2022-07-13 11:45:22.240340  | model_loss/{}              nan"
    assert read(*map(at.format, ("Average", "Median"))).loss.tolist() == [np.inf, np.inf]


def test_a_fall_after_hundreds_of_updates_is_of_no_search() -> None:
    # mlcommons/training_results_v0.6 NVIDIA transformer: falls in the first, the second and the fourth epoch
    said, line = (
        "| WARNING: overflow detected, setting loss scale to: {}.0",
        "| epoch {:03} | loss {} | num_updates {} | gnorm 2.5",
    )
    scales = {1: [64, 32], 2: [16], 4: [8]}
    lines = [text for k in range(1, 6)
             for text in (*map(said.format, scales.get(k, ())), line.format(k, 11 - k, 250 * k))]  # fmt: skip
    assert "The scale falls from 32 to 8, lines 2 to 7." in in_words(explain(read(*lines)))
    early = [*map(said.format, (64, 32, 16, 8)), *(line.format(k, 11 - k, 250 * k) for k in range(1, 6))]
    assert "begins with a fall of the scale, from 64 to 8" in in_words(explain(read(*early)))


def test_where_no_skip_is_counted_none_is_said_to_be_told() -> None:
    line = "[2025-02-06 23:57:21,686] [INFO] [logging.py:129:log_dist] [Rank 0] step={}, skipped=0, lr=[0.1]"
    why = explain(read(*(line.format(k) for k in range(0, 90, 10)))).why
    assert "it counts skips, and tells of none" in why


def test_a_scale_is_of_the_line_that_has_it_where_skips_were_counted_before() -> None:
    run = read(
        "[2025-02-06 23:57:21,686] [INFO] [logging.py:129:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0005]",
        "Epoch: [0]  [   0/2757]  eta: 5:34:48  loss: 4.9763 (4.9763)  loss_scale: 128.0000 (128.0000)",
    )
    assert (run.line.tolist(), run.scale.tolist()) == ([2], [128])


def test_losses_behind_an_accuracy_of_the_validation_and_those_of_gluoncv_are_read() -> None:
    acc = "Epoch: {}/100 Train accuracy: 1.8e-01 Validation accuracy: 1.456667e-01 Loss {} Time taken: 0:00:45.996090"
    assert read(acc.format(3, 2.5), acc.format(4, "nan")).loss.tolist() == [2.5, np.inf]
    # dmlc/gluon-cv#142
    assert read("INFO:root:[Epoch 0][Batch 1], CrossEntropy=nan, SmoothL1=nan").loss.tolist() == [np.inf]


def test_a_subnormal_scale_is_said_as_it_is_printed() -> None:
    # NVIDIA/waveglow#79
    said = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {}"
    assert "8e-323 at first" in in_words(explain(read(*map(said.format, ("8e-323", "4e-323", "2e-323")))))


def test_a_loss_that_nemo_warns_of_is_told() -> None:
    # NVIDIA/NeMo#1225
    run = read("[NeMo W 2020-09-26 17:52:50 actions:1479] Loss is NaN or inf.")
    assert run.loss.tolist() == [np.inf]


def test_a_fall_to_a_printed_0_has_as_many_halvings_at_least() -> None:
    # deepinsight/insightface#1715
    line = (
        "Speed 463.03 samples/sec   Loss {}   Epoch: 0   Global Step: {}   Fp16 Grad Scale: {:2}   Required: 237 hours"
    )
    said = explain(read(line.format(44.1, 2750, 12800), line.format(43.0, 2800, 12800), line.format("nan", 2850, 0)))
    assert "at least 14.64 halvings" in in_words(said)


def test_a_record_of_several_lines_is_said_to_go_by_its_last(tmp_path: Path) -> None:
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": [{"loss": 2.5, "step": 1}, {"loss": 2.4, "step": 2}]}, indent=1))
    assert "A record of several lines goes by the last of them." in in_words(explain(read_history(state)))


def test_a_first_count_of_all_skips_is_not_of_the_end_of_the_log() -> None:
    line = "Epoch: [23]  [{}/893]  eta: 0:09:31  loss: 0.3 (0.3)  loss_scale: {}.0 (6059.8)"
    lines = [line.format(k, 4096 if k < 300 else 8192) for k in range(0, 400, 10)]
    count = "[2025-03-11 08:11:00,000] [INFO] [logging.py:129:log_dist] [Rank 0] step=21000, skipped=123, lr=[0.1]"
    assert "ends in at least" not in in_words(
        explain(read(*lines, count, line.format(400, 8192), line.format(410, 8192)))
    )
