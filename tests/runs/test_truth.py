"""`explain` against logs whose truth is known: none is cleared that is unhealthy, none is a false
alarm.

A row of `logs.jsonl` has the lines of a log and what is true of it. `file` is the log's name, where
it matters.

- `truth` is "problem", "unhealthy" (a problem, if anything can be told), "no problem found", "no
  problem" (healthy, if anything can be told), "too little to tell", or "nothing" (no run is in it).
  `also` is a verdict beside the truth that is known to be given.
- `numbers` are the finite numbers of a role. `skips` is how many steps were skipped at least.

`public_logs.jsonl` names public logs and their truths, which were written down before they were
read. The files are not ours to give away: `public_extracts.jsonl.xz` has what
`make_public_extracts.py` keeps of some of them. The findings were tuned on both sets.
"""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from ampsim.runs import explain
from ampsim.runs.explain_log import Explanation
from ampsim.runs.findings.evidence import Evidence
from ampsim.runs.read.history import NothingReadError
from tests.runs.make_public_extracts import WORD, known

HERE = Path(__file__).parent
LOGS: list[dict[str, Any]] = [
    json.loads(line) for line in (HERE / "logs.jsonl").read_text("utf-8").splitlines()
]
PUBLIC = [
    json.loads(line) for line in (HERE / "public_logs.jsonl").read_text().splitlines()
]
NAMES = {
    "healthy": "no problem found",
    "wrong": "problem",
    "cannot tell": "too little to tell",
}
REFUTED = {
    "problem": {"no problem found"},
    "unhealthy": {"no problem found"},
    "no problem found": {"problem"},
    "no problem": {"problem"},
}

Log = dict[str, Any]


def diagnosis(path: Path, text: str) -> Explanation | None:
    """Return the diagnosis of a text; None if no run is in it."""
    path.write_text(text, "utf-8", newline="")
    try:
        return explain(path)
    except NothingReadError:
        return None


def is_false(truth: str, verdict: str) -> bool:
    if truth == "too little to tell":
        return verdict in ("problem", "no problem found")
    if truth == "nothing":
        return verdict not in ("nothing", "too little to tell")
    return verdict in REFUTED.get(truth, ())


@pytest.mark.parametrize("log", LOGS, ids=[log["id"] for log in LOGS])
def test_diagnosis_matches_truth(log: Log, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in log["log"])
    found = diagnosis(tmp_path / log.get("file", "train.log"), text)
    verdict = found.verdict if found else "nothing"
    assert not is_false(log.get("truth", ""), verdict) or verdict == log.get("also")
    if found is None:
        assert "numbers" not in log
        return
    run = Evidence(found.history)
    assert log.get("skips", run.skips_at_least) == run.skips_at_least
    for role, numbers in log.get("numbers", {}).items():
        series = getattr(run, role)
        assert ([] if series is None else series.finite.tolist()) == numbers, role


def test_unhealthy_logs_are_recognized(tmp_path: Path) -> None:
    unhealthy = [log for log in LOGS if log.get("truth") == "problem"]
    texts = ["".join(f"{line}\n" for line in log["log"]) for log in unhealthy]
    paths = [tmp_path / log.get("file", "train.log") for log in unhealthy]
    found = [diagnosis(path, text) for path, text in zip(paths, texts, strict=True)]
    recognized = sum(each is not None and each.verdict == "problem" for each in found)
    assert recognized >= 0.9 * len(unhealthy)


@pytest.fixture(scope="module")
def extracts() -> list[Log]:
    with lzma.open(HERE / "public_extracts.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def test_public_logs_contradict_no_truth(tmp_path: Path, extracts: list[Log]) -> None:
    files = {log["sha256"]: log["file"] for log in PUBLIC}
    false, recognized, cleared = list[str](), list[bool](), list[bool]()
    for log in extracts:
        found = diagnosis(tmp_path / files[log["sha256"]], log["text"])
        truth, verdict = NAMES[log["verdict"]], found.verdict if found else "nothing"
        if verdict in REFUTED.get(truth, ()):
            false.append(f"{log['id']}: {verdict}, and its truth is {truth}")
        most = log.get("skips_at_most")
        if (
            found
            and most is not None
            and (least := Evidence(found.history).skips_at_least) > most
        ):
            false.append(
                f"{log['id']}: at least {least} skips, and at most {most} are true"
            )
        if truth == "problem":
            recognized.append(verdict == "problem")
        if truth == "no problem found":
            cleared.append(verdict == "no problem found")
    assert not false, "\n".join(false)
    assert sum(recognized) >= 0.75 * len(recognized)
    assert sum(cleared) >= 0.65 * len(cleared)


def test_extracts_have_no_prose(extracts: list[Log]) -> None:
    for log in extracts:
        words = set(WORD.findall(log["text"])) - set(log["keys"])
        assert not [word for word in words if not known(word)], log["id"]


def test_each_extract_has_its_source(extracts: list[Log]) -> None:
    by_hash = {log["sha256"]: log for log in PUBLIC}
    assert len(by_hash) == len(PUBLIC) >= 700
    for log in PUBLIC:
        assert len(log["sha256"]) == 64
        assert log.get("url") or (log["repository"] and log.get("path")), log["id"]
    for log in extracts:
        source = by_hash[log["sha256"]]
        for name in ("id", "verdict", "skips_at_least", "skips_at_most"):
            assert log.get(name) == source.get(name), log["id"]
