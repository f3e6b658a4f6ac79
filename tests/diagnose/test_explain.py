"""`ampsim explain`: what comes in, what comes out, and how the process ends."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ampsim.cli import app
from ampsim.cli import explain as command

LOG = "".join(f"step: {10 * i}, loss_scale: {2.0 ** (2 - i)}\n" for i in range(20))


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
    assert "8" in said
    assert run("-", given=LOG)[0] == 1


def test_chart_appears_only_on_terminal(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not re.search("[\x1b█×]", run(log)[1])
    screen = Console(file=io.StringIO(), force_terminal=True, width=60, soft_wrap=True)
    monkeypatch.setattr(command, "out", screen)
    run(log)
    assert "\x1b[" in screen.file.getvalue()
    assert "█" in screen.file.getvalue()


def test_json_contains_line_numbers(log: Path) -> None:
    said = json.loads(run("--json", log)[1])
    assert said["verdict"] == "problem"
    (collapse,) = [each for each in said["findings"] if each["id"] == "collapse"]
    assert collapse["lines"] == list(range(1, 21))
    assert (collapse["first"], collapse["last"]) == (0, 190)
    assert collapse["values"]["from"] == [4.0, 4.0]
    assert collapse["values"]["to"] == [2.0**-17, 2.0**-17]
    assert "[lines 1, 2, 3," in run("--why", log)[1]


ERRORS = [
    ("ValueError: Attempting to unscale FP16 gradients.", "FP16 PARAMETERS"),
    (
        "value cannot be converted to type at::Half without overflow: -1e+09",
        "VALUE OUTSIDE THE FLOAT16 RANGE",
    ),
    (
        "value cannot be converted to type c10::Half without overflow",
        "VALUE OUTSIDE THE FLOAT16 RANGE",
    ),
    ("TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS", "NO FLOAT64 ON MPS"),
    ("no attribute 'get_unscaled_gradients' 'LossScaleOptimizer' object", None),
    ("'LossScaleOptimizer' object has no attribute 'get_unscaled_gradients'", "RENAMED IN KERAS 3"),
    (
        "lax.select requires arguments to have the same dtypes, got float32, float16.",
        "FLOAT16 LOSS SCALE",
    ),
    ("mat1 and mat2 must have the same dtype, but got Float and Half", "MIXED FLOAT16 AND FLOAT32"),
    ("RuntimeError: expected scalar type Half but found Float", "MIXED FLOAT16 AND FLOAT32"),
    ("m1 and m2 to have the same dtype, but got: float != c10::Half", "MIXED FLOAT16 AND FLOAT32"),
    ("AttributeError: module 'torch.amp' has no attribute 'GradScaler'", "TORCH OLDER THAN 2.3"),
    (
        "ImportError: cannot import name 'GradScaler' from 'torch.amp' (/lib)",
        "TORCH OLDER THAN 2.3",
    ),
    ("FloatingPointError: Loss became infinite or NaN at iteration=12!", "LOSS NOT FINITE"),
    ("WARNING: non-finite loss, ending training  tensor([nan, 1.0])", "LOSS NOT FINITE"),
    ("NanLossDuringTrainingError: NaN loss during training.", "LOSS NOT FINITE"),
    ("ValueError: The loss returned in `training_step` is nan.", "LOSS NOT FINITE"),
    (
        "Rank 3: found NaN in local grad norm in backward pass before data-parallel",
        "MEGATRON STOPPED",
    ),
    (
        "probability tensor contains either `inf`, `nan` or element < 0",
        "INVALID SAMPLING PROBABILITIES",
    ),
    (
        f"Traceback {'of a call ' * 50}\nNo inf checks were recorded prior to update.",
        "UPDATE WITHOUT A STEP",
    ),
    ("mat1 and mat2 must have the same dtype, but got Float and Double", None),
    ("expected scalar type Long but found Int", None),
    ("what is this", None),
]


@pytest.mark.parametrize(("text", "name"), ERRORS)
def test_a_known_error_is_named(text: str, name: str | None) -> None:
    code, said = run(text)
    assert code == (2 if name is None else 1)
    assert said.startswith(name or "ampsim: ")


def test_pasted_lines_are_read_as_log(tmp_path: Path) -> None:
    line = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0"
    for text in (line, f"{line} {'and so on ' * 50}"):
        code, said = run(text, "--html", tmp_path / "page.html")
        assert code == 1
        assert "SCALE-0" in said
    run("-", "--html", tmp_path / "pipe.html", given=line)
    assert (tmp_path / "pipe.html").read_text().count("<title>") == 1
