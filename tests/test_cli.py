"""The command line: exit status 0 good, 1 a finding, 2 wrong use."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

import ampsim
from ampsim import dialects
from ampsim.cli import COMMANDS, app, line_of, terminal
from ampsim.cli.card import refusing
from ampsim.cli.check import _report
from ampsim.cli.compare import _defaults, _found, _print_history
from ampsim.cli.options import ReportFormat
from ampsim.cli.terminal import settings
from ampsim.core.differences import Search


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize("command", [[], ["traces"], ["traces", "check"], ["dialects"], ["replay"], ["check"]])
def test_help_everywhere(command: list[str]) -> None:
    code, text = run(*command, "--help")
    assert code == 0
    assert "Usage" in text


def test_module_and_command_are_one_program() -> None:
    done = subprocess.run([sys.executable, "-m", "ampsim", "nonsense"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_dialects_lists_all() -> None:
    code, text = run("dialects")
    assert code == 0
    assert all(name in text for name in dialects.names())


@pytest.mark.parametrize("name", dialects.names())
def test_the_defaults_that_are_listed_may_be_typed_and_are_the_defaults(name: str) -> None:
    listed = [*_defaults(dialects.ALL[name])]
    assert {each.partition("=")[0] for each in listed} == {*dialects.ALL[name].parameters, *dialects.ALL[name].options}
    typed = {key: value for key, value in settings("--set", listed).items() if value is not None}
    assert dialects.get(name, **typed) == dialects.get(name)


def test_the_help_says_of_each_command_what_the_command_says_of_itself() -> None:
    program = typer.main.get_command(app)
    for name, command in program.commands.items():  # type: ignore[attr-defined]
        module, _, function = COMMANDS[name][1].partition(":")
        assert command.help.partition("\n\n")[0].replace("\n", " ") == line_of(module, function), name


def test_replay_prints_each_update() -> None:
    code, text = run("replay", "torch.amp.GradScaler", "0010", "-s", "interval=2", "-s", "init=2**3")
    assert code == 0
    assert text.split() == ["clean", "8.0", "clean", "16.0", "overflow", "8.0", "clean", "8.0"]


def test_replay_shows_a_scaler_giving_up() -> None:
    code, text = run("replay", "deepspeed.DynamicLossScaler", "111", "-s", "init=2", "-s", "delayed_shift=1")
    assert code == 0
    assert "raises    Exception: Current loss scale already at minimum" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["torch.amp.GradScale", "0"], "did you mean 'torch.amp.GradScaler'"),
        (["torch.amp.GradScaler", "012"], "expected digits 0 (clean) and 1 (overflow)"),
        (["torch.amp.GradScaler", ""], "expected digits"),
        (["torch.amp.GradScaler", "0", "-s", "interval"], "expected NAME=VALUE"),
        (["torch.amp.GradScaler", "0", "-s", "interval=x"], "expected a number"),
        (
            ["torch.amp.GradScaler", "0", "-s", "init=2**4", "-s", "init=1"],
            "init is 16.0 already; expected each name once",
        ),
        (["torch.amp.GradScaler", "0", "-s", "interval=0"], "to never grow pass growth_factor=1.0"),
        (["torch.amp.GradScaler", "0", "-s", "interval=true"], "expected a whole number"),
        (["torch.amp.GradScaler", "0", "-s", "steps=3"], "has no parameter 'steps'"),
    ],
)
def test_wrong_use_says_what_was_expected(arguments: list[str], said: str) -> None:
    code, text = run("replay", *arguments)
    assert code == 2
    assert said in text
    assert "Traceback" not in text


# ------------------------------------------------------------------------------------------------------- check

TORCH = "torch.amp:GradScaler"


def check(*arguments: str) -> tuple[int, str]:
    pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
    return run("check", "--examples", "10", "--time-limit", "0", *arguments)  # test_apart has what has a limit


def test_check_says_what_a_scaler_breaks_and_exits_with_1() -> None:
    code, text = check(TORCH, "--level", "5")
    assert code == 1
    assert "scale_stays_normal: the scale fell to 2**-128" in text
    assert "https://github.com/pytorch/pytorch/issues/157436" in text
    assert "torch.amp:GradScaler: 9 passed, 5 failed, 1 not asked of 15 checks" in text


def test_check_exits_with_0_when_all_is_well_or_as_expected() -> None:
    assert check("ampsim.torch:GradScaler", "-l", "4", "-l", "5")[0] == 0
    code, text = check(TORCH, "--level", "5", "--expect", "ampsim.testing.known:TORCH")
    assert (code, "9 passed, 5 failed as expected, 1 not asked of 15 checks" in text) == (0, True)


def test_check_takes_expected_failures_from_a_file_and_by_name(tmp_path: Path) -> None:
    file = tmp_path / "expected.json"
    file.write_text(json.dumps({"a_refused_state_dict_changes_nothing": "known"}))
    assert check(TORCH, "--level", "4", "--expect", str(file))[0] == 0
    colon = file.rename(tmp_path / "of 12:30.json")
    assert check(TORCH, "--level", "4", "--expect", str(colon))[0] == 0
    assert check(TORCH, "--level", "4", "--xfail", "a_refused_state_dict_changes_nothing")[0] == 0


def test_check_finds_an_expected_failure_that_passes() -> None:
    code, text = check(TORCH, "--level", "0", "--xfail", "skip_budget")
    assert code == 1
    assert "skip_budget holds, but was expected to be broken" in text


@pytest.mark.parametrize(("form", "begins"), [("md", "torch.amp:"), ("json", "{"), ("html", "<!doctype html>")])
def test_check_writes_a_report(form: str, begins: str, tmp_path: Path) -> None:
    file = tmp_path / f"report.{form}"
    code, printed = check(TORCH, "--level", "4", "--report", form)
    assert code == 1
    assert printed.startswith(begins)
    assert check(TORCH, "--level", "4", "--out", str(file))[0] == 1
    assert file.read_text() == printed


def test_check_puts_scalers_side_by_side() -> None:
    code, text = check(TORCH, "ampsim.torch:GradScaler", "--level", "4", "--report", "md")
    assert code == 1
    assert "| L4 | `a_refused_state_dict_changes_nothing` | ✗ | ✓ |" in text


def test_check_finds_a_module_in_the_folder_it_is_run_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scaler.py").write_text("from torch.amp import GradScaler\n\ndef make(rule):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert check("my_scaler:GradScaler", "--level", "4")[0] == 1
    code, text = check("my_scaler:make", "--level", "4")
    assert code == 2
    assert "my_scaler:make: making it gave None, without scale, step, update" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["torch.amp"], "expected module:attribute"),
        (["torch.amp:GradScale"], "did you mean 'GradScaler'"),
        (["no_such_module:GradScaler"], "no module 'no_such_module'; run from its folder, or install it"),
        (["math.py:pi"], "no module 'math.py'; say math:NAME"),
        (["math:pi"], "expected a GradScaler class or make(rule)"),
        ([TORCH, "--level", "6"], "level=6: expected 0 to 5"),
        ([TORCH, "--xfail", "skip_budgets"], "did you mean 'skip_budget'"),
        (
            [TORCH, "--expect", "no_such_file.json"],
            "no_such_file.json: No such file or directory; expected a JSON file",
        ),
        ([TORCH, "--expect", "math:pi"], "expected a mapping from laws to reasons"),
        ([TORCH, "--expect", "pyproject.toml"], "--expect pyproject.toml: not JSON"),
        ([TORCH, "--check", "skip_budgets"], "did you mean 'skip_budget'"),
        ([TORCH, "--trait", "min_scal=1"], "did you mean 'min_scale'"),
        ([TORCH, "--trait", "skips=some"], "expected a number"),
        ([TORCH, "--trait", "delay=0.5"], "expected a whole number"),
        ([TORCH, "--trait", "gives_up=1"], "anything else is declared by a Subject"),
        ([TORCH, "--without", "state_dicts"], "did you mean 'state_dict'"),
        ([TORCH, "--trait", "delay=1", "--trait", "delay=2"], "expected each name once"),
        ([TORCH, "--examples", "9" * 20], "Invalid value for"),
        ([TORCH, "--time-limit", "1e30"], "Invalid value for"),
        ([TORCH, "--schedule", "1:1"], "expected one TARGET and one --law"),
        ([TORCH, "--check", "skip_budget", "--schedule", "1:1"], "skip_budget has no threads"),
        ([TORCH, "--check", "a_state_dict_is_never_torn", "--schedule", "1-1"], "expected STEP:CHOICE"),
        ([TORCH, "--level", "4", "--out", "report.txt"], "expected a name that ends in .md, .json, .html or .xml"),
        ([TORCH, "--level", "4", "--out", "no/such/folder.md"], "no/such/folder.md"),
    ],
)
def test_check_refuses_wrong_use(arguments: list[str], said: str) -> None:
    code, text = check(*arguments)
    assert code == 2
    assert said in text
    assert "Traceback" not in text


def test_check_takes_traits_and_names_of_checks() -> None:
    floor = ["ampsim.torch:GradScaler", "--check", "scale_stays_normal", "--check", "skip_budget"]
    assert check(*floor)[0] == 0
    code, text = check(*floor, "--trait", "min_scale=1", "--without", "state_dict")
    assert code == 0, text
    assert "ampsim.torch:GradScaler: 2 passed of 2 checks" in text
    code, text = check(
        "ampsim.torch:GradScaler", "--check", "a_state_dict_continues_the_run", "--without", "state_dict"
    )
    assert (code, "1 not asked of 1 checks" in text) == (0, True)


def test_a_schedule_that_was_found_is_replayed_by_the_command_in_the_message() -> None:
    torn = "a_state_dict_is_never_torn"
    code, text = check(TORCH, "--check", torn)
    (command,) = [line.split("replay")[1] for line in text.splitlines() if line.startswith("  replay")]
    assert code == 1
    replayed, story = run(*shlex.split(command)[1:])
    assert replayed == 1
    assert story.splitlines()[0] == next(line for line in text.splitlines() if line.startswith(torn))
    assert story.count(" up to ") > text.count(" up to ")  # every turn, not the last ones
    assert run("check", TORCH, "--check", torn, "--schedule", "") == (0, f"{torn} holds under this schedule\n")


@pytest.mark.parametrize(("updates", "first", "rows"), [(8, "", 9), (9, "...", 9), (20, "...", 9)])
def test_a_long_history_is_shown_from_where_it_matters(
    updates: int, first: str, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_history(("a", "b"), [ampsim.Rule()] * 2, [False] * updates)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert (len(lines), lines[0][:3].strip()) == (rows, first)
    assert lines[-1].split()[0] == str(updates - 1)


def test_explain_ends_a_range_of_skips_at_a_step_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 9, "loss": 2, "overflow": 0}\n{"step": 11, "loss": 2, "overflow": 2}\n{"step": 13}\n')
    assert "\n10 to 11  2 " in run("explain", str(log))[1]


def test_version_and_completion() -> None:
    assert run("--version") == (0, f"ampsim {ampsim.__version__}\n")
    assert "--show-completion" in run("--help")[1]


def test_sweep_plays_every_combination_over_every_trace_of_a_folder(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full(10, 2.0**9))
    np.save(tmp_path / "b.npy", np.full(30, 2.0**11, np.float32))
    grid = ["-s", "init=2**10,2**11", "-s", "interval=5,100"]
    table = tmp_path / "rows.csv"
    code, text = run("sweep", str(tmp_path), "torch.amp.GradScaler", *grid, "--jobs", "1", "--out", str(table))
    assert code == 0, text
    assert "40 steps of 2 traces" in text
    rows = [line.split() for line in text.splitlines() if line.lstrip()[:1] in ("1", "2")]
    assert [row[:3] for row in rows] == [
        ["1024.0", "5", "6"], ["1024.0", "100", "1"], ["2048.0", "5", "8"], ["2048.0", "100", "2"],
    ]  # fmt: skip
    assert rows[1][3:] == ["0.025", "9.75"]  # of all steps: 10 at 2^9 and 30 at 2^10
    lines = table.read_text().splitlines()
    assert lines[0] == "trace,steps,init,interval,skips,skip_rate,mean_log2_scale,scale"
    assert lines[2] == "a.npy,10,1024.0,100,1,0.1,9.0,512.0"
    assert len(lines) == 1 + 2 * 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["."], "expected a folder with traces of ceilings in it, *.npy"),
        (["no/such"], "expected a folder with traces"),
        ([".", "-s", "interval=1,x"], "--set 'interval=x': expected a number"),
        (
            [".", "-s", "interval=1", "-s", "interval=2"],
            "interval has values already; expected each name once, e.g. interval=1,2",
        ),
        ([".", "-s", "interval=0"], "growth_interval=0: expected at least 1"),
        (["bad"], "a.npy: no .npy file"),
    ],
)
def test_sweep_refuses_with_a_cure(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.npy").write_text("1,2")
    code, text = run("sweep", str(tmp_path / arguments[0]), "torch.amp.GradScaler", *arguments[1:])
    assert code == 2
    assert said in text


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("No module named 'torch.cuda'", "No module named 'torch.cuda'; TYPE torch"),
        ("no module 'torch'; run from its folder, or install it", "no module 'torch'; TYPE torch"),
        ("mine: No module named 'jax'; install what it needs", "mine: No module named 'jax'; TYPE jax"),
        ("a: No module named 'jax'; pip install 'a[jax]'; install what it needs", "a: No module named 'jax'; TYPE jax"),
        (
            "mine: No module named 'theirs'; install what it needs",
            "mine: No module named 'theirs'; install what it needs",
        ),
        (
            "no module 'mine'; run from its folder, or install it",
            "no module 'mine'; run from its folder, or install it",
        ),
    ],
)
def test_of_a_package_that_an_extra_brings_the_line_to_type_is_said(
    message: str, said: str, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(terminal, "err", terminal._Console(stderr=True, soft_wrap=True))
    monkeypatch.setattr(terminal, "line_to_type", lambda package: f"TYPE {package}")
    with pytest.raises(typer.Exit):
        terminal.fail(message)
    assert capsys.readouterr().err == f"ampsim: {said}\n"


def test_a_page_of_the_folder_that_one_is_in_stands_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.setattr("ampsim.cli.report.read_log", lambda log: None)
    monkeypatch.setattr("ampsim.cli.report.write_page", lambda history, log, page: asked.append(page))
    for log in (".", "log.txt", f"{tmp_path}/run"):
        assert run("report", log)[0] == 0
    assert asked == [tmp_path / "run.html", Path("log.html"), tmp_path / "run.html"]


def test_of_long_text_that_is_no_log_the_beginning_is_told() -> None:
    words = "no log " * 30
    code, text = run("explain", words)
    assert (code, text.startswith(f"ampsim: {words[:80]}: no such file")) == (2, True)


def test_a_log_may_have_a_space_in_its_name(tmp_path: Path) -> None:
    log = tmp_path / "my log.txt"
    log.write_text("step: 1, loss: 2, scale: 8\n")
    assert run("explain", str(log))[0] == 3


def test_scalers_of_other_first_scales_part_before_any_update() -> None:
    assert _found(Search((), 0)) == "they part before any update"
    assert _found(Search((True, False, False), 3)) == "they part after 1 overflow, 2 clean"


def test_an_expected_law_by_name_goes_before_a_file_and_a_named_form_before_an_ending(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def judge(expected: dict[str, str]) -> NoReturn:
        raise ValueError(f"{expected}")

    (tmp_path / "known.json").write_text('{"a": "known", "b": "known"}')
    with pytest.raises(typer.Exit):
        _report(judge, f"{tmp_path}/known.json", ["b"], ReportFormat.md, tmp_path / "report.txt")
    assert capsys.readouterr().err == "ampsim: {'a': 'known', 'b': '--xfail'}\n"


def test_without_a_limit_a_law_is_asked_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
    monkeypatch.setattr("ampsim.testing.child.judge_apart", lambda *_, **__: pytest.fail("in a child"))
    assert check(TORCH, "--check", "pickling_is_invisible")[0] == 0


def test_what_is_expected_of_a_loop_is_a_law() -> None:
    code, text = run("check-loop", "no_such_module:make", "--xfail", "it_lears")
    assert (code, text) == (2, "ampsim: no law 'it_lears'; did you mean 'it_learns'?\n")


def test_a_test_that_has_no_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ampsim.testing.emit.run_emitted.emit", lambda *_, **__: "def test_it(): ...\n")
    asked = "emit-test", "it_learns", "mine:make"
    assert run(*asked) == (0, "def test_it(): ...\n")
    code, text = run(*asked, "-o", f"{tmp_path}/none/test_it.py")
    assert (code, "No such file or directory" in text) == (2, True)


def test_what_cannot_be_written_is_told_with_its_file_if_it_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ((), ("run.jsonl",)):
        with pytest.raises(typer.Exit), refusing("expected room"):
            raise OSError(28, "No space left", *name)
    assert (
        capsys.readouterr().err
        == "ampsim: No space left; expected room\nampsim: run.jsonl: No space left; expected room\n"
    )


def test_brackets_in_a_name_are_shown_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "v[bold]ector[/b].jsonl"
    code, text = run("traces", "export", name)
    assert (code, text.startswith(f"{name}: version ")) == (0, True)
    assert run("explain", name)[1].startswith(f"ampsim: {name}: ")
    for console in (terminal.out, terminal.err):
        assert console.render_str("[b]as it is[/b]").plain == "[b]as it is[/b]"


def test_a_table_has_its_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("[b]a", box=None)
    table.add_row("[/b]")
    terminal.print_table(table)
    assert capsys.readouterr().out.split() == ["[b]a", "[/b]"]
