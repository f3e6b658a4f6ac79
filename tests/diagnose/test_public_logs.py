"""What is said of logs that people have published: their numbers, in lines as their programs print them."""

import math

import numpy as np
import pytest

from ampsim.diagnose.explain import explain, findings, in_words, least_skips
from ampsim.diagnose.readers.sniff import read_history


def kinds(run):
    return [each.kind for each in explain(run).statements]


def read(tmp_path, text, name="train.log"):
    path = tmp_path / name
    path.write_text(text)
    return read_history(path)


def megatron(step, loss, scale, norm=0.0, skipped=0, total=311541):
    return (
        f" iteration {step:8d}/{total:8d} | consumed samples:     10698064 | elapsed time per iteration (ms): "
        f"22306.6 | learning rate: 9.850E-05 | global batch size:  1024 | lm loss: {loss:.6E} | "
        f"loss scale: {scale:.1f} | grad norm: {norm:.3f} | num zeros: 0.0 | "
        f"number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |\ntime (ms)\n"
    )


BLOOM_13B = [  # bigscience/train/tr1-13B-base/chronicles.md, "A huge lm loss spike"
    (29020, 2.775923, 32768.0), (29030, 2.772822, 32768.0), (29040, 2.768131, 65536.0), (29050, 7.343709, 8192.0),
    (29060, 8.715872, 4096.0), (29070, 7.654131, 4096.0), (29080, 7.192470, 4096.0), (29090, 6.849044, 4096.0),
]  # fmt: skip


def test_bloom_13b_hid_four_skips_and_its_loss_rose(tmp_path):
    run = read(tmp_path, "".join(megatron(*row) for row in BLOOM_13B))
    assert run.program == "Megatron"
    assert np.nansum(run.told) == 0
    assert least_skips(run) == 4
    [finding] = findings(run)
    assert (finding.kind, finding.step) == ("loss rose", 29040)
    assert "before is 2.77, that of those after is 7.34" in finding.what
    assert least_skips(run) == 4


def test_bloom_104b_logged_its_norm_times_the_scale_which_no_line_proves(tmp_path):
    # bigscience/train/tr8-104B-wide/chronicles.md, experiment 1
    rows = [
        (7000, 6.444662, 2048.0, 98258.265),
        (7010, 11.42026, 2048.0, 219645.978),
        (7220, 7.155109, 2048.0, 16921.991),
    ]
    assert findings(read(tmp_path, "".join(megatron(*row, total=159576) for row in rows))) == []


def test_glm_130b_falls_to_the_end(tmp_path):
    # GLM-130B/logs/main-log-en.md, 2022-06-12: the scale falls from step 33710 on, the loss explodes at 33740
    scales = {33710: 4096.0, 33720: 256.0, 33730: 16.0, 33740: 1.0, 33750: 0.1}
    losses = {33740: 6.1, 33750: 8.4}
    steps = range(33600, 33760, 10)
    run = read(tmp_path, "".join(megatron(step, losses.get(step, 2.1), scales.get(step, 65536.0)) for step in steps))
    assert explain(run).verdict == "wrong"


def test_the_scale_of_a_torch_run_fell_between_two_lines(tmp_path):
    # pytorch#157436
    text = "".join(
        f"step {i}: loss=0.4, scale={s}\n" for i, s in enumerate([65536.0, 131072.0, 131072.0, 5.29e-23, 5.29e-23])
    )
    explanation = explain(read(tmp_path, text))
    assert [each.kind for each in explanation.wrong] == ["collapse"]
    assert "from 131072 to 5.29e-23, steps 2 to 3, 91 halvings" in in_words(explanation)


def overflow(scale, to=None, rank=0, before=""):
    told = f"reducing to {to}" if to else "but hysteresis is 2. Reducing hysteresis to 1"
    return (
        f"{before}[2023-04-28 06:51:29,903] [INFO] [loss_scaler.py:188:update_scale] [deepspeed] OVERFLOW! Rank {rank} "
        f"Skipping step. Attempted loss scale: {scale}, {told}\n"
    )


def total(step, skipped):
    return (
        f"[2023-04-28 06:51:35,000] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, "
        "lr=[9.6e-06, 9.6e-06], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
    )


def test_deepspeed_counts_its_skips_once(tmp_path):
    # DeepSpeed#931: six overflows in ten steps, two more by step 510, and a loss that is not logged
    falls = [overflow(65536), *(overflow(2**k, 2 ** (k - 1)) for k in range(16, 11, -1))]
    text = "".join([*falls, total(10, 6), total(500, 6), overflow(4096), overflow(4096, 2048), total(510, 8)])
    run = read(tmp_path, text)
    assert run.program == "DeepSpeed"
    assert explain(run).verdict == "healthy"
    [skips] = [each for each in explain(run).statements if each.kind == "skips"]
    assert skips.numbers["skips"] == (8, None)
    assert "dialect" not in in_words(explain(run)).lower()


def test_a_trainer_with_deepspeed_ends_at_its_minimum(tmp_path):
    # Chinese-LLaMA-Alpaca#534: from 64 down to the end of the run, with a progress bar in the same line
    lines = [overflow(2.0**k, 2.0 ** (k - 1), before=f" 14%|█▍    | {383 - k}/2724 [13:58:09<86:18:35, 132.44s/it]")
             for k in range(16, 0, -1)]  # fmt: skip
    lines.insert(4, "{'loss': 2.0491, 'learning_rate': 0.0001961913563176343, 'epoch': 0.28}\n")
    run = read(tmp_path, "".join(lines) + overflow(1.0, 1.0) + "Exception: Current loss scale already at minimum - "
               "cannot decrease scale anymore. Exiting run.\n")  # fmt: skip
    assert "at minimum" in kinds(run)


def test_fairseq_ran_down_to_its_minimum(tmp_path):
    # fairseq#512: epochs in the old form, then a ladder of overflows
    epoch = (
        "| epoch 027 | loss 6.343 | nll_loss 4.984 | ppl 31.65 | wps 164346 | num_updates 10198 | lr 0.000626286 | "
        "gnorm 0.390 | clip 0% | oom 0 | loss_scale 0.500 | wall 23080 | train_wall 21383\n"
        "| epoch 027 | valid on 'valid' subset | valid_loss 8.30118 | valid_nll_loss 7.15366 | num_updates 10198\n"
    )
    ladder = [f"| WARNING: overflow detected, setting loss scale to: {2.0**-k}\n" for k in range(2, 14)]
    run = read(tmp_path, epoch + "".join(ladder))
    assert run.program == "fairseq"
    assert (run.loss[0], run.norm[0], run.scale[0]) == (6.343, 0.39, 0.5)
    assert run.left[-1] == 2.0**-13
    assert explain(run).verdict == "wrong"


def test_metaseq_prints_its_numbers_as_text_in_json(tmp_path):
    # OPT's trainer: one object per line behind a stamp; norms of activations are none of gradients
    line = (
        '2021-11-05 12:31:36 | INFO | train_inner | {{"epoch": 1, "actv_norm": "101.5", "tok_norm": "3.2", '
        '"loss": "{}", "ppl": "91120.8", "num_updates": "{}", "lr": "2e-05", "gnorm": "{}", "clip": "0", '
        '"loss_scale": "{}"}}\n'
    )
    run = read(
        tmp_path, line.format(16.475, 1, 20.751, 4) + line.format(16.446, 2, 19.777, 4) + line.format(16.3, 3, 18, 8)
    )
    assert run.step.tolist() == [1, 2, 3]
    assert run.norm.tolist() == [20.751, 19.777, 18.0]
    assert run.loss.tolist() == [16.475, 16.446, 16.3]
    assert run.scale.tolist() == [4.0, 4.0, 8.0]
    assert findings(run) == []


def test_apex_tells_each_overflow_once_per_rank_and_goes_below_float32(tmp_path):
    # FactSeg#6: the scale is a Python float, and ends at 0 by division
    said = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {0}\n" * 2
    scales = [2.0**-k for k in range(-15, 1075)]
    run = read(tmp_path, "step 1 loss: 0.4\n" + "".join(said.format(scale) for scale in scales))
    assert run.program == "apex"
    assert int(np.nansum(run.told)) == len(scales)
    assert explain(run).verdict == "wrong"


def test_swin_prints_averages_behind_its_values(tmp_path):
    text = (
        "[2021-04-25 05:35:19 swin] (main.py 310): INFO Train: [0/300][{}/5004]\teta 0:17:06 lr 0.000500\ttime 1.1737 "
        "(1.0765)\tloss 3.2572 (3.3279)\tgrad_norm {} (nan)\tloss_scale 65536.0000 (65536.0000)\tmem 4814MB\n"
    )
    run = read(tmp_path, text.format(4050, 1.0323) + text.format(4060, "nan"))
    assert run.loss.tolist() == [3.2572, 3.2572]
    assert run.norm.tolist() == [1.0323, math.inf]
    assert run.scale.tolist() == [65536.0, 65536.0]


@pytest.mark.parametrize("norm", ["nan", "inf"])
def test_a_trainer_whose_loss_is_zero_and_norm_nan_is_said_to_print_it_so(tmp_path, norm):
    lines = ["{'loss': 2.5, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.1}\n"] * 3
    lines += [f"{{'loss': 0.0, 'grad_norm': {norm}, 'learning_rate': 5e-05, 'epoch': 0.2}}\n"] * 3
    [found] = findings(read(tmp_path, "".join(lines)))
    assert (found.kind, found.numbers["count"]) == ("loss 0 beside the norm", (3, None))


@pytest.mark.parametrize("lines", [1, 2, 3, 6, 9, 20])
def test_a_search_for_the_first_scale_is_no_alarm(tmp_path, lines):
    # bigscience/experiments/gpt2-meg: five runs begin at 2^32, skip 19 steps of the first 30 and none after them
    printed = [(10, 23), (8, 15), *([(1, 14)] + [(0, 14)] * 17)][:lines]
    text = "".join(megatron(10 * n, 9.0 + n, 2.0**k, skipped=skips) for n, (skips, k) in enumerate(printed, 1))
    assert findings(read(tmp_path, text)) == []


def test_a_warm_up_that_stands_still_counts_its_skips(tmp_path):
    # an HF run whose scheduler waits while steps are skipped: 3 of the first 50
    rates = [(25, 23), (50, 47), (75, 72), (100, 97), (125, 122), (150, 147)]
    text = "".join(
        f" {s}/9000 [00:01<00:09]{{'loss': 2.5, 'grad_norm': 1.5, 'learning_rate': {n * 2e-8}, 'epoch': 0.1}}\n"
        for s, n in rates
    )
    [rate] = [each for each in explain(read(tmp_path, text)).statements if each.kind == "rate counts"]
    assert rate.numbers["skips"] == (2, None)  # the first line may be one behind


ERRORS = """Attempting to unscale FP16 gradients. | No inf checks were recorded for this optimizer. |
unscale_() has already been called on this optimizer since the last update(). |
unscale_() is being called after step(). |
step() has already been called since the last update(). | Attempted step but _scale is None. |
_growth_tracker initialized before _scale | Exception: Current loss scale already at minimum - cannot decrease |
FloatingPointError: Minimum loss scale reached (0.0001)"""


@pytest.mark.parametrize("error", [each.strip() for each in ERRORS.split("|")])
def test_an_error_text_is_a_log_of_one_line_and_ends_a_log(tmp_path, error):
    alone = explain(read(tmp_path, f"RuntimeError: {error}\n"))
    assert alone.verdict == "wrong"
    run = read(tmp_path, "step 1 loss: 2.0 scale: 8 grad_norm: 1\n" * 3 + f"Traceback\nRuntimeError: {error}\n")
    assert explain(run).verdict == "wrong"


@pytest.mark.parametrize("text", [
    "SinePositionalEncoding(num_feats=128, scale=6.283185307179586, eps=1e-06)\nstep 1 loss: 2\n",
    "fp16 = dict(loss_scale=512.0)\nstep 1 loss: 2\n", '  "loss_scale": 0,\nstep 1 loss: 2\n',
    "Namespace(lr=0.1, loss_scale=128, log_step=10, loss=1)\nstep 1 loss: 2\n",
])  # fmt: skip
def test_a_configuration_is_no_data(tmp_path, text):
    run = read(tmp_path, text)
    assert np.isnan(run.scale).all()
    assert run.loss.tolist() == [2.0]


SUMMARIES = {
    "ESPnet": [  # espnet/espnet#5633: the scale of the last line is the mean of the epoch
        "(trainer:737) INFO: 1epoch:train:1-1000batch: loss=251.981, grad_norm=54.606, loss_scale=6.554e+04",
        "(trainer:737) INFO: 1epoch:train:1001-2000batch: loss=151.208, grad_norm=43.966, loss_scale=6.554e+04",
        "(trainer:737) INFO: 1epoch:train:2001-3000batch: loss=90.847, grad_norm=51.819, loss_scale=1.311e+05",
        "(trainer:343) INFO: 1epoch results: [train] loss=141.051, grad_norm=46.485, loss_scale=9.782e+04, [valid]",
    ],
    "Trainer": [  # what save_metrics prints at the end of a run
        *(f"{{'loss': {2 - i / 5}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {i / 10}}}" for i in range(1, 5)),
        "***** train metrics *****",
        "  train_loss               =       2.45",
    ],
    "a line of the validation": [  # starrytong/SCNet#14
        *(f"2024-08-25 14:48:04,998 - INFO - Train Summary | Epoch {i} | Loss={9 - i} | Grad=1.5" for i in range(4)),
        "2024-08-25 14:58:37,505 - INFO - Valid Summary | Epoch 4 | Loss=nan | Nsdr=nan",
    ],
}


@pytest.mark.parametrize("program", SUMMARIES)
def test_a_summary_is_no_record(tmp_path, program):
    lines = SUMMARIES[program]
    run = read(tmp_path, "\n".join(lines) + "\n")
    assert run.line.size == sum("loss" in line.lower() for line in lines) - 1
    assert least_skips(run) == 0
    assert "not finite" not in in_words(explain(run))


def test_nvidia_bert_prints_the_scale_after_each_overflow(tmp_path):
    # NVIDIA/DeepLearningExamples#543: a lone scale, which would be a setting elsewhere
    at = "DLL 2020-05-28 08:53:10.435230 - "
    rows = [f"{at}PARAMETER loss_scale : {2.0**i} " for i in range(19, 11, -1)]
    rows.append(f"{at}Training Epoch: 0 Training Iteration: 5  average_loss : 10.8  step_loss : 10.75 ")
    run = read(tmp_path, "\n".join(rows) + "\n")
    assert (run.program, run.line.size, least_skips(run)) == ("NVIDIA BERT", 9, 8)


def test_two_sentences_of_paddle_tell_of_one_skip(tmp_path):
    # PaddlePaddle/PaddleNLP#10413: paddle's sentence, then PaddleNLP's
    text = "".join(
        f"Found inf or nan, current scale is: {2.0**i}, decrease to: {2.0**i}*0.5\n"
        f"[    INFO] - optimizer not run, scale_before: {2.0**i}, scale_after: {2.0 ** (i - 1)}\n"
        f"[2025-04-24 15:19:26,429] [    INFO] - loss: 5.85, learning_rate: 0.0, global_step: {13 - i}\n"
        for i in (12, 11)
    )
    run = read(tmp_path, text)
    assert least_skips(run) == np.nansum(run.told) == 2
    assert "1024 at last" in in_words(explain(run))


def test_the_steps_of_the_run_are_counted_and_not_those_of_a_loop_inside(tmp_path):
    # microsoft/LMOps#130
    line = (
        "train | inner iter:   {}/  8 | ppo epoch:  2/ 4 | global iter:     {}/  5000| tot_loss: 1.5 | scale:  32.00\n"
    )
    run = read(tmp_path, line.format(3, 27) + line.format(5, 28))
    assert [*run.step] == [27, 28]


def test_a_scale_of_one_decimal_is_bounded_by_what_it_may_have_been(tmp_path):
    # THUDM/Chinese-Transformer-XL#7: what is printed as 0.1 was an eighth, and the last overflow at a quarter
    line = " iteration {:8d}/    3000 | learning rate 6.300E-06 | lm loss 5.193296E+00 | loss scale {} |\n"
    run = read(tmp_path, "".join(line.format(*each) for each in [(700, "4.0"), (800, "0.1"), (900, "0.1")]))
    [low] = [each for each in explain(run).statements if each.kind == "low scale"]
    assert low.numbers["to"][1] >= 0.25


COQUI = """
{bold}   --> STEP: {at}/503 -- GLOBAL_STEP: {at}{plain}
     | > loss_disc: {loss}  (2.5)
     | > loss_0: {loss}  (2.5)
     | > grad_norm_0: {norm}
     | > loss_gen: 2.1  (2.2)
     | > amp_scaler: {scale}  (900.0)
     | > grad_norm_1: tensor(238.6747, device='cuda:0')  (tensor(201.2404, device='cuda:0'))
     | > current_lr_0: 0.000193
     | > step_time: 1.5487  (1.41)

 > EVALUATION

{bold}   --> STEP: 0{plain}
     | > loss_disc: nan  (nan)

  --> EVAL PERFORMANCE
     | > avg_loader_time: 0.2 (+0)
     | > avg_loss_disc: nan (+0)
"""


@pytest.mark.parametrize(("bold", "plain"), [("\x1b[1m", "\x1b[0m"), ("", "")])
def test_a_trainer_that_prints_a_number_per_line(tmp_path, bold, plain):
    # coqui-ai/TTS, as a repository on a voice in Esperanto quotes it
    norm = "tensor(8.1043, device='cuda:0')  (tensor(17.1827, device='cuda:0'))"
    given = [(0, "nan  (nan)", 32768.0, 5.9), (25, norm, 256.0, 2.7), (50, norm, 256.0, 2.6)]
    text = "".join(
        COQUI.format(at=at, norm=norm, scale=scale, loss=loss, bold=bold, plain=plain)
        for at, norm, scale, loss in given
    )
    run = read(tmp_path, text)
    assert [*zip(run.step, run.norm, run.scale, strict=True)] == [
        (0, math.inf, 32768), (25, 8.1043, 256), (50, 8.1043, 256),
    ]  # fmt: skip
    assert [*run.line] == [2, 21, 40]


MARIAN = "[2022-05-09 06:45:23] Ep. 8 : Up. {} : Sen. 94,495,934 : Cost {} : Time 149.83s : 144.61 words/s : gNorm 0.{}"


def test_marian_tells_of_its_cost_scaling_in_sentences(tmp_path):
    # marian-nmt/marian#386: the Cost is of all words since the last line
    lines = [MARIAN.format(500 * at, 2.5 - at / 10, at) for at in range(1, 7)]
    grew = "NaN/Inf percentage 0.00 after 2000 gradient updates. Increasing cost-scaling factor to {}"
    lines[2:2] = [grew.format(131072)]
    lines[5:5] = ["NaN/Inf percentage 0.70 in 10 gradient updates, reducing cost-scaling factor to 65536"]
    run = read(tmp_path, "\n".join(lines) + "\n")
    assert run.program == "Marian"
    assert [*run.left[~np.isnan(run.left)]] == [131072, 65536]
    assert (least_skips(run), explain(run).verdict) == (1, "healthy")
    lost = [*lines, MARIAN.format(3500, "nan", 8)]
    assert "the last loss that was read is not finite" in explain(read(tmp_path, "\n".join(lost) + "\n")).why
    end = "NaN/Inf percentage 0.50 in 10 gradient updates, but cost-scaling factor 7.62939e-06 is already at minimum"
    assert explain(read(tmp_path, "\n".join([*lost, end]) + "\n")).verdict == "wrong"
    none = read(tmp_path, "\n".join([*lines[:2], grew.format(0)]) + "\n")
    assert np.isnan(none.left).all()  # a run in float32 prints it so (marian-nmt/marian-dev#699)
    last = [
        "Seen NaN/Inf after 9 gradient updates. Reduced cost-scaling factor to 512",
        "Seen NaN/Inf after 9 gradient updates, Reduced cost-scaling factor to minimum 256. Pruning NaNs now.",
    ]
    assert [*read(tmp_path, "\n".join([*lines, *last]) + "\n").left[-2:]] == [512, 256]
