"""What `ampsim explain` says: in words that agree with their numbers, with a picture where it is looked at."""

import io
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ampsim.cli import app
from ampsim.cli import explain as command
from ampsim.diagnose.explain import explain
from ampsim.diagnose.findings import findings
from ampsim.diagnose.history import HistoryBuilder
from ampsim.diagnose.words import counted, sparkline


def run(*scales, every=1, **columns):
    builder = HistoryBuilder("-", "test")
    for number, scale in enumerate(scales):
        builder.add(number * every, scale=scale, **{name: values[number] for name, values in columns.items()})
    return builder.finish()


@pytest.mark.parametrize(
    ("history", "said"),
    [
        (run(2.0), "Read: step 0, from test."),
        (run(2.0, 4.0, 2.0, every=10), "grew 1 time and fell 1 time."),
        (run(2.0, 4.0, 2.0, 4.0, every=10), "grew 2 times and fell 1 time."),
        (run(2.0, 2.0), "The scale stood at 2."),
        (run(2.0, 1.0, every=10), "at least 1 step,"),
        (run(2.0, 1.0, every=10, skipped=[0.0, 3.0]), "Skipped: 3 steps, by the log's own count."),
        (run(0.5, 0.0), "at least 1 step,"),  # of few digits; a scale that falls to 0 falls through all below
        (run(0.5, 0.0, every=200), "at least 149 steps,"),
        (run(65540.0, 32770.0, 16390.0, every=10), "backs off by 0.5."),
        (run(4.0, 1.0, every=10), "at least 2 steps,"),
        (run(2.0, skipped=[1.0]), "Skipped: 1 of 1 step."),
        (run(2.0, 2.0, skipped=[1.0, 0.0]), "Skipped: 1 of 2 steps."),
        (run(2.0, 4.0, 8.0, every=1), "grows after 1 clean step."),
        (run(2.0, 4.0, 8.0, every=2), "grows after 2 clean steps."),
        (run(8.0, 1.0, every=5, skipped=[0.0, 1.0]), "The log reports 1 skipped step where"),
        (run(8.0, 1.0, every=5, skipped=[0.0, 2.0]), "The log reports 2 skipped steps where"),
        (run(8.0, 8.0, skipped=[0, 1], loss=[1.0, float("nan")]), "not finite at 1 step, first at step 1."),
        (run(8.0, 4.0, 4.0, skipped=[0, 1, 1], loss=[1.0] + 2 * [float("nan")]), "not finite at 2 steps, first at"),
        (run(8.0, 4.0, every=5, loss=[1.0, float("nan")]), "not finite in 1 line of the log, first at step 5."),
        (
            run(8.0, 8.0, 4.0, 2.0, every=5, loss=[1.0] + 3 * [float("nan")]),
            "not finite in 3 lines of the log, first at step 5 and ever since. The loss scale has no part in the "
            "forward pass; its fall from 8 to 2 is an effect.",
        ),
    ],
)
def test_words_agree_with_their_numbers(history, said):
    assert said in explain(history)[0] + "".join(each.what for each in findings(history))


def test_a_large_number_is_counted_to_the_last_digit():
    assert counted(0, "step") == "0 steps"
    assert counted(10_412_399, "step") == "10412399 steps"


def test_the_picture_has_the_scale_and_below_it_the_skips():
    history = run(4.0, 4.0, 2.0, 1.0, 1.0, 2.0, 2.0**15, 2.0**15, skipped=[0, 1, 1, 0, 0, 0, 0, 0])
    assert sparkline(history, 80) == ["▂▂▁▁▁▁██", " ××", "loss scale, 1 to 32768; × skips"]
    assert sparkline(history, 4)[:2] == ["▂▁▁█", "××"]
    assert sparkline(run(float("nan"), float("nan"), 2.0), 9) == ["  ▁", "loss scale, 2 to 2"]
    assert sparkline(run(4.0, 2.0, every=10), 11)[1] == "          ×"  # where the log shows it
    assert sparkline(run(0.0), 9) == []


def test_a_pipe_is_explained_too():
    done = CliRunner().invoke(app, ["explain", "-"], input="step: 1, loss_scale: 8\nstep: 2, loss_scale: 8\n")
    assert "The scale stood at 8." in done.output


LOG = "".join(f"step: {10 * i}, loss_scale: {2.0 ** (20 - i)}\n" for i in range(20))


def test_a_pipe_has_the_words_and_the_ledger_and_a_terminal_the_picture_too(tmp_path, monkeypatch):
    (tmp_path / "train.log").write_text(LOG)
    piped = CliRunner().invoke(app, ["explain", str(tmp_path / "train.log")])
    assert piped.exit_code == 1
    assert piped.output.startswith("COLLAPSE: The loss scale fell from 2^20 to 2 ")
    assert not re.search("[\x1b█×]", piped.output)
    assert "Skips, the last 10 of 19 rows:" in piped.output
    assert re.search(r"180 to 190 +at least 1 +4 *\n$", piped.output)
    screen = Console(file=io.StringIO(), force_terminal=True, width=60, soft_wrap=True)
    monkeypatch.setattr(command, "out", screen)
    CliRunner().invoke(app, ["explain", str(tmp_path / "train.log")])
    diagnosis, picture = screen.file.getvalue().split("\n")[:2]
    assert diagnosis.startswith("\x1b[1;31mCOLLAPSE")
    assert re.fullmatch("\x1b.36m█+[▁-█]*▁+\x1b.0m", picture)
