"""Counts, quantifiers and ranges in words: nothing is said in them that no claim, theorem or test bears out."""

import dataclasses
from pathlib import Path

import pytest

from figures import results
from figures.claims import CLAIMS, Claim, Finding
from figures.results import Result
from paper import words
from paper.sources import ROOT


def untied(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "paper" / "text").mkdir(parents=True, exist_ok=True)
    (tmp_path / "paper" / "text" / "a.typ").write_text(text, encoding="utf-8")
    return [line.split("; expected")[0] for line in words.untied(tmp_path)]


def test_the_text_as_it_is() -> None:
    assert list(words.untied()) == []
    assert list(words.unasked(tuple(CLAIMS))) == []


SECOND_EDITION = [  # sentences that were printed, and false
    ("The rules lie close, except that one seed of the published _LogMax_ never learns.", ["one seed", "never"]),
    ('Below that plateau the network stands still#holds("sweep.left").', ["below"]),
    ('Above it no step is made#holds("sweep.right"), at $2^24$ all.', ["above", "all"]),
]


@pytest.mark.parametrize(("sentence", "found"), SECOND_EDITION)
def test_a_sentence_that_was_false_is_refused(tmp_path: Path, sentence: str, found: list[str]) -> None:
    said = untied(tmp_path, f'Before it.\n{sentence} #num("x.below") after it.\n')
    assert [line.split("'")[1] for line in said] == found
    assert all(line.startswith("paper/text/a.typ, line 2: ") for line in said)


BORNE = [
    'From $2^20$ to $2^24$ no step is made#holds("sweep.right").',
    'A plateau from $2^(-10)$\nto $2^15$#holds("sweep").',
    'All schedules were tried.#tested("tests/a.py::test_b") So they were.',
    'By #thm("T1") at most $1$ is; at most #num("x") are, all but #num("y").',
    '#given[Two] formats are factors of two apart. He said "every one of all".',
    '#theorem("T", "Title", assumes: [all $x$.])[No step at any of [two] levels.]\nAfter it.',
]


@pytest.mark.parametrize("sentence", BORNE)
def test_what_is_borne_out_is_not_refused(tmp_path: Path, sentence: str) -> None:
    assert untied(tmp_path, sentence) == []


def test_another_range_than_the_claims_is_refused(tmp_path: Path) -> None:
    (said,) = untied(tmp_path, 'From $2^18$ to $2^24$ no step is made#holds("sweep.right").')
    assert said.endswith("'from 2^18 to 2^24' is not what sweep.right says")


def end_of(*powers: int):
    """A judge that asks a few fixed scales only."""

    def judge(run: Result) -> Finding:
        loss = [x for k in powers for x in run.arm(f"static 2^{k}").column("test_loss")]
        return Finding(f"{max(loss):.2f}", max(loss) < 2.5)

    return judge


PLANTED = [
    ("Below 2^-13 it stands still", (-16,), "does not ask static 2^-15, static 2^-14"),
    ("Above 2^17 no step is made", (24,), "does not ask static 2^18, static 2^20"),
    ("From 2^-16 to 2^-15 it stands still", (-16,), "does not ask static 2^-15"),
    ("Above 2^24 no step is made", (24,), "nothing was run Above 2^24"),
    ("At most 2^-15 it stands still", (-16, -15), ""),
    ("Below 2^-14 it stands still", (-16, -15), ""),
]


@pytest.mark.parametrize(("sentence", "powers", "said"), PLANTED)
def test_a_claim_is_asked_of_all_that_was_run_in_its_range(sentence: str, powers: tuple[int, ...], said: str) -> None:
    claim = Claim("static_sweep", sentence, end_of(*powers), "", "")
    found = " ".join(words.left_out(claim, results.load("static_sweep")))
    assert said in found
    assert bool(found) == bool(said)


def test_the_prose_keeps_its_places() -> None:
    for path in (ROOT / "paper" / "text").glob("*.typ"):
        text = path.read_text(encoding="utf-8")
        found = words.plain(text)
        assert len(found) == len(text)
        assert found.count("\n") == text.count("\n")


def test_a_sentence_that_grows_beyond_its_judge_is_refused() -> None:
    claim = dataclasses.replace(CLAIMS["sweep.right"], sentence="Above 2^12 no step is made")
    assert "static 2^14, static 2^15" in " ".join(words.left_out(claim, results.load("static_sweep")))
