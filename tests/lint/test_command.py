"""The command: its input, its settings, its output, and its exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampsim.cli import build
from ampsim.lint.engine import RULES

WRONG, RIGHT = RULES["AMP101"].wrong, RULES["AMP101"].right
LINE = len(WRONG.splitlines())


def main(arguments: list[str]) -> int:
    """Return the exit status of ``ampsim lint`` with these arguments."""
    with pytest.raises(SystemExit) as end:
        build(["lint"])(["lint", *arguments], prog_name="ampsim")
    return int(end.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "right.py").write_text(RIGHT)
    return tmp_path


def test_finding_prints_line_and_exits_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wrong.py", "right.py"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"wrong.py:{LINE}:5: AMP101 warning: scheduler.step()")
    assert not any("right.py" in line for line in lines)


def test_last_line_counts_what_was_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.py", "data.py"):
        (folder / name).write_text("import torch\n")
    assert main(["right.py", "model.py", "data.py"]) == 0
    read = "0 findings; 3 files read, 1 training loop, 2 files without a loop\n"
    assert capsys.readouterr().out == read


def test_notes_alone_exit_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "note.py").write_text(RULES["AMP102"].wrong)
    assert main(["note.py"]) == 0
    assert ": AMP102 note: ema " in capsys.readouterr().out


def test_footer_names_the_gravest_finding(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "both.py").write_text(RULES["AMP102"].wrong + RULES["AMP111"].wrong)
    main(["both.py"])
    lines = capsys.readouterr().out.splitlines()
    assert ": AMP102 note: " in lines[0]
    assert lines[-2].endswith("ampsim lint --explain AMP111")


def test_notebook_is_refused_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.ipynb").write_text("{}")
    assert main(["train.ipynb"]) == 2
    assert "train.ipynb: a notebook: expected Python source" in capsys.readouterr().err


def test_hidden_and_tool_folders_are_skipped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    excluded = (".hidden", "node_modules", "deep/__pycache__", "site-packages", "build")
    for name in ("deep/er", *excluded):
        (folder / name).mkdir(parents=True)
        (folder / name / "train.py").write_text(WRONG)
    (folder / "notes.txt").write_text(WRONG)
    assert main([".", "wrong.py"]) == 1
    found = [
        line.partition(":")[0] for line in capsys.readouterr().out.splitlines()[:-2]
    ]
    assert found == ["wrong.py", "deep/er/train.py"]


@pytest.mark.parametrize(
    ("comment", "status"),
    [
        ("# ampsim: ignore[AMP101]", 0),
        ("# ampsim: ignore", 0),
        ("#ampsim:ignore[ amp102 , amp101 ] as the rate is cyclic", 0),
        ("# ampsim: ignore[AMP102]", 1),
        ("# ampsim: ignore[]", 1),
        ("# ignore[AMP101]", 1),
    ],
)
def test_comment_suppresses_its_line(folder: Path, comment: str, status: int) -> None:
    (folder / "wrong.py").write_text(WRONG.rstrip() + f"  {comment}\n")
    assert main(["wrong.py"]) == status
    (folder / "wrong.py").write_text(f"{comment}\n" + WRONG)
    assert main(["wrong.py"]) == 1


@pytest.mark.parametrize(
    ("table", "options", "status"),
    [
        ('ignore = ["AMP101"]', [], 0),
        ('ignore = ["AMP102"]', [], 1),
        ('select = ["AMP102"]', [], 0),
        ('select = ["AMP10"]', [], 1),
        ('select = ["ALL"]\nignore = ["AMP101"]', [], 0),
        ('ignore = ["AMP101"]', ["--ignore", "AMP102"], 1),
        ('select = ["AMP102"]', ["--select", "AMP101,AMP103"], 1),
        ("", ["--ignore", "AMP101"], 0),
        ('ignore = ["AMP101"]', ["--select", "AMP101"], 0),
        ("", ["--select", "amp125"], 0),
        ("", ["--select", "all"], 1),
    ],
)
def test_select_and_ignore_options(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
    options: list[str],
    status: int,
) -> None:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "pyproject.toml").write_text(f"[tool.ampsim]\n{table}\n")
    (folder / "deep" / "er" / "wrong.py").write_text(WRONG)
    assert main(["deep/er/wrong.py", *options]) == status
    monkeypatch.chdir("deep/er")
    assert main(["wrong.py", *options]) == status


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("select = 3", "select = 3: expected a list of codes"),
        ('select = ["AMP999"]', "no rule 'AMP999': expected one of AMP101"),
        ('select = [""]', "no rule ''"),
        ("selct = []", "tool.ampsim has 'selct': expected select or ignore"),
        ("select = [", "expected TOML"),
    ],
)
def test_invalid_setting_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str], table: str, said: str
) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.ampsim]\n{table}\n")
    assert main(["wrong.py"]) == 2
    assert said in capsys.readouterr().err


def test_json_has_check_reason_and_thread(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--format", "json", "wrong.py"]) == 1
    output = json.loads(capsys.readouterr().out)
    (found,) = output["findings"]
    rule = RULES["AMP101"]
    assert (found["path"], found["line"], found["column"], found["code"]) == (
        "wrong.py",
        LINE,
        5,
        "AMP101",
    )
    assert (found["check"], found["reason"], found["thread"]) == (
        rule.check,
        f"{rule.why} {rule.fix}",
        rule.thread,
    )
    assert output["errors"] == {}
    assert main(["--format", "json", "right.py"]) == 0
    read = {"findings": [], "errors": {}, "loops": {"right.py": 1}}
    assert json.loads(capsys.readouterr().out) == read


def test_annotations_of_github(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a,b%.py").write_text(WRONG)
    assert main(["--format", "github", "a,b%.py"]) == 1
    assert capsys.readouterr().out.startswith(
        f"::warning file=a%2Cb%25.py,line={LINE},col=5,title=AMP101::scheduler"
    )
    assert main(["--format", "github", "no,such.py"]) == 2
    assert capsys.readouterr().out.startswith("::error file=no%2Csuch.py::No such file")


ODD = {
    "no Python": (b"scaler = (\n", "expected Python 3"),
    "no scaler either": (b"x = 1\ndef f(:\n", "in line 2: expected Python 3"),
    "Python 2": (b"print 'scaler'\n", "expected Python 3"),
    "not UTF-8": (
        b"scaler = '\xff'\n",
        "expected Python source in its declared encoding, or UTF-8",
    ),
    "an encoding that there is not": (
        b"# coding: martian\nscaler = 1\n",
        "expected Python source",
    ),
    "a zero byte": (b"scaler = 1\0\n", "expected Python"),
    "nested too deeply": (b"scaler = " + b"(" * 3000 + b")" * 3000 + b"\n", "expected"),
    "a long sum": (b"scaler = " + b"1 + " * 30000 + b"1\n", "expected"),
}


@pytest.mark.parametrize(("data", "said"), ODD.values(), ids=ODD)
def test_unreadable_file_is_reported(
    folder: Path, capsys: pytest.CaptureFixture[str], data: bytes, said: str
) -> None:
    (folder / "odd.py").write_bytes(data)
    status = main(["odd.py", "wrong.py"])
    out, err = capsys.readouterr()
    assert (status, said in err) == (2, True), err
    assert out.startswith("wrong.py:")
    assert "Traceback" not in err


ODD_PYTHON = {
    "with a mark": b"\xef\xbb\xbf" + WRONG.encode(),
    "latin-1": b"# coding: latin-1\n# \xe9 scaler\n" + WRONG.encode(),
    "of Windows": WRONG.replace("\n", "\r\n").encode(),
    "an odd escape": b"text = '\\d'\n" + WRONG.encode(),
}


@pytest.mark.parametrize("data", ODD_PYTHON.values(), ids=ODD_PYTHON)
def test_odd_files_that_are_python(folder: Path, data: bytes) -> None:
    (folder / "odd.py").write_bytes(data)
    assert main(["odd.py"]) == 1


def test_empty_missing_and_no_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty.py").write_bytes(b"")
    assert main(["empty.py"]) == 0
    assert main(["no.py"]) == 2
    assert "no.py: No such file or directory: expected" in capsys.readouterr().err
    assert main([]) == 2
    assert "Missing argument 'PATH'" in capsys.readouterr().err


def test_undecodable_standard_input_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ampsim", "lint", "-"]
    text = b"scaler = '\xff'"
    done = subprocess.run(  # noqa: S603
        command, cwd=tmp_path, input=text, capture_output=True, check=False
    )
    assert (done.returncode, b"expected Python source" in done.stderr) == (2, True)
    assert b"Traceback" not in done.stderr


def test_closed_pipe_keeps_exit_status(tmp_path: Path) -> None:
    """Behind the first of many writes, or before the only one."""
    for many in (1, 150):
        (tmp_path / "many.py").write_text(WRONG * many)
        command = [sys.executable, "-m", "ampsim", "lint", str(tmp_path / "many.py")]
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(  # noqa: S603
            command, stdout=writer, stderr=subprocess.PIPE, check=False
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (1, b"")


def test_explain_and_the_list_of_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--explain", "amp103"]) == 0
    page = capsys.readouterr().out
    assert RULES["AMP103"].why in page
    assert RULES["AMP103"].wrong in page
    assert main(["--explain", "AMP999"]) == 2
    assert "AMP999: no such rule" in capsys.readouterr().err
    assert main(["--rules"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(RULES)


def test_standard_input_is_linted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ampsim", "lint", "-"]
    done = subprocess.run(  # noqa: S603
        command, cwd=tmp_path, input=WRONG, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.partition(" ")[0]) == (
        1,
        f"<stdin>:{LINE}:5:",
    ), done.stderr
