"""The committed verdicts, and what is not installed."""

import pytest

from ampsim import records
from ampsim.testing.loop.adapters.frameworks import FRAMEWORKS, Framework
from experiments import loops, runner
from figures import results

DATA = {row["arm"]: row for row in results.load("loops").records}
MISSING = Framework("no_such_package", "pip install it")


def run(name: str) -> records.Record:
    return loops.run(loops.SMOKE, loops.Arm(name), 0, "cpu", lambda step: None)


def test_what_is_not_installed_keeps_its_committed_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FRAMEWORKS, "deepspeed", MISSING)
    assert run("deepspeed").items() <= DATA["deepspeed"].items()
    assert run("deepspeed")["version"]


def test_what_was_never_installed_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FRAMEWORKS, "new", MISSING)
    row = run("new")
    assert (row["version"], row["laws"], row["not_run"]) == (None, {}, "pip install it")
    assert loops.table([{"arm": "new", **row}]).row_count == 1
    monkeypatch.setattr(runner, "DATA", runner.DATA / "nowhere")
    monkeypatch.setitem(FRAMEWORKS, "deepspeed", MISSING)
    assert run("deepspeed")["version"] is None
