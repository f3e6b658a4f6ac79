"""Whole public logs, whose truth was written down before they were read: no alarm, no acquittal, no wrong bound.

`public_logs.jsonl` says where each is from, which `lines` by sed where it is a part, its hash, and what is true of it.
The files are not ours to give away: AMPSIM_PUBLIC_LOGS names a folder that has them.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ampsim.diagnose.explain import Explanation, explain
from ampsim.diagnose.readers.sniff import NothingReadError, read_history

MANIFEST = Path(__file__).with_name("public_logs.jsonl")
LOGS: list[dict[str, Any]] = [json.loads(line) for line in MANIFEST.read_text().splitlines()]
FOLDER = Path(os.environ.get("AMPSIM_PUBLIC_LOGS", "/nowhere"))
needs_logs = pytest.mark.skipif(not FOLDER.is_dir(), reason="AMPSIM_PUBLIC_LOGS names no folder with the public logs")
RECOGNISED = 0.75
"""Share of the sick runs that are said to be wrong; the others' logs end too soon to tell, by our own account."""


def explained(log: dict[str, Any]) -> Explanation | None:
    """Return what is said of a log; None if nothing of a run is in it."""
    path = FOLDER / log["file"]
    if not path.exists():
        pytest.skip(f"{path}: not in the folder")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == log["sha256"], path
    try:
        return explain(read_history(path))
    except NothingReadError:
        return None


@needs_logs
@pytest.mark.parametrize("log", LOGS if FOLDER.is_dir() else [], ids=lambda log: log["id"])
def test_no_alarm_no_acquittal_and_no_wrong_bound(log: dict[str, Any]) -> None:
    said = explained(log)
    if said is None:
        return
    assert (log["verdict"], said.verdict) not in {("healthy", "wrong"), ("wrong", "healthy")}, said.why
    for each in said.statements:
        if each.kind == "skips":
            low, high = each.numbers["skips"]
            assert low <= log.get("skips_at_most", low)
            assert high is None or high >= log.get("skips_at_least", high)


@needs_logs
def test_so_many_sick_runs_are_recognised() -> None:
    logs = [log for log in LOGS if log["verdict"] == "wrong"]
    if missing := [log["id"] for log in logs if not (FOLDER / log["file"]).exists()]:
        pytest.skip(f"{len(missing)} of {len(logs)} sick runs are not in the folder")
    sick = [explained(log) for log in logs]
    assert sum(said is not None and said.verdict == "wrong" for said in sick) >= RECOGNISED * len(sick)


def test_each_log_can_be_found_again() -> None:
    assert len(LOGS) >= 40
    for log in LOGS:
        assert len(log["sha256"]) == 64
        assert log.get("url") or (log["repository"] and log.get("path")), log["id"]
