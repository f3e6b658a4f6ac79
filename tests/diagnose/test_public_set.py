"""Public logs, whose truth was written down before they were read: no alarm, no acquittal.

`public_logs.jsonl` says where each is from, which `lines` by sed where it is a part, its hash, and
what is true of it. The files are not ours to give away: `public_extracts.jsonl.xz` has what
`make_public_extracts.py` keeps of some of them, of which `explain` says the same.
"""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.make_public_extracts import WORD, known, said

HERE = Path(__file__).parent
MANIFEST = [json.loads(line) for line in (HERE / "public_logs.jsonl").read_text().splitlines()]
RECOGNISED = 0.75
"""Share of the sick runs that are said to be wrong; the others' logs end too soon to tell."""

Log = dict[str, Any]


@pytest.fixture(scope="module")
def extracts() -> list[Log]:
    with lzma.open(HERE / "public_extracts.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def disagreements(log: Log, verdict: str, skips: list[tuple[int, int | None]]) -> list[str]:
    """Return in words where what is said of a log is not true of it."""
    found = []
    if {log["verdict"], verdict} == {"healthy", "wrong"}:
        found.append(f"{log['id']}: said to be {verdict}, and it is {log['verdict']}")
    for low, high in skips:
        too_many = low > log.get("skips_at_most", low)
        too_few = high is not None and high < log.get("skips_at_least", 0)
        if too_many or too_few:
            found.append(f"{log['id']}: said to skip {low} to {high} steps")
    return found


def test_public_logs_contradict_no_label(tmp_path: Path, extracts: list[Log]) -> None:
    names = {log["sha256"]: log["file"] for log in MANIFEST}
    wrong, recognised = list[str](), list[bool]()
    for log in extracts:
        path = tmp_path / names[log["sha256"]]
        path.write_bytes(log["text"].encode())
        verdict, skips = said(path)
        wrong += disagreements(log, verdict, skips)
        if log["verdict"] == "wrong":
            recognised.append(verdict == "wrong")
    assert not wrong, "\n".join(wrong)
    assert sum(recognised) >= RECOGNISED * len(recognised)


def test_extracts_have_no_prose(
    extracts: list[Log],
) -> None:
    for log in extracts:
        words = set(WORD.findall(log["text"])) - set(log["keys"])
        assert not [word for word in words if not known(word)], log["id"]


def test_each_extract_has_its_source(extracts: list[Log]) -> None:
    by_hash = {log["sha256"]: log for log in MANIFEST}
    assert len(by_hash) == len(MANIFEST) >= 700
    for log in MANIFEST:
        assert len(log["sha256"]) == 64
        assert log.get("url") or (log["repository"] and log.get("path")), log["id"]
    assert len(extracts) >= 150
    for log in extracts:
        theirs = by_hash[log["sha256"]]
        for name in ("id", "verdict", "skips_at_least", "skips_at_most"):
            assert log.get(name) == theirs.get(name), log["id"]
