"""Every claim of the gallery, the paper, and the tests, evaluated on the committed data."""

from pathlib import Path

import pytest

from ampsim.runs.record import data_file
from figures import claim_results, claims, results
from figures.claims import CLAIMS

ASKED = [
    (name, folder)
    for name, claim in CLAIMS.items()
    for folder in results.processors()
    if claim.stem == "traces" or (folder / f"{claim.stem}.jsonl").exists()
]


@pytest.mark.parametrize(
    ("name", "folder"), ASKED, ids=[f"{name}-{folder.name}" for name, folder in ASKED]
)
def test_committed_data_supports_paper_claims(name: str, folder: Path) -> None:
    found = CLAIMS[name].judge(results.load(CLAIMS[name].stem, folder))
    assert found.parts, "a claim without parts can never fail"
    assert found.holds, f"{CLAIMS[name].sentence}: {found.now}, {found.parts}"


def test_claim_names_are_unique() -> None:
    with pytest.raises(
        ValueError,
        match=r"'gpt.mean': expected a unique name; gpt_mean_loss has this one",
    ):
        claims.claim("gpt.mean", "gpt_fp16", "")(lambda _: claims.Finding(""))


@pytest.mark.parametrize("name", ["cpu-amd-epyc", "cpu-intel-xeon"])
def test_recorded_verdicts_of_other_processors(name: str) -> None:
    found = claim_results.judge_folder(results.DATA / name)
    held = {claim for claim, verdict in found.items() if verdict.holds}
    assert set(found) == set(CLAIMS)
    assert len(held) > 10
    assert [claim for claim, verdict in found.items() if verdict.holds is False] == []


def test_recorded_verdicts_match_data(tmp_path: Path) -> None:
    provenance, rows = data_file.read(results.CPU / "scale_crash.jsonl")
    calm = [row | {"crash_step": None} for row in rows]
    data_file.write(tmp_path / "data" / "scale_crash.jsonl", provenance, calm)
    (tmp_path / "kept").mkdir()
    count = claim_results.write(
        tmp_path / "data", tmp_path / "kept" / claim_results.VERDICTS
    )
    before = claim_results.judge_folder(tmp_path / "data")
    kept = claim_results.judge_folder(tmp_path / "kept")
    judged = {name for name in before if CLAIMS[name].stem == "scale_crash"}
    assert count == len(judged) > 0
    assert {name: kept[name] for name in judged} == {
        name: before[name] for name in judged
    }
    assert kept["crash.none"].holds is False
    assert kept["gpt.mean"].holds is None


def test_refuted_claims_come_first() -> None:
    holds, refuted = (
        claim_results.Verdict("5 of 5", True),
        claim_results.Verdict("4 of 5", False),
    )
    unknown = claim_results.Verdict("not run", None)
    claim = CLAIMS["crash.none"]
    judged = [
        claim_results.Judged("a", claim, {"cpu": holds, "here": unknown}),
        claim_results.Judged("b", claim, {"cpu": unknown, "here": unknown}),
        claim_results.Judged("c", claim, {"cpu": holds, "here": refuted}),
    ]
    text = [*claim_results.lines(judged)]
    assert [line.split() for line in text[:3]] == [
        ["does", "not", "hold", "c", "4", "of", "5", "(not", "on", "here)"],
        ["not", "evaluated", "b", "not", "run"],
        ["holds", "a", "not", "run"],
    ]
    assert (
        text[-1] == "here: 0 of the 1 claims that can be evaluated hold; do not hold: c"
    )
    assert f"    {claim.sentence}" in claim_results.lines(judged, sentences=True)
