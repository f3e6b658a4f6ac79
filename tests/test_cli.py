"""The command line: exit status 0 good, 1 a finding, 2 wrong use, 3 too little to tell."""

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import ampsim
from ampsim import Rule, dialects
from ampsim.cli import app
from ampsim.core.replay.thresholds import replay_thresholds

TORCH = "torch.amp:GradScaler"
OURS = "ampsim.torch:GradScaler"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "command", [[], ["traces"], ["traces", "verify"], ["replay"], ["check"]]
)
def test_help_everywhere(command: list[str]) -> None:
    code, text = run(*command, "--help")
    assert code == 0
    assert "Usage" in text


def test_version() -> None:
    assert run("--version") == (0, f"ampsim {ampsim.__version__}\n")


def test_module_and_command_are_one_program() -> None:
    command = [sys.executable, "-m", "ampsim", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_own_defects_are_raised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(_: object) -> None:
        raise kind("of ampsim")

    (tmp_path / "train.log").touch()
    command = ["explain", str(tmp_path / "train.log")]
    monkeypatch.setattr("ampsim.runs.explain_log.explain", broken)
    kind = TypeError
    assert isinstance(CliRunner().invoke(app, command).exception, TypeError)
    kind = ValueError
    assert run(*command) == (2, "ampsim: of ampsim\n")
    raised = CliRunner(env={"AMPSIM_TRACEBACK": "1"}).invoke(app, command).exception
    assert isinstance(raised, ValueError)


# ------------------------------------------------------------------------- dialects, replay, sweep


def test_dialects_lists_all() -> None:
    code, text = run("dialects")
    assert code == 0
    assert all(name in text for name in dialects.names())
    assert (
        "max_scale=3.4028234663852886e+38" in text
    )  # to be typed after --set: all its digits


def test_replay_prints_each_update() -> None:
    code, text = run(
        "replay",
        "torch.amp.GradScaler",
        "0010",
        "-s",
        "growth_interval=2",
        "-s",
        "init_scale=2**3",
    )
    assert code == 0
    assert text.split() == [
        "finite",
        "8.0",
        "finite",
        "16.0",
        "overflow",
        "8.0",
        "finite",
        "8.0",
    ]


def test_replay_shows_minimum_scale_error() -> None:
    settings = ["-s", "init_scale=2", "-s", "delayed_shift=1"]
    code, text = run("replay", "deepspeed.DynamicLossScaler", "111", *settings)
    assert code == 0
    assert "raises" in text


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["torch.amp.GradScale", "0"], "torch.amp.GradScaler"),
        (["torch.amp.GradScaler", "012"], "012"),
        (["torch.amp.GradScaler", ""], "digits"),
        (["torch.amp.GradScaler", "0", "-s", "growth_interval"], "NAME=VALUE"),
        (["torch.amp.GradScaler", "0", "-s", "growth_interval=x"], "growth_interval=x"),
        (
            [
                "torch.amp.GradScaler",
                "0",
                "-s",
                "init_scale=2**4",
                "-s",
                "init_scale=1",
            ],
            "16.0",
        ),
        (["torch.amp.GradScaler", "0", "-s", "growth_interval=0"], "growth_interval=0"),
        (["torch.amp.GradScaler", "0", "-s", "steps=3"], "steps"),
    ],
)
def test_replay_rejects_invalid_arguments(arguments: list[str], shown: str) -> None:
    code, text = run("replay", *arguments)
    assert code == 2
    assert shown in text
    assert "Traceback" not in text


def test_sweep_runs_every_combination(tmp_path: Path) -> None:
    thresholds = np.repeat([2.0**9, 2.0**11], [10, 30])
    np.save(tmp_path / "run.npy", thresholds)
    grid = ["-s", "init_scale=2**10,2**11", "-s", "growth_interval=5,100"]
    name = "torch.amp.GradScaler"
    code, text = run("sweep", str(tmp_path / "run.npy"), name, *grid)
    assert code == 0, text
    rows = [line.split() for line in text.splitlines() if line[:2] in ("10", "20")]
    assert [row[:2] for row in rows] == [
        ["1024.0", "5"],
        ["1024.0", "100"],
        ["2048.0", "5"],
        ["2048.0", "100"],
    ]
    for init_scale, interval, skips, rate, _ in rows:
        rule = Rule(float(init_scale), growth_interval=int(interval))
        done = replay_thresholds(rule, thresholds)
        assert int(skips) == len(done.skipped)
        assert float(rate) == done.skip_rate


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["."], "Is a directory"),
        (["no/such.npy"], "no/such.npy"),
        (["run.npy", "-s", "growth_interval=1,x"], "growth_interval=x"),
        (["run.npy", "-s", "growth_interval=0"], "growth_interval=0"),
        (["bad.npy"], "bad.npy"),
    ],
)
def test_sweep_rejects_invalid_arguments(
    arguments: list[str], shown: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.npy").write_text("1,2")
    np.save(tmp_path / "run.npy", [1.0])
    code, text = run(
        "sweep", str(tmp_path / arguments[0]), "torch.amp.GradScaler", *arguments[1:]
    )
    assert code == 2
    assert shown in text


def test_advice_keeps_scale_despite_bad_steps(tmp_path: Path) -> None:
    thresholds = np.full(20_000, 2.0**20)
    thresholds[::200] = 0.0
    np.save(tmp_path / "run.npy", thresholds)
    code, text = run("advise", str(tmp_path / "run.npy"))
    assert code == 0, text
    assert "Settings for 20,000 steps" in text
    advised, default = (float(line.split()[-1]) for line in text.splitlines()[-2:])
    assert advised > 16 > default


@pytest.mark.parametrize("content", [b"1,2", b"", b'{"run": {}}\n'])
def test_advise_rejects_other_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.npy").write_bytes(content)
    code, text = run("advise", str(tmp_path / "run.npy"))
    assert code == 2
    assert "not an array of overflow thresholds" in text
    assert "numpy.save" in text
    assert "docs/how-to/settings.md" in text


def advised(*arguments: str) -> list[str]:
    code, text = run("advise", *arguments)
    assert code == 0, text
    rows = [line for line in text.splitlines() if line.startswith("advised ")]
    return rows[0].split()[1:]


def test_advise_takes_logs_and_steps(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    lines = [f"step {step}: loss 1.0, loss_scale 4096" for step in range(20_000)]
    log.write_text("\n".join(lines))
    assert advised(str(log)) == ["4096.0", "200", "None", "1"]
    assert advised(str(log), "--steps", "100000")[1] == "1000"
    assert advised("--steps", "100000", "--bad-rate", "0.001")[1] == "346"


@pytest.mark.parametrize("is_lost", [False, True])
def test_advise_ignores_a_collapse(is_lost: bool, tmp_path: Path) -> None:
    scales = [4096.0] * 20 + [2.0 ** (12 - fall) for fall in range(60)]
    losses = [2.0] * 30 + [math.nan if is_lost else 2.0] * 50
    log = tmp_path / "train.log"
    lines = [
        f"step {step}: loss {loss}, loss_scale {scale}"
        for step, (loss, scale) in enumerate(zip(losses, scales, strict=True))
    ]
    log.write_text("\n".join(lines))
    assert advised(str(log))[0] == "4096.0"
    log.write_text("\n".join(lines[40:]))
    code, text = run("advise", str(log))
    assert code == 2
    assert "ampsim explain" in text


def test_advise_says_that_no_scale_is_known(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(f"step {k}: loss {4 - k / 10}" for k in range(20)))
    assert "no loss scale" in run("advise", str(log))[1]
    assert "no loss scale" not in run("advise", "--steps", "20")[1]


def test_steps_may_be_short() -> None:
    shown = {steps: advised("--steps", steps) for steps in ("100000", "100k", "1e5")}
    assert shown["100k"] == shown["1e5"] == shown["100000"]
    for steps in ("0", "1.5", "many", "inf", "nan"):
        code, text = run("advise", "--steps", steps)
        assert code == 2
        assert "100k" in text


def test_advise_names_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("loss: 2.0 loss_scale: 4096\n" * 20)
    for arguments in ([], ["--epochs", "3"], [str(tmp_path / "train.log")]):
        code, text = run("advise", *arguments)
        assert code == 2
        assert "epochs x batches per epoch" in text


@pytest.mark.parametrize(
    ("command", "file", "reader"),
    [
        ("lint", "run.jsonl", "ampsim explain"),
        ("check", "train.py", "ampsim lint"),
        ("check-loop", "train.log", "ampsim report"),
        ("explain", "train.py", "ampsim check-loop"),
        ("report", "run.npy", "ampsim advise"),
        ("advise", "train.py", "ampsim lint"),
    ],
)
def test_files_of_other_commands(command: str, file: str, reader: str) -> None:
    code, text = run(command, file)
    assert code == 2
    assert f"{reader} {file}" in text


# ------------------------------------------------------------------------------------------- check


def check(*arguments: str) -> tuple[int, str]:
    pytest.importorskip(
        "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
    )
    # Without a time limit the checks run in this process; tests/testing/test_apart.py has the
    # other.
    return run("check", "--examples", "10", "--time-limit", "0", *arguments)


def test_check_reports_torch_failures() -> None:
    code, text = check(TORCH, "--level", "5", "--strict")
    assert code == 1
    assert "scale_is_never_subnormal" in text
    assert "2**-128" in text
    assert "minimum_scale_error_repeats skipped: unsupported: gives_up" in text
    assert check(TORCH, "--level", "5")[0] == 0


def test_proposal_ends_with_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
import torch

class Bounded(torch.amp.GradScaler):
    def update(self, new_scale=None):
        super().update(new_scale)
        self._scale.clamp_(1.0, 2.0**24)
"""
    (tmp_path / "bounded.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    asked = ["bounded:Bounded", "--level", "0", "--level", "4"]
    code, text = check(*asked)
    assert code == 1
    assert "run ampsim check --propose bounded:Bounded" in text.splitlines()[0]
    code, text = check(*asked, "--propose")
    assert code == 0
    (following,) = re.findall("^next: ampsim check bounded:Bounded (.*)$", text, re.M)
    assert check(*asked, *shlex.split(following))[0] == 0


def test_check_passes_ampsim_scaler() -> None:
    known = "no_nonfinite_step_after_unscale"  # unless check_at_step=True
    assert check(OURS, "-l", "4", "-l", "5", "--strict", "--xfail", known)[0] == 0


def test_expect_and_xfail_combine(tmp_path: Path) -> None:
    names = ["last_step_reports_skip", "invalid_state_dict_changes_nothing"]
    checks = ["--strict", *(f"--check={name}" for name in names)]
    file = tmp_path / "expected.json"
    file.write_text(json.dumps({"invalid_state_dict_changes_nothing": "known"}))
    both = ["--expect", str(file), "--xfail", "last_step_reports_skip"]
    assert check(TORCH, *checks)[0] == 1
    assert check(TORCH, *checks, *both[:2])[0] == 1
    assert check(TORCH, *checks, *both)[0] == 0
    module = ["--expect", "ampsim.testing.known_failures:TORCH"]
    assert check(TORCH, *checks, *module)[0] == 0


def test_xpassed_check_is_a_finding() -> None:
    code, text = check(TORCH, "--level", "0", "--xfail", "skips_stay_within_budget")
    assert code == 1
    assert "skips_stay_within_budget" in text


@pytest.mark.parametrize(("form", "begins"), [("md", "torch.amp:"), ("json", "{")])
def test_check_prints_a_report(form: str, begins: str) -> None:
    code, printed = check(TORCH, "--level", "4", "--strict", "--report", form)
    assert code == 1
    assert printed.startswith(begins)


def test_scalers_stand_side_by_side() -> None:
    code, text = check(TORCH, OURS, "--level", "4", "--strict", "--report", "md")
    assert code == 1
    [row] = [
        line
        for line in text.splitlines()
        if "| `invalid_state_dict_changes_nothing`" in line
    ]
    assert row.split("|")[3:-1] == [" ✗ ", " ✓ "]


def test_check_imports_from_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from torch.amp import GradScaler\n\ndef make(rule):\n    return None\n"
    (tmp_path / "my_scaler.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert check("my_scaler:GradScaler", "--level", "4")[0] == 0
    assert check("my_scaler:make", "--level", "4")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["torch.amp"], "module:attribute"),
        (["torch.amp:GradScale"], "GradScaler"),
        (["no_such_module:GradScaler"], "no_such_module"),
        (["math:pi"], "3.14159"),
        ([TORCH, "--level", "6"], "level=6"),
        ([TORCH, "--xfail", "skip_budgets"], "skips_stay_within_budget"),
        ([TORCH, "--expect", "no_such_file.json"], "no_such_file.json"),
        ([TORCH, "--expect", "math:pi"], "of a dict"),
        ([TORCH, "--expect", "pyproject.toml"], "JSON"),
        ([TORCH, "--check", "skip_budgets"], "skips_stay_within_budget"),
        ([TORCH, "--trait", "min_scal=1"], "min_scale"),
        ([TORCH, "--trait", "skips=some"], "number"),
        ([TORCH, "--trait", "delay=0.5"], "whole number"),
        ([TORCH, "--unsupported", "state_dicts"], "state_dict"),
        ([TORCH, "--examples", "9" * 20], "examples"),
        ([TORCH, "--level", "4", "--report", "txt"], "json"),
    ],
)
def test_check_rejects_invalid_arguments(arguments: list[str], shown: str) -> None:
    code, text = check(*arguments)
    assert code == 2
    assert shown in text
    assert "Traceback" not in text


def test_check_takes_traits_and_names() -> None:
    chosen = [
        OURS,
        "--check",
        "scale_is_never_subnormal",
        "--check",
        "skips_stay_within_budget",
    ]
    assert check(*chosen)[0] == 0
    code, text = check(*chosen, "--trait", "min_scale=1", "--unsupported", "state_dict")
    assert code == 0, text
    assert "2 passed of 2" in text
    code, text = check(
        OURS, "--check", "state_dict_continues_run", "--unsupported", "state_dict"
    )
    assert code == 0
    assert "1 skipped of 1" in text


# ------------------------------------------------------------------------------- explain, emit-test


def test_a_log_too_short_to_tell(tmp_path: Path) -> None:
    log = tmp_path / "my log.txt"
    log.write_text("step: 1, loss: 2, scale: 8\n")
    assert run("explain", str(log))[0] == 3


def test_json_output_has_the_verdict(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "".join(f"step: {n}, loss: nan, scale: {2.0**-n}\n" for n in range(60))
    )
    code, text = run("explain", str(log), "--json")
    assert code == 1
    assert json.loads(text)["verdict"] == "problem"


def test_missing_log_exits_with_2() -> None:
    words = "no log " * 30
    code, text = run("explain", words)
    assert code == 2
    assert words not in text  # of a long name the beginning


def test_unknown_error_is_named_as_argument() -> None:
    code, text = run("explain", "RuntimeError: CUDA out of memory")
    assert code == 2
    assert text.startswith("ampsim: the argument is neither a file nor")


def test_brackets_in_a_name_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "v[bold]ector.jsonl"
    code, text = run("traces", "export", name)
    assert code == 0
    assert text.startswith(name)


def test_option_of_script_needs_dashes() -> None:
    code, text = run("check-loop", "train.py", "--device", "cpu")
    assert code == 2
    assert "[-- ARGUMENTS]" in text


def test_check_loop_expects_script_or_make() -> None:
    code, text = run("check-loop", "run.jsonl")
    assert code == 2
    assert "module:make" in text


def test_check_loop_suggests_check_names() -> None:
    code, text = run(
        "check-loop", "no_such_module:make", "--xfail", "step_changes_parametrs"
    )
    assert code == 2
    assert "step_changes_parameters" in text
