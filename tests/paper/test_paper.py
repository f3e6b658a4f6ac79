"""The paper: every number is what its file says, everything else is refused, and the same data gives the same bytes."""

import dataclasses
import json
import math
import re
import shutil
import statistics
from fractions import Fraction
from pathlib import Path

import pytest

from ampsim import records
from figures import claims
from figures.claims import Finding
from figures.quantities import INTERVALS
from paper import build, ledger
from paper.ledger import Declared, Number
from paper.numbers import judged
from paper.printed import show
from paper.sources import ROOT, PaperError

BOOK = ledger.collect(build.declared())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with what the paper is built from."""
    root = tmp_path_factory.mktemp("checkout")
    build.copy(ROOT, root)
    for path in (ROOT / "figures").glob("*.svg"):
        shutil.copy(path, root / "figures")
    return root


@pytest.fixture
def checkout(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "checkout"))


@pytest.fixture(scope="module")
def built(whole: Path) -> dict[str, bytes]:
    """The paper, built where a ledger with a wrong number lay."""
    wrong = build.encode(BOOK).replace(b'"typst": "two"', b'"typst": "three"')
    (whole / "paper" / "numbers.json").write_bytes(wrong)
    return build.build(whole)


def test_the_committed_paper_is_what_the_data_gives(built: dict[str, bytes]) -> None:
    committed = (ROOT / "paper" / "ampsim.pdf").read_bytes()
    assert built["paper/ampsim.pdf"] == committed, "run `python -m paper`"


def test_all_that_the_data_does_not_give_is_refused_at_once(checkout: Path) -> None:
    text = checkout / "paper" / "text" / "d0_training.typ"
    data = checkout / "experiments" / "data" / "cpu"
    edit(text, '#holds("gpt.mean")', '#holds("gpt.meant")')
    (checkout / "figures" / "whole_logs.svg").unlink()
    (data / "theory_real.jsonl").unlink()
    (data / "staleness.jsonl").write_bytes((data / "staleness.jsonl").read_bytes()[:-20])
    with pytest.raises(PaperError) as caught:
        build.build(checkout, draft=True)
    for shown in ("'gpt.meant'", "whole_logs.svg", "theory_real.jsonl", "staleness.jsonl"):
        assert shown in str(caught.value)


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        ("01_why.typ", "@qi2025", "@nobody2020"),
        ("d0_training.typ", '#num("gpt.fp32")', '#num("gpt.fp64")'),
    ],
)
def test_an_unknown_name_is_refused(checkout: Path, text: str, old: str, new: str) -> None:
    edit(checkout / "paper" / "text" / text, old, new)
    (checkout / "paper" / "numbers.json").write_bytes(build.encode(BOOK))
    with pytest.raises(PaperError, match=r"nobody2020|gpt\.fp64"):
        build.compile_text(checkout)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def renewal(counted, interval):
    """T3's skip rate and mean level by (T3.3), in fractions; the top level is the first where all overflow."""
    total = Fraction(sum(n for _, n in counted))
    levels = list(range(min(k for k, _ in counted), max(k for k, _ in counted) + 2))
    p = [sum(n for k, n in counted if k < level) / total for level in levels]
    q = [(1 - x) ** interval for x in p]
    stay = [(1 - b) / a if a else Fraction(interval) for a, b in zip(p, q, strict=True)]
    visits = [Fraction(1)]
    for j in range(p.index(1) - 1, -1, -1):
        visits.insert(0, visits[0] * (1 - q[j + 1]) / q[j])
    time = [v * t for v, t in zip(visits, stay, strict=True)]
    down = sum(v * (1 - b) for v, b in zip(visits, q, strict=True))
    return float(down / sum(time)), float(sum(x * t for x, t in zip(levels, time, strict=True)) / sum(time))


def printed(text):
    """The number that a reader reads, and half a unit of its last digit; None for words."""
    text = text.replace("−", "-").replace(",", "").removesuffix(" %")
    digits = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    if match := re.fullmatch(r"2([⁻⁰¹²³⁴-⁹]+)", text):
        return 2.0 ** int(match[1].translate(digits)), 0.0
    mantissa, _, exponent = text.partition("·10")
    if not re.fullmatch(r"-?\d+(\.\d+)?", mantissa):
        return None
    unit = 10.0 ** (int(exponent.translate(digits)) if exponent else 0)
    return float(mantissa) * unit, 0.500001 * unit * 10.0 ** -len(mantissa.partition(".")[2])


MEASURED = {name: entry for name, entry in BOOK["numbers"].items() if entry["stem"] not in ("formula", "traces")}


def test_every_number_is_printed_as_it_is() -> None:
    assert len(MEASURED) > 150
    for name, entry in BOOK["numbers"].items():
        shown, value = printed(entry["text"]), entry["value"]
        if isinstance(value, str):
            assert entry["text"] == value, name
        elif shown is None:
            words = (
                "no",
                "one",
                "two",
                "three",
                "four",
                "five",
                "six",
                "seven",
                "eight",
                "nine",
                "ten",
                "eleven",
                "twelve",
            )
            assert entry["text"] == words[int(value)], name
        else:
            factor = 100 if entry["text"].endswith("%") else 1
            over = shown[0] - factor * value
            low, high = {"<=": (0, 2), ">=": (-2, 0)}.get(entry["form"][:2], (-1, 1))  # in halves of the last digit
            assert low * shown[1] <= over <= high * shown[1], (name, entry["text"], value)


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.0273, "<=%0", "3 %"), (0.0141, "<=.2f", "0.02"), (3.02e-16, "<=e0", "4·10⁻¹⁶"), (-0.31, "<=.1f", "−0.3"),
        (10.2, "<=.0f", "11"), (0.199, ">=.1f", "0.1"), (31.96, ">=.0f", "31"), (1.97e4, ">=e1", "1.9·10⁴"),
    ],
)  # fmt: skip
def test_a_bound_is_rounded_outwards(value: float, form: str, text: str) -> None:
    assert show(value, form)[0] == text


def rows(stem: str) -> list[dict]:
    """The records of a file, read a second way."""
    lines = (ROOT / "experiments" / "data" / "cpu" / f"{stem}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_numbers_are_what_a_second_reader_finds_in_the_file() -> None:
    def of(stem: str, arm: str, column: str) -> list:
        return [row[column] for row in rows(stem) if row["arm"] == arm]

    expected = {
        "gpt.unscaled": statistics.fmean(of("gpt_fp16", "unscaled", "test_loss")),
        "resnet.fp32": statistics.fmean(of("resnet_fp16", "fp32", "test_loss")),
        "storm.2.max": max(of("overflow_storm", "storm 2", "test_loss")),
        "crash.05.median": statistics.median(of("scale_crash", "fp16 lr=0.05", "crash_step")),
        "rules.5.skip": statistics.fmean(of("rules_trained", "G=5", "skip_rate")),
        "theory.cases": len(rows("theory")),
    }
    kept = {name: BOOK["numbers"][name]["value"] for name in expected}
    assert kept == pytest.approx(expected, rel=1e-11)  # the ledger keeps twelve digits


@pytest.mark.parametrize("interval", INTERVALS)
def test_t3_in_the_table_is_its_formula_in_fractions(interval: int) -> None:
    laws = [renewal(row["ceilings"], interval) for row in rows("theory_real") if row["arm"] == f"G={interval}"]
    row = INTERVALS.index(interval)
    shown = [BOOK["numbers"][f"real[{row},{column}]"]["value"] for column in (2, 8)]
    rate, level = (statistics.fmean(column) for column in zip(*laws, strict=True))
    assert shown == pytest.approx([100 * rate, level], rel=1e-9)


def test_numbers_that_are_not_measured_are_formulas_dialects_and_recorded_runs() -> None:
    assert BOOK["numbers"]["t1.default.in"]["value"] == 2001
    assert BOOK["numbers"]["adversary.first"]["value"] == 144
    assert BOOK["numbers"]["traces.repeated"]["value"] == BOOK["numbers"]["traces.count"]["value"]


def test_the_page_has_the_ledgers_text_and_each_entry_is_on_it(built: dict[str, bytes], whole: Path) -> None:
    uses = build.used(whole)
    book = json.loads(built["paper/numbers.json"])
    for use in uses["numbers"]:
        assert use["text"] == book["numbers"][use["name"]]["text"]
    for kind in ("numbers", "claims", "figures", "tables"):
        assert {use["name"] for use in uses[kind]} == set(book[kind])


def test_each_number_is_traced_to_script_seeds_and_device() -> None:
    for stem in {entry["stem"] for entry in MEASURED.values()}:
        source = BOOK["sources"][stem]
        assert (ROOT / source["script"]).exists()
        assert source["seeds"]
        assert source["device"]
    for figure in BOOK["figures"].values():
        assert (ROOT / figure["script"]).exists()
        assert all(BOOK["sources"][stem]["file"].endswith(f"{stem}.jsonl") for stem in figure["data"])


def test_a_stale_data_file_is_refused(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = checkout / "experiments" / "data" / "cpu" / "scale_crash.jsonl"
    provenance, rows = records.read(path)
    records.write(path, {**provenance, "source_sha256": "0" * 64}, rows)
    monkeypatch.setattr(build, "declared", lambda root: just(Number("scale_crash", lambda run: len(run.records), "d")))
    with pytest.raises(PaperError, match=r"scale_crash\.jsonl: stale, its source has changed[^\n]*--force"):
        build.build(checkout)


def just(number: Number) -> Declared:
    return Declared({"it": number}, (), {}, ())


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (Number("gpt_fp16", lambda run: run.arm("fp64").mean("test_loss")), "arm 'fp64': expected one of fp32, "),
        (Number("gpt_fp16", lambda run: run.arm("fp32").mean("train_lost")), "KeyError: 'train_lost'"),
        (Number("gpt_fp16", lambda run: run.arm("fp32").the("test_loss")), "expected one value"),
        (Number("gpt_fp16", lambda _: 1 / 0), "ZeroDivisionError"),
        (Number("gpt_fp16", lambda run: run.fp32), "AttributeError"),
        (Number("gpt_fp16", lambda run: run.arm("fp32").mean("test_loss"), "words"), "expected a whole number below"),
        (Number("gpt_fp16", lambda run: run.arm("fp32").mean("test_loss"), "2^"), "expected a power of two"),
        (Number("gpt_fp16", lambda _: "many"), "'many': expected a number for the form '.2f'"),
    ],
)
def test_a_number_that_its_file_does_not_have_is_refused_by_name(number: Number, said: str) -> None:
    with pytest.raises(PaperError, match=f"number 'it': .*{said}"):
        ledger.collect(just(number))


def test_a_number_of_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(PaperError, match=r"gpt_fp61.jsonl: no such file"):
        ledger.collect(just(Number("gpt_fp61", lambda run: run.arm("fp32").mean("test_loss"))))


def test_what_is_said_is_said_of_the_data_that_lies_there(checkout: Path) -> None:
    number = just(Number("gpt_fp16", lambda run: run.arm("unscaled").min("test_loss")))
    before = ledger.collect(number)["numbers"]["it"]["value"]
    path = checkout / "experiments" / "data" / "cpu" / "gpt_fp16.jsonl"
    provenance, rows = records.read(path)
    changed = [row | {"test_loss": row["test_loss"] + (row["arm"] == "unscaled")} for row in rows]
    records.write(path, provenance, changed)
    assert ledger.collect(number, checkout)["numbers"]["it"]["value"] == before + 1
    with pytest.raises(PaperError, match=r"claim 'gpt.mean': no longer true of gpt_fp16.jsonl: A transformer .* needs"):
        ledger.collect(Declared({}, ("gpt.mean",), {}, ()), checkout)


def test_a_claim_of_which_a_part_fails_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = dataclasses.replace(claims.CLAIMS["gpt.mean"], judge=lambda _: Finding("now", True, False))
    monkeypatch.setitem(claims.CLAIMS, "gpt.mean", claim)
    with pytest.raises(PaperError, match=r"claim 'gpt.mean': no longer true .*; now;"):
        ledger.collect(Declared({}, ("gpt.mean",), {}, ()))


TEXT = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "paper" / "text").glob("*.typ")))
THEORY = "tests/core/test_theory.py"


@pytest.fixture(scope="module")
def uses(built: dict[str, bytes], whole: Path):
    return build.used(whole)


def functions(file: str) -> set[str]:
    """The names of the functions of a file of tests."""
    return {*re.findall(r"^def (\w+)", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)}


def test_each_test_that_the_text_names_exists(uses) -> None:
    assert len(uses["tests"]) > 20
    for use in uses["tests"]:
        file, _, name = use["name"].partition("::")
        assert name in functions(file), use["name"]


def test_theorems_have_proofs_and_name_their_tests(uses) -> None:
    named = {theorem["name"]: {*theorem["tests"]} for theorem in uses["theorems"]}
    assert named.keys() == {proof["name"] for proof in uses["proofs"]} == {f"T{i}" for i in range(1, 11)}
    present = functions(THEORY)
    assert set().union(*named.values()) <= present
    for name in present:
        if found := re.match(r"test_(t\d+)_", name):
            assert name in named[found[1].upper()]


def test_the_locked_packages_are_those_of_the_constraints() -> None:
    def pinned(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^([\w.-]+)==([\w.]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))

    locked, allowed = pinned(ROOT / "paper" / "requirements.txt"), pinned(ROOT / "constraints.txt")
    text = (ROOT / "paper" / "requirements.txt").read_text(encoding="utf-8")
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}$", text, flags=re.MULTILINE)) == len(locked)
    del locked["setuptools"]  # torch brings it, whatever its version
    assert {name: allowed.get(name) for name in locked} == locked


def test_nothing_but_what_was_read_is_cited() -> None:
    entries = re.split(r"\n@", (ROOT / "paper" / "refs.bib").read_text(encoding="utf-8"))[1:]
    for entry in entries:
        key = re.match(r"\w+\{(\w+)", entry)[1]
        assert re.search(r"read = \{\w", entry), key
        assert f"@{key}" in TEXT, f"{key} is not cited"


def test_formats() -> None:
    assert show(1234567, ",d") == ("1,234,567", "1,234,567")
    assert show(-0.5, ".1f")[0] == "−0.5"
    assert show(0.12345, "%1") == ("12.3 %", "12.3~%")
    assert show(2.0**-128, "2^") == ("2⁻¹²⁸", "$2^(-128)$")
    assert show(-1.85e-4, "e2") == ("−1.85·10⁻⁴", "$-1.85 dot 10^(-4)$")
    assert show(0, "words")[0] == "no"
    assert show(math.inf, ".1f")[0] == "inf"
    with pytest.raises(ValueError, match="expected a whole number"):
        show(2.5, "d")


def test_the_census_by_repository_adds_up_and_alone_loops_have_the_binomial_interval() -> None:
    repositories = judged.by_repository()
    groups = [*repositories.values()]
    assert sum(wrong for wrong, _ in groups) == BOOK["numbers"]["census.wrong"]["value"]
    assert sum(size for _, size in groups) == BOOK["numbers"]["census.loops"]["value"]
    assert len(groups) == BOOK["numbers"]["census.repositories"]["value"]
    low, high = judged.clustered([(1, 1)] * 40 + [(0, 1)] * 60)
    assert (low + high) / 2 == pytest.approx(0.4)
    assert (high - low) / 2 == pytest.approx(1.959964 * math.sqrt(0.4 * 0.6 / 99))
    whole = judged.clustered([(10, 10)] * 4 + [(0, 10)] * 6)  # as few as ten, not a hundred
    assert (whole[1] - whole[0]) / 2 == pytest.approx(1.959964 * math.sqrt(0.4 * 0.6 / 9))
