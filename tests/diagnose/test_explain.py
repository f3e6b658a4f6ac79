"""What `ampsim explain` says: in words that agree with their numbers, with a picture where it is looked at."""

import io
import json
import math
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ampsim.cli import app
from ampsim.cli import explain as command
from ampsim.diagnose.explain import Explanation, explain, in_words
from ampsim.diagnose.history import HistoryBuilder
from ampsim.diagnose.statements import make
from ampsim.diagnose.wording import counted, sparkline


def run(*scales, every=1, program="ampsim.watch", **columns):
    builder = HistoryBuilder("-", program)
    for number, scale in enumerate(scales):
        builder.add(number * every, scale=scale, **{name: values[number] for name, values in columns.items()})
    return builder.finish()


@pytest.mark.parametrize(
    ("history", "said"),
    [
        (run(2.0), "Records were read in step 0."),
        (run(2.0, 2.0), "The printed loss scale is 2 at first and 2 at last"),
        (run(2.0, 1.0, every=10), "Skipped: at least 1 step,"),
        (run(0.5, 0.0, every=200), "Skipped: at least 1 step,"),  # printed with few digits, or set by hand
        (run(4.0, 1.0, every=10), "Skipped: at least 1 step,"),  # by which factor is not said
        (run(4.0, 1.0, every=10, program="Megatron"), "Skipped: at least 2 steps,"),  # its factor is fixed
        (run(2.0, 2.0, skipped=[1.0, 0.0]), "Skipped: 1 step, as follows from steps 0 to 1."),
        (run(700.0, 300.0, program="test"), "Not every printed scale is a power of two"),
    ],
)
def test_words_agree_with_their_numbers(history, said):
    assert said in in_words(explain(history))


def test_one_skip_for_one_growth_is_probing():
    """As torch's scaler at its ceiling: it grows by one factor, and the next step overflows."""
    scales = [2.0 ** (16 + (number % 51 == 50)) for number in range(1020)]
    history = run(*scales, skipped=[float(scale > 2.0**16) for scale in scales])
    assert "probing" in {each.kind for each in explain(history).statements}


def test_skips_without_a_scale_are_something_that_a_log_shows():
    skips = run(math.nan, math.nan, skipped=[1.0, 1.0])
    nothing = run(math.nan, math.nan, loss=[2.0, 1.0])
    assert "no loss scale" in in_words(explain(nothing))
    assert "no loss scale" not in in_words(explain(skips))


def test_a_loss_that_rose_is_told_from_the_median_of_all_before():
    losses = [8.0, 7.0, 6.0, 5.0, 4.0, 90.0, 91.0, 92.0, 93.0, 94.0, 95.0]
    [rose] = [each for each in explain(run(*[64.0] * 11, loss=losses)).statements if each.kind == "loss rose"]
    assert (rose.numbers["from"], rose.numbers["to"]) == ("6", "92.5")


def test_no_rule_and_no_dialect_is_named_where_none_is_proved():
    text = in_words(explain(run(8.0, 8.0, 16.0, skipped=[0, 0, 0])))
    assert not re.search(r"ialect|torch's|rule|grows after", text)


def test_a_large_number_is_counted_to_the_last_digit():
    assert counted(0, "step") == "0 steps"
    assert counted(10_412_399, "step") == "10412399 steps"


def test_the_picture_has_the_scale_and_below_it_the_skips():
    history = run(4.0, 4.0, 2.0, 1.0, 1.0, 2.0, 2.0**15, 2.0**15, skipped=[0, 1, 1, 0, 0, 0, 0, 0])
    assert sparkline(history, 80) == ["▂▂▁▁▁▁██", " ××", "loss scale, 1 to 32768; × skips"]
    assert sparkline(history, 4)[:2] == ["▂▁▁█", "××"]
    assert sparkline(run(float("nan"), float("nan"), 2.0), 9) == ["  ▁", "loss scale, 2 to 2"]
    assert sparkline(run(0.0), 9) == []


def test_the_picture_of_a_run_that_went_back_to_a_checkpoint_is_of_what_was_kept():
    builder = HistoryBuilder("-", "ampsim.watch")
    for step, scale in [(0, 8.0), (1, 8.0), (2, 1.0), (3, 1.0), (1, 8.0), (2, 8.0), (3, 8.0)]:
        builder.add(step, scale=scale)
    assert sparkline(builder.finish(), 4) == ["▁▁▁▁", "loss scale, 8 to 8"]


def test_a_pipe_is_explained_too():
    done = CliRunner().invoke(app, ["explain", "-"], input="step: 1, loss_scale: 8\nstep: 2, loss_scale: 8\n")
    assert "The printed loss scale is 8 at first and 8 at last" in done.output
    assert done.exit_code == 3  # a scale that stands shows no step that was taken


LOG = "".join(f"step: {10 * i}, loss_scale: {2.0 ** (2 - i)}\n" for i in range(20))


def test_a_pipe_has_the_words_and_a_terminal_the_picture_too(tmp_path, monkeypatch):
    (tmp_path / "train.log").write_text(LOG)
    piped = CliRunner().invoke(app, ["explain", str(tmp_path / "train.log")])
    assert piped.exit_code == 1
    assert "COLLAPSE: The scale fell from 4 to 2^-17, " in piped.output.replace("7.62939e-06", "2^-17")
    assert not re.search("[\x1b█×]", piped.output)
    screen = Console(file=io.StringIO(), force_terminal=True, width=60, soft_wrap=True)
    monkeypatch.setattr(command, "out", screen)
    CliRunner().invoke(app, ["explain", str(tmp_path / "train.log")])
    assert "\x1b[1;31m" in screen.file.getvalue()
    assert "█" in screen.file.getvalue()


def test_data_and_lines_are_given_when_they_are_asked_for(tmp_path):
    (tmp_path / "train.log").write_text(LOG)
    said = json.loads(CliRunner().invoke(app, ["explain", "--json", str(tmp_path / "train.log")]).output)
    assert (said["version"], said["verdict"]) == (1, "wrong")
    [collapse] = [each for each in said["statements"] if each["kind"] == "collapse"]
    assert collapse["lines"] == list(range(1, 21))
    assert (collapse["first"], collapse["last"], collapse["numbers"]["from"]) == (0, 190, [4.0, 4.0])
    why = CliRunner().invoke(app, ["explain", "--why", str(tmp_path / "train.log")]).output
    assert "[lines 1, 2, 3," in why


def test_of_many_lines_the_first_and_the_last_are_named():
    history = run(*[8.0] * 30, line=range(1, 31))
    assert make(history, "read", range(30)).lines == (*range(1, 31),)
    history = run(*[8.0] * 60, line=range(1, 61))
    assert make(history, "read", range(60)).lines == (*range(1, 21), *range(41, 61))


@pytest.mark.parametrize(("lines", "end"), [(12, "11, 12]"), (13, "11, 12, ...]")])
def test_a_dozen_lines_are_named_and_of_more_it_is_said_that_there_are(lines, end):
    history = run(*[8.0] * lines, line=range(1, lines + 1))
    alone = Explanation("healthy", "", [make(history, "read", range(lines), lines=lines, program="test")], [])
    assert f"[lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, {end}" in in_words(alone, lines=True)


def test_what_to_try_is_said_once():
    history = run(8.0, 4.0)
    burst = make(history, "burst", [0, 1], to=4.0, more="", **{"from": 8.0})
    assert in_words(Explanation("wrong", "", [burst, burst], [])).count(f"- {burst.cure}") == bool(burst.cure) == 1


@pytest.mark.parametrize(("rows", "head"), [(10, "known:"), (11, "known, the last 10 of 11 rows:")])
def test_the_ledger_has_ten_rows_or_says_of_how_many(rows, head, capsys):
    command._print_ledger(run(*[8.0] * rows, skipped=[1.0] * rows))
    assert capsys.readouterr().out.splitlines()[1] == f"Skips whose steps are {head}"


def test_an_error_text_alone_is_answered():
    done = CliRunner().invoke(app, ["explain", "ValueError: Attempting to unscale FP16 gradients."])
    assert done.exit_code == 1
    assert "parameters are float16" in done.output


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RuntimeError: value cannot be converted to type at::Half without overflow: -1e+09", "BEYOND FLOAT16"),
        ("RuntimeError: value cannot be converted to type c10::Half without overflow", "BEYOND FLOAT16"),
        ("TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework ...", "NO FLOAT64 ON MPS"),
        ("'LossScaleOptimizer' object has no attribute 'get_unscaled_gradients'", "RENAMED IN KERAS 3"),
        ("lax.select requires arguments to have the same dtypes, got float32, float16.", "FLOAT16 LOSS SCALE"),
        ("mat1 and mat2 must have the same dtype, but got Float and Half", "FLOAT16 BESIDE FLOAT32"),
        ("RuntimeError: expected scalar type Half but found Float", "FLOAT16 BESIDE FLOAT32"),
        ("expected m1 and m2 to have the same dtype, but got: float != c10::Half", "FLOAT16 BESIDE FLOAT32"),
        ("AttributeError: module 'torch.amp' has no attribute 'GradScaler'", "OLDER TORCH"),
        ("ImportError: cannot import name 'GradScaler' from 'torch.amp' (/lib/amp/__init__.py)", "OLDER TORCH"),
        ("FloatingPointError: Loss became infinite or NaN at iteration=12!", "LOSS NOT FINITE"),
        ("WARNING: non-finite loss, ending training  tensor([nan, 1.0])", "LOSS NOT FINITE"),
        ("NanLossDuringTrainingError: NaN loss during training.", "LOSS NOT FINITE"),
        ("ValueError: The loss returned in `training_step` is nan.", "LOSS NOT FINITE"),
        ("Rank 3: found NaN in local grad norm in backward pass before data-parallel", "MEGATRON STOPPED"),
        ("probability tensor contains either `inf`, `nan` or element < 0", "NOTHING TO DRAW FROM"),
    ],
)
def test_texts_of_other_programs_than_the_scaler_are_answered(text, name):
    done = CliRunner().invoke(app, ["explain", text])
    assert done.exit_code == 1
    assert done.output.startswith(name)


@pytest.mark.parametrize(
    "text",
    ["mat1 and mat2 must have the same dtype, but got Float and Double", "expected scalar type Long but found Int"],
)
def test_types_that_have_nothing_to_do_with_float16_are_not_explained(text):
    done = CliRunner().invoke(app, ["explain", text])
    assert done.exit_code == 2
    assert "docs/errors/index.md" in done.output


def test_a_traceback_longer_than_a_files_name_is_answered():
    text = f"Traceback {'of a call ' * 50}\nNo inf checks were recorded prior to update."
    done = CliRunner().invoke(app, ["explain", text])
    assert done.exit_code == 1
    assert done.output.startswith("UPDATE WITHOUT A STEP")


def test_pasted_lines_are_read_as_a_log(tmp_path):
    line = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0"
    done = CliRunner().invoke(app, ["explain", line])
    assert done.exit_code == 1
    assert "SCALE 0" in done.output
    long = f"{line} {'and so on ' * 50}"
    for _ in range(2):  # the second time the page is there
        assert CliRunner().invoke(app, ["explain", long, "--html", str(tmp_path / "page.html")]).exit_code == 1
        CliRunner().invoke(app, ["explain", "-", "--html", str(tmp_path / "pipe.html")], input=line)
    assert (tmp_path / "pipe.html").read_text().count("<title>") == 1
    unknown = CliRunner().invoke(app, ["explain", "what is this"])
    assert (unknown.exit_code, unknown.output[:36]) == (2, "ampsim: what is this: no such file; ")
