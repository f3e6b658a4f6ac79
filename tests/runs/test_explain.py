"""`ampsim explain`: what comes in, what comes out, and how the process ends."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ampsim.cli import app
from ampsim.runs import explain
from ampsim.runs.record.run_file import RunFile

LOG = "".join(
    f"step: {10 * i}, loss_scale: {2.0 ** (4 - i)}, loss: nan\n" for i in range(20)
)


def run(*arguments: object, given: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["explain", *map(str, arguments)], input=given)
    return done.exit_code, done.output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "train.log").write_text(LOG)
    return tmp_path / "train.log"


def test_a_pipe_is_explained() -> None:
    code, said = run("-", given="step: 1, loss_scale: 8\nstep: 2, loss_scale: 8\n")
    assert code == 3  # a scale that stands shows no step that was taken
    assert said.startswith("Too little to tell")
    assert run("-", given=LOG)[0] == run(given=LOG)[0] == 1


def test_json_has_all_series(log: Path) -> None:
    said = json.loads(run("--json", log)[1])
    assert said["verdict"] == "problem"
    assert next(each["id"] for each in said["findings"]) == "loss-never-finite"
    [scale] = [each for each in said["series"] if each["role"] == "scale"]
    assert scale["line"] == list(range(1, 21))
    assert scale["step"] == [10 * i for i in range(20)]
    assert scale["value"] == [2.0 ** (4 - i) for i in range(20)]


def test_why_shows_lines(log: Path) -> None:
    said = run("--why", log)[1]
    assert "    2: step: 10, loss_scale: 8.0, loss: nan\n" in said
    assert "10 of 20 lines; --json lists all 20" in said
    assert (
        "    2: step: 10, loss_scale: 8.0, loss: nan\n"
        in run("--why", "-", given=LOG)[1]
    )
    log.write_text(LOG.replace("nan\n", f"nan {'x' * 900}\n"))
    assert max(map(len, run("--why", log)[1].splitlines())) < 400


ERRORS = [
    ("ValueError: Attempting to unscale FP16 gradients.", "fp16-parameters"),
    (
        "cannot be converted to type at::Half without overflow: -1e+09",
        "value-outside-the-float16-range",
    ),
    (
        "TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS",
        "no-float64-on-mps",
    ),
    (
        "'LossScaleOptimizer' object has no attribute 'get_unscaled_gradients'",
        "renamed-in-keras-3",
    ),
    (
        "lax.select requires arguments to have the same dtypes, got float32, float16.",
        "float16-loss-scale",
    ),
    (
        "mat1 and mat2 must have the same dtype, but got Float and Half",
        "mixed-float16-and-float32",
    ),
    (
        "RuntimeError: expected scalar type Half but found Float",
        "mixed-float16-and-float32",
    ),
    (
        "AttributeError: module 'torch.amp' has no attribute 'GradScaler'",
        "torch-older-than-2-3",
    ),
    (
        "FloatingPointError: Loss became infinite or NaN at iteration=12!",
        "loss-not-finite",
    ),
    ("ValueError: The loss returned in `training_step` is nan.", "loss-not-finite"),
    (
        "Rank 3: found NaN in local grad norm in backward pass before data-parallel",
        "megatron-stopped",
    ),
    (
        "probability tensor contains either `inf`, `nan` or element < 0",
        "invalid-sampling-probabilities",
    ),
    (
        f"Traceback {'of a call ' * 50}\nNo inf checks were recorded prior to update.",
        "update-without-a-step",
    ),
    (
        "NotImplementedError: Could not run 'aten::_amp_foreach_non_finite_check_and_unscale_' "
        "with arguments from the 'XPU' backend.",
        "no-unscaling-on-this-backend",
    ),
    # Other quotation marks, another case, and a line that a terminal wrapped.
    ("ValueError: The loss returned in “training_step” is NaN.", "loss-not-finite"),
    ("ValueError: attempting to unscale fp16 gradients", "fp16-parameters"),
    (
        "  File 'train.py'\nRuntimeError: expected scalar type\n  Half but found Float",
        "mixed-float16-and-float32",
    ),
    ("mat1 and mat2 must have the same dtype, but got Float and Double", None),
    ("expected scalar type Long but found Int", None),
    ("what is this", None),
]


@pytest.mark.parametrize(("text", "name"), ERRORS)
def test_a_known_error_is_named(text: str, name: str | None) -> None:
    code, said = run(text, "--why")
    assert code == (2 if name is None else 1)
    assert f"[error-{name}, proved]" in said if name else said.startswith("ampsim: ")


def test_error_needs_its_program() -> None:
    assert run("ZeroDivisionError: float division by zero")[0] != 1
    assert run("apex/amp/scaler.py\nZeroDivisionError: float division by zero")[0] == 1


def test_pasted_lines_are_read_as_log() -> None:
    line = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0"
    code, said = run(line)
    assert code == 1
    assert said.startswith("Problem: The loss scale is 0 at line 1")


def test_explanation_shows_itself_in_notebooks() -> None:
    html = explain(["step 1 loss: nan <b>\n"] * 3)._repr_html_()
    assert "Problem" in html
    assert "<b>" not in html


def lines_of(losses: list[float], scales: list[float]) -> list[str]:
    return [
        f"step {step}: loss {loss}, loss_scale {scale}"
        for step, (loss, scale) in enumerate(zip(losses, scales, strict=True))
    ]


def test_one_skip_is_no_fall() -> None:
    text = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1.5e-05"
    assert "fell" not in explain([text]).text()


def test_pasted_text_is_answered_alone() -> None:
    warning = "Detected call of `lr_scheduler.step()` before `optimizer.step()`"
    for text in (warning, "ValueError: Attempting to unscale FP16 gradients."):
        shown = explain([text]).text()
        assert text in shown.split("\n")[0]
        assert shown.count(text) == 1
        assert "Looked at" not in shown
        assert "does not show" not in shown
        assert "records" not in shown


def test_no_checkpoint_is_before_step_one() -> None:
    for first, is_given in ((1, False), (9, True)):
        losses = [2.0] * first + [math.nan] * 20
        text = explain([f"step {k}: loss {loss}" for k, loss in enumerate(losses)])
        assert ("Restart from" in str(text)) == is_given


@pytest.mark.parametrize("form", ["{:g}", "{:.4e}", "{:.3g}", "{!r}"])
def test_each_halving_is_one_skip(form: str) -> None:
    lines = [
        f"step {k}: loss 2.{k}, loss_scale {form.format(2.0 ** (4 - k))}"
        for k in range(30)
    ]
    assert "at least 29;" in explain(lines).text()


def test_order_needs_records_of_each_step() -> None:
    # The loss is lost and the scale falls within the same epoch, so either can come first.
    scales = [65536.0] * 6 + [0.0625] + [2.0**-20] * 6
    values = [3 - row / 10 if row < 6 else math.nan for row in range(13)]
    pairs = list(zip(scales, values, strict=True))
    table = [f"epoch {k}: scale {s} loss {v}" for k, (s, v) in enumerate(pairs)]
    apart = [
        f"epoch {k}: {w}"
        for k, (s, v) in enumerate(pairs)
        for w in (f"scale {s}", f"loss {v}")
    ]
    for lines in (table, apart):
        headline = explain(lines).headline
        assert "consequence" not in headline
        assert "overflowed first" not in headline
        assert "was 65536 before that" in headline


def test_refreshes_of_one_line_have_an_order(tmp_path: Path) -> None:
    losses = [2 - k / 100 if k < 40 else math.nan for k in range(60)]
    scales = [2.0 ** min(16, 45 - k) for k in range(55)] + [0.0] * 5
    frames = [
        f"train: {k}/60 loss={loss} scale={scale}"
        for k, (loss, scale) in enumerate(zip(losses, scales, strict=True))
    ]
    bar = tmp_path / "bar.log"
    bar.write_bytes(b"start\n\r" + "\r".join(frames).encode() + b"\n")
    explanation = explain(bar)
    assert "overflowed first" in explanation.headline
    assert f"43 (line 2, refresh 42): {frames[41]}" in explanation.text(why=True)
    assert explanation.history.series[0].lines.tolist() == list(range(2, 62))


def test_bar_may_end_with_earlier_skip(tmp_path: Path) -> None:
    scales = [65536.0] * 20 + [32768.0] * 80
    frames = [
        f"train: {k}/100 loss={4 - k / 50} scale={scale}"
        for k, scale in enumerate(scales)
    ]
    bar = tmp_path / "bar.log"
    bar.write_bytes("\r".join(frames).encode() + b"\n")
    assert explain(bar).verdict == explain(frames).verdict == "no problem found"


@pytest.mark.parametrize("end", [b"\r\n", b"\r\r\n", b"\r \r\n"])
def test_carriage_return_alone_adds_no_line(end: bytes, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = [f"step {k}: loss {4 - k / 10}".encode() for k in range(20)]
    log.write_bytes(b"".join(line + end for line in lines))
    history = explain(log).history
    assert history.series[0].lines.tolist() == list(range(1, 21))
    assert not history.notes


def test_first_line_says_what_came_first() -> None:
    scales = [65536.0] * 20 + [2.0 ** (16 - fall) for fall in range(20)]
    early = explain(lines_of([2.5] * 30 + [math.nan] * 10, scales)).headline
    late = explain(lines_of([2.5] * 20 + [math.nan] * 20, scales)).headline
    assert "had fallen to 128 before that" in early
    assert "fell from 65536 to 0.125 after that" in late


def record(path: Path, first: int, losses: list[float]) -> None:
    with RunFile(path, {"started": first}) as file:
        for step, loss in enumerate(losses, first):
            file.append(
                {"step": step, "loss_scale": 1024.0, "skipped": False, "loss": loss}
            )


@pytest.mark.parametrize("end", [0.0, math.nan])
def test_recorded_runs_are_told_apart(end: float, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 0, [4 - k / 10 + (end if k > 20 else 0) for k in range(30)])
    record(path, 30, [4 - k / 10 for k in range(30)])
    explanation = explain(path)
    assert "2 runs in this file" in explanation.text()
    assert "loss (records: 30): first 4, last 1.1" in explanation.text()
    assert explanation.history.settings == {"started": 30}
    if math.isnan(end):
        assert explanation.headline.startswith("In run 1 of 2 in this log (lines 2 to")
    else:
        assert explanation.verdict == "no problem found"


@pytest.mark.parametrize(
    ("first", "stride", "is_late"),
    [(375, 1, True), (1, 1, False), (0, 5, False), (100, 100, False), (300, 100, True)],
)
def test_late_start_is_noted(first: int, stride: int, is_late: bool) -> None:
    losses = [(first + k * stride, 4 - k / 10) for k in range(20)]
    text = explain([f"step {step}: loss {loss}" for step, loss in losses]).text()
    assert (f"The log starts at step {first};" in text) == is_late


def test_error_may_lack_its_end() -> None:
    for text in (
        "step() has already been called",
        "unscale_() has already been called",
    ):
        assert explain([f"RuntimeError: {text}"]).verdict == "problem"
    with pytest.raises(ValueError, match="no loss"):
        explain(["scheduler.step() has already been called"])


def test_resumed_run_is_one_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path, 0, [4 - k / 10 for k in range(30)])
    record(path, 30, [1 - k / 100 for k in range(30)])
    explanation = explain(path)
    assert "runs in this file" not in explanation.text()
    assert "loss (records: 60): first 4" in explanation.text()


def test_earlier_run_may_begin_at_zero() -> None:
    losses = [0, 0, 0, 0, *(10 * step**2 for step in range(4, 61))]
    first = [f"step {step} loss {loss}\n" for step, loss in enumerate(losses)]
    second = [f"step {step} loss {3 - step / 30}\n" for step in range(60)]
    assert explain([*first, *second]).verdict == "problem"
