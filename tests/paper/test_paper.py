"""The paper: every number is what its file says, everything else is refused, and the same data gives the same bytes."""

import functools
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from ampsim import records
from ampsim.core import theory
from paper import build, ledger, lint, numbers
from paper.ledger import Claim, Declared, Number, Table
from paper.sources import ROOT, Refused

BOOK = json.loads((ROOT / "paper" / "numbers.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with what the paper is built from."""
    root = tmp_path_factory.mktemp("checkout")
    build.copy(ROOT, root)
    for path in [*(ROOT / "figures").glob("*.pdf"), *(ROOT / "figures").glob("*.svg")]:
        shutil.copy(path, root / "figures")
    return root


@pytest.fixture
def checkout(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "checkout"))


@pytest.fixture(scope="module")
def built(whole: Path) -> dict[str, bytes]:
    return build.build(whole, draft=True)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


# ------------------------------------------------------------------------------------- what is there is right


def find(rows, selector):
    """What `paper.paths.select` says it does, written a second time."""
    steps = selector.split(" / ")
    for step in steps[steps[0] == "@" :]:
        key, value = re.fullmatch(r"(.*?)!?(?:=(.*))?", step).groups()
        negated = "!=" in step

        def fits(item, key=key, value=value, negated=negated):
            return (
                isinstance(item, dict)
                and key in item
                and (str(item[key]) != value if negated else str(item[key]) == value)
            )

        found = []
        for row in rows:
            if step == "*":
                found += list(row.values()) if isinstance(row, dict) else row
            elif isinstance(row, dict):
                found += [row[step]] if step in row else [row] if "=" in step and fits(row) else []
            elif "=" in step:
                found += [item for item in row if fits(item)]
            elif -len(row) <= int(step) < len(row):
                found.append(row[int(step)])
        rows = found
    assert rows, selector
    return rows


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


read = functools.cache(records.read)


def evaluated(stem, path):
    """A number again, from its file: another reader, another evaluator."""
    if stem == "runs":
        files = sorted((ROOT / "experiments" / "data" / "cpu").glob("*.jsonl"))
        provenance, rows = {}, [records.read_provenance(file) for file in files]
    else:
        provenance, rows = read(ROOT / BOOK["sources"][stem]["file"])

    def on(reduce):
        return lambda selector, *more: (
            reduce(find([provenance] if selector.startswith("@ / ") else rows, selector), *more)
            if isinstance(selector, str)
            else reduce(selector)
        )

    return eval(  # noqa: S307 - arithmetic from our own table
        path,
        {
            "__builtins__": {},
            "abs": abs,
            "mean": on(lambda v: sum(v) / len(v)),
            "median": on(statistics.median),
            "min": on(min),
            "max": on(max),
            "sum": on(sum),
            "count": on(len),
            "the": on(lambda v: v[0] if all(x == v[0] for x in v) else pytest.fail(f"{path}: {v}")),
            "lengths": on(lambda v: sum(len(x) for x in v)),
            "listed": on(list),
            "known": on(lambda v: len([x for x in v if x is not None])),
            "above": on(lambda v, limit: len([x for x in v if x > limit])),
            "peaks_above": on(lambda v, limit: len([x for x in v if any(y > limit for y in x)])),
            "mean_level": on(lambda v: sum(k * n for k, n in v[0]) / sum(n for _, n in v[0])),
            "t3_rate": on(lambda v, g: renewal(v[0], g)[0]),
            "t3_level": on(lambda v, g: renewal(v[0], g)[1]),
        },
    )


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


MEASURED = {
    name: entry
    for name, entry in BOOK["numbers"].items()
    if BOOK["sources"][entry["stem"]]["seeds"] or entry["stem"] == "runs"
}


def test_every_number_is_what_its_file_says() -> None:
    assert len(MEASURED) > 150
    for name, entry in MEASURED.items():
        value = evaluated(entry["stem"], entry["path"])
        assert value == pytest.approx(entry["value"], rel=1e-9), name
        shown = printed(entry["text"])
        if shown is None:
            words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")
            assert entry["text"] == words[int(value)], name
        else:
            factor = 100 if entry["text"].endswith("%") else 1
            assert abs(shown[0] - factor * value) <= shown[1], (name, entry["text"], value)


def test_numbers_that_are_not_measured_are_formulas_dialects_and_recorded_runs() -> None:
    rest = {entry["stem"] for entry in BOOK["numbers"].values()} - {entry["stem"] for entry in MEASURED.values()}
    assert rest == {"formulas", "field", "traces"}
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


def test_the_committed_files_are_those_that_the_data_gives(built: dict[str, bytes]) -> None:
    for name, content in built.items():
        assert (ROOT / name).read_bytes() == content, f"{name}: run `python -m paper`"


def test_another_folder_gives_the_same_bytes(built: dict[str, bytes], checkout: Path) -> None:
    assert build.build(checkout, draft=True) == built


def test_each_number_is_traced_to_script_seeds_and_device() -> None:
    for stem in {entry["stem"] for entry in MEASURED.values()} - {"runs"}:
        source = BOOK["sources"][stem]
        assert (ROOT / source["script"]).exists()
        assert source["seeds"]
        assert source["device"]
    for figure in BOOK["figures"].values():
        assert (ROOT / figure["script"]).exists()
        assert all(BOOK["sources"][stem]["file"].endswith(f"{stem}.jsonl") for stem in figure["data"])


# ---------------------------------------------------------------------------------------- what is wrong is refused


def refusal(root: Path, declared: Declared | None = None) -> str:
    with pytest.raises(Refused) as caught:
        ledger.collect(declared, root) if declared else build.build(root, draft=True)
    return str(caught.value)


def test_a_number_typed_into_the_text_is_refused(checkout: Path) -> None:
    edit(checkout / "paper" / "text" / "06_experiments.typ", '#num("gpt.fp32")', "2.58")
    said = refusal(checkout)
    assert re.search(r"paper/text/06_experiments\.typ, line \d+: '2\.58' is typed by hand", said)
    assert "'gpt.fp32'" not in said  # said once


def test_a_number_typed_into_a_formula_is_refused(checkout: Path) -> None:
    edit(checkout / "paper" / "text" / "06_experiments.typ", '#num("gpt.fp32")', "$2.58$")
    assert "'2.58' is typed by hand" in refusal(checkout)


def test_a_wrong_number_in_the_ledger_does_not_reach_the_page(checkout: Path, built: dict[str, bytes]) -> None:
    (checkout / "paper" / "numbers.json").write_bytes(built["paper/numbers.json"])
    edit(checkout / "paper" / "numbers.json", '"text": "no"', '"text": "three"')
    assert build.build(checkout, draft=True) == built


def test_a_missing_figure_is_refused(checkout: Path) -> None:
    (checkout / "figures" / "gpt_fp16.pdf").unlink()
    assert "figures/gpt_fp16.pdf: no such figure; `python -m figures gpt_fp16` draws it" in refusal(checkout)


def test_a_figure_that_would_be_scaled_is_refused(checkout: Path) -> None:
    edit(checkout / "figures" / "gpt_fp16.svg", 'width="496.8pt"', 'width="600pt"')
    assert "figures/gpt_fp16.svg: 600 pt wide" in refusal(checkout)


def test_a_missing_data_file_is_refused_and_what_needs_it_is_not_blamed(checkout: Path) -> None:
    (checkout / "experiments" / "data" / "cpu" / "theory_real.jsonl").unlink()
    said = refusal(checkout)
    assert "theory_real.jsonl: no such file; `python -m experiments.theory_real` makes it" in said
    assert len(said.splitlines()) == 1


def test_a_damaged_data_file_is_refused(checkout: Path) -> None:
    path = checkout / "experiments" / "data" / "cpu" / "theory_real.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert "theory_real.jsonl, line" in refusal(checkout)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [("source_sha256", "0" * 64, "its source has changed"), ("inputs_sha256", {"digits": "0"}, "inputs|source")],
)
def test_a_stale_data_file_is_refused(checkout: Path, key: str, value: object, why: str) -> None:
    path = checkout / "experiments" / "data" / "cpu" / "scale_crash.jsonl"
    provenance, rows = records.read(path)
    records.write(path, {**provenance, key: value}, rows)
    with pytest.raises(Refused, match=rf"scale_crash\.jsonl: stale, [^\n]*({why})[^\n]*--force"):
        build.build(checkout)
    notice = ledger.stale(ledger.collect(build.declared(), checkout), checkout)
    assert any("scale_crash.jsonl: stale" in line for line in notice)


def test_a_citation_that_leads_nowhere_is_refused(checkout: Path) -> None:
    edit(checkout / "paper" / "text" / "01_why.typ", "@qi2025", "@nobody2020")
    assert "nobody2020" in refusal(checkout)


def test_a_number_that_nobody_declared_is_refused(checkout: Path) -> None:
    edit(checkout / "paper" / "text" / "06_experiments.typ", '#num("gpt.fp32")', '#num("gpt.fp64")')
    assert '"gpt.fp64" is not declared in paper/numbers' in refusal(checkout)


def test_a_number_that_nobody_uses_is_refused(checkout: Path) -> None:
    edit(checkout / "paper" / "text" / "06_experiments.typ", '#num("gpt.fp32")', "much")
    assert "number 'gpt.fp32' is declared and the text does not use it" in refusal(checkout)


def just(number: Number | Claim) -> Declared:
    if isinstance(number, Claim):
        return Declared({}, {"it": number}, {}, ())
    return Declared({"it": number}, {}, {}, ())


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (Number("gpt_fp16", "mean('arm=fp64 / test_loss')"), "'arm=fp64' finds nothing"),
        (Number("gpt_fp16", "mean('arm=fp32 / train_lost')"), "'arm=fp32 / train_lost' finds nothing"),
        (Number("gpt_fp16", "the('arm=fp32 / test_loss')"), "expected one value"),
        (Number("gpt_fp16", "average('arm=fp32 / test_loss')"), r"average\(\): expected one of"),
        (Number("gpt_fp16", "__import__('os')"), "expected one of"),
        (Number("gpt_fp16", "1 / 0"), "ZeroDivisionError"),
        (Number("gpt_fp16", "mean("), "SyntaxError"),
        (Number("gpt_fp16", "mean('arm=fp32 / test_loss')", "words"), "expected a whole number below"),
        (Number("gpt_fp16", "mean('arm=fp32 / test_loss')", "2^"), "expected a power of two"),
        (Number("gpt_fp61", "mean('arm=fp32 / test_loss')"), "gpt_fp61.jsonl: no such file"),
        (Claim("gpt_fp16", "mean('arm=unscaled / test_loss') > 3"), "no longer true of .*gpt_fp16.jsonl"),
    ],
)
def test_a_path_that_does_not_exist_is_refused_by_name(number: Number | Claim, said: str) -> None:
    with pytest.raises(Refused, match=said):
        ledger.collect(just(number))


def test_the_tables_numbers_are_in_the_ledger_too() -> None:
    table = Table(("a", "b"), (("x", Number("gpt_fp16", "count('arm')", "d")),), "lr")
    book = ledger.collect(Declared({}, {}, {"it": table}, ()))
    assert book["tables"]["it"]["rows"] == [[{"text": "x"}, {"number": "it[0,1]"}]]
    assert book["numbers"]["it[0,1]"]["text"] == "39"


def test_every_claim_can_fail() -> None:
    for name, claim in numbers.CLAIMS.items():
        assert re.search(r"[<>=]", re.sub(r"'[^']*'", "", claim.path)), name


# --------------------------------------------------------------------------------------- theorems and their tests

TEXT = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "paper" / "text").glob("*.typ")))
THEOREMS = [f"T{i}" for i in range(1, 11)]


@pytest.fixture(scope="module")
def uses(built: dict[str, bytes], whole: Path):
    return build.used(whole)


def test_each_theorem_has_assumptions_equations_proof_code_and_tests(uses) -> None:
    assert sorted(use["name"] for use in uses["theorems"]) == sorted(THEOREMS)
    assert sorted(use["name"] for use in uses["proofs"]) == sorted(THEOREMS)
    for theorem in uses["theorems"]:
        assert theorem["assumes"]
        assert theorem["code"]
        assert theorem["tests"]
        assert f'#eq("{theorem["name"]}.1")' in TEXT


def test_theorems_and_tests_name_each_other(uses) -> None:
    assert list(lint.references(uses)) == []
    unproved = {**uses, "proofs": uses["proofs"][1:]}
    assert list(lint.references(unproved)) == [f"theorem {uses['proofs'][0]['name']} has no proof"]


def test_the_code_of_each_theorem_is_in_the_library_and_says_so(uses) -> None:
    for theorem in uses["theorems"]:
        assert set(theorem["code"]) <= set(theory.__all__)
        said = [getattr(theory, name).__doc__ for name in theorem["code"]]
        assert any(re.match(rf"{theorem['name']}\b", text) for text in said), theorem["name"]
    listed = {name for theorem in uses["theorems"] for name in theorem["code"]}
    functions = {name for name in theory.__all__ if name.islower()}
    assert {name for name in functions if re.match(r"T\d", getattr(theory, name).__doc__)} <= listed


def test_a_theorem_that_loses_a_test_is_refused(checkout: Path) -> None:
    edit(checkout / "paper" / "text" / "04_theory.typ", '"test_t4_counts_what_the_machine_does"', '"test_t4_gone"')
    said = refusal(checkout)
    assert "theorem T4: no such test in tests/core/test_theory.py: test_t4_gone" in said
    assert "test_t4_counts_what_the_machine_does holds T4, which does not name it" in said


def test_a_test_that_the_text_names_and_is_gone_is_refused(checkout: Path) -> None:
    edit(checkout / "tests" / "torch" / "test_lockstep.py", "def test_torch_never_leaves_scale_zero", "def test_other")
    assert "no such test: tests/torch/test_lockstep.py::test_torch_never_leaves_scale_zero" in refusal(checkout)


# ----------------------------------------------------------------------------------------------------- the page


def test_the_paper_is_of_a_readers_length_and_no_text_is_smaller_than_6_points(built: dict[str, bytes]) -> None:
    assert 10 <= build.pages(built["paper/ampsim.pdf"]) <= 18
    sizes = [float(x) for x in re.findall(r"size: ([\d.]+)pt", (ROOT / "paper" / "lib.typ").read_text() + TEXT)]
    smallest_raw = float(
        re.search(r"show raw: set text\([^)]*size: ([\d.]+)em", (ROOT / "paper" / "paper.typ").read_text())[1]
    )
    assert min(sizes) * smallest_raw >= 5.9


def test_nothing_but_what_was_read_is_cited() -> None:
    entries = re.split(r"\n@", (ROOT / "paper" / "refs.bib").read_text(encoding="utf-8"))[1:]
    for entry in entries:
        key = re.match(r"\w+\{(\w+)", entry)[1]
        assert re.search(r"note = \{.*\b([Rr]ead|[Ss]econd-hand)\b", entry), key
        assert f"@{key}" in TEXT, f"{key} is not cited"


def test_wrong_use_from_the_shell_says_what_was_expected() -> None:
    done = subprocess.run([sys.executable, "-m", "paper", "--chek"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "'--chek': expected --check, --draft or nothing" in done.stderr


def test_formats() -> None:
    from paper.printed import show

    assert show(1234567, ",d") == ("1,234,567", "1,234,567")
    assert show(-0.5, ".1f")[0] == "−0.5"
    assert show(0.12345, "%1") == ("12.3 %", "12.3~%")
    assert show(2.0**-128, "2^") == ("2⁻¹²⁸", "$2^(-128)$")
    assert show(-1.85e-4, "e2") == ("−1.85·10⁻⁴", "$-1.85 dot 10^(-4)$")
    assert show(0, "words")[0] == "no"
    assert show(math.inf, ".1f")[0] == "inf"
    with pytest.raises(ValueError, match="expected a whole number"):
        show(2.5, "d")
