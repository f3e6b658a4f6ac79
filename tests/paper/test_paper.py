"""The paper: numbers match their files, problems raise, and equal data gives equal bytes."""

import dataclasses
import importlib
import json
import math
import re
import statistics
from fractions import Fraction
from pathlib import Path

import pytest
import typst

from ampsim.runs.record import data_file
from figures import claims
from figures.claims import Finding
from figures.derived_numbers import INTERVALS, t3_level, t3_rate
from figures.results import CPU
from paper import build, sources
from paper.build import Evaluation
from paper.number_format import show
from paper.numbers import NUMBERS
from paper.sources import ROOT, TEXT, PaperError
from paper.tables import TABLES
from paper.values import Number


def test_committed_paper_matches_data() -> None:
    assert build.build() == build.PDF.read_bytes(), "run `python -m paper`"


def test_missing_and_damaged_files_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "emulated_cuda.jsonl").write_bytes(
        (CPU / "emulated_cuda.jsonl").read_bytes()[:-20]
    )
    monkeypatch.setattr(sources, "FOLDERS", [tmp_path])
    with pytest.raises(PaperError) as caught:
        build.build(draft=True)
    for shown in (
        "emulated_cuda.jsonl",
        "theory_real.jsonl: no such file",
        "claim 'gpt.mean'",
    ):
        assert shown in str(caught.value)


def test_unknown_and_unused_names_are_reported() -> None:
    assert [*build.misnamed()] == []
    text = TEXT.replace('#num("real.rate.both")', '#num("real.rate.bothh")').replace(
        '#holds("gpt.mean")', '#holds("gpt.meant")'
    )
    problems = [
        problem.split(":")[0].split(" is ")[0] for problem in build.misnamed(text)
    ]
    assert problems == [
        "number 'real.rate.bothh'",
        "number 'real.rate.both'",
        "claim 'gpt.meant'",
    ]


def test_typst_error_raises_paper_error() -> None:
    with pytest.raises(
        PaperError, match=r"paper/paper\.typ: dictionary does not contain key"
    ):
        build.compile_text({"numbers": {}, "claims": {}, "tables": {}, "figures": {}})


def test_figure_uses_data_of_its_name() -> None:
    for stem in sources.named("fig"):
        (data,) = importlib.import_module(f"figures.{stem}").DATA
        assert data == stem


def test_no_semicolon_after_typst_expression() -> None:
    assert re.findall(r"#[\w.\-]+(?:\([^()\n]*\)|\[[^\[\]\n]*\])+;", TEXT) == [], (
        r"write \; to print a semicolon"
    )


def renewal(counted, interval):
    """T3's skip rate and mean level by (T3.3), in fractions, up to the first level where all
    overflow.
    """
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
    return float(down / sum(time)), float(
        sum(x * t for x, t in zip(levels, time, strict=True)) / sum(time)
    )


def printed(text):
    """The printed number, and half a unit of its last digit; None for words."""
    text = text.replace("−", "-").replace(",", "").removesuffix("~%")
    if match := re.fullmatch(r"\$2\^\((-?\d+)\)\$", text):
        return 2.0 ** int(match[1]), 0.0
    if match := re.fullmatch(r"\$(.*) dot 10\^\((-?\d+)\)\$", text):
        text = match[1]
    if not re.fullmatch(r"-?\d+(\.\d+)?", text):
        return None
    unit = 10.0 ** int(match[2]) if match else 1.0
    return float(text) * unit, 0.500001 * unit * 10.0 ** -len(text.partition(".")[2])


CELLS = [
    cell
    for table in TABLES.values()
    for row in table().rows
    for cell in row
    if not isinstance(cell, str)
]
WORDS = (
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


def test_printed_numbers_match_values() -> None:
    for number in [*NUMBERS.values(), *CELLS]:
        value = number.compute()
        text = show(value, number.form)
        shown = printed(text)
        if number.form.removeprefix("<=").removeprefix(">=") == "words":
            assert text == WORDS[int(value)], number
        elif shown and not isinstance(value, str):
            factor = 100 if text.endswith("%") else 1
            over = shown[0] - factor * value
            low, high = {"<=": (0, 2), ">=": (-2, 0)}.get(
                number.form[:2], (-1, 1)
            )  # in halves of the last digit
            assert low * shown[1] <= over <= high * shown[1], (text, value)
        else:
            assert isinstance(value, str), (text, value)


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.0273, "<=%0", "3~%"), (0.0141, "<=.2f", "0.02"), (3.02e-16, "<=e0", "$4 dot 10^(-16)$"),
        (-0.31, "<=.1f", "−0.3"), (10.2, "<=.0f", "11"), (0.199, ">=.1f", "0.1"), (31.96, ">=.0f", "31"),
        (1.97e4, ">=e1", "$1.9 dot 10^(4)$"),
    ],
)  # fmt: skip
def test_bounds_are_rounded_outwards(value: float, form: str, text: str) -> None:
    assert show(value, form) == text


def rows(stem: str) -> list[dict]:
    """The records of a file, read without `ampsim.core.json_lines`."""
    lines = (CPU / f"{stem}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_numbers_match_recomputed_values() -> None:
    def of(stem: str, arm: str, column: str) -> list:
        return [row[column] for row in rows(stem) if row["arm"] == arm]

    expected = {
        "gpt.unscaled": statistics.fmean(of("gpt_fp16", "unscaled", "test_loss")),
        "storm.2.min": min(of("overflow_storm", "storm 2", "test_loss")),
        "crash.05.median": statistics.median(
            of("scale_crash", "fp16 lr=0.05", "crash_step")
        ),
    }
    assert {name: NUMBERS[name].compute() for name in expected} == pytest.approx(
        expected, rel=1e-11
    )


@pytest.mark.parametrize("interval", INTERVALS)
def test_t3_of_runs_matches_formula(interval: int) -> None:
    predictions = [
        renewal(row["thresholds"], interval)
        for row in rows("theory_real")
        if row["arm"] == f"G={interval}"
    ]
    run = sources.load("theory_real")
    shown = [
        function(run, interval, f"G={interval}") for function in (t3_rate, t3_level)
    ]
    rate, level = (
        statistics.fmean(column) for column in zip(*predictions, strict=True)
    )
    assert shown == pytest.approx([rate, level], rel=1e-9)


def test_numbers_without_measurements() -> None:
    assert NUMBERS["t1.default.in"].compute() == 2001
    assert NUMBERS["torch.tiny"].compute() == 144
    assert NUMBERS["traces.repeated"].compute() == NUMBERS["traces.count"].compute()


def test_numbers_have_script_and_device() -> None:
    for stem in build.stems() - {"traces"}:
        run = sources.load(stem)
        assert (ROOT / run.provenance["script"]).exists()
        assert run.device


def test_stale_data_file_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provenance, rows = data_file.read(CPU / "scale_crash.jsonl")
    data_file.write(
        tmp_path / "scale_crash.jsonl", {**provenance, "source_sha256": "0" * 64}, rows
    )
    with (
        sources.reading(tmp_path),
        pytest.raises(
            PaperError,
            match=r"scale_crash\.jsonl: stale, its source has changed[^\n]*--force",
        ),
    ):
        build.build()


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (
            Number("gpt_fp16", lambda run: run.arm("fp64").mean("test_loss")),
            "arm 'fp64': expected one of fp32, ",
        ),
        (
            Number("gpt_fp16", lambda run: run.arm("fp32").mean("train_lost")),
            "KeyError: 'train_lost'",
        ),
        (
            Number("gpt_fp16", lambda run: run.arm("fp32").the("test_loss")),
            "expected one value",
        ),
        (Number("gpt_fp16", lambda _: 1 / 0), "ZeroDivisionError"),
        (Number("gpt_fp16", lambda run: run.fp32), "AttributeError"),
        (
            Number("gpt_fp16", lambda run: run.arm("fp32").mean("test_loss"), "words"),
            "expected a whole number below",
        ),
        (
            Number("gpt_fp16", lambda run: run.arm("fp32").mean("test_loss"), "2^"),
            "expected a power of two",
        ),
        (
            Number("gpt_fp16", lambda _: "many"),
            "'many': expected a number for the form '.2f'",
        ),
    ],
)
def test_number_missing_from_file_is_named(number: Number, problem: str) -> None:
    strict, here = Evaluation(), Evaluation(strict=False)
    strict.number("it", number)
    assert re.search(f"number 'it': .*{problem}", *strict.problems)
    assert here.number("it", number) == build.UNKNOWN
    assert here.problems == []


@pytest.mark.parametrize("strict", [True, False])
def test_number_of_missing_file_is_reported(*, strict: bool) -> None:
    evaluation = Evaluation(strict=strict)
    evaluation.number(
        "it", Number("gpt_fp61", lambda run: run.arm("fp32").mean("test_loss"))
    )
    assert re.search(r"gpt_fp61.jsonl: no such file", *evaluation.problems)


def test_evaluation_reads_given_data(tmp_path: Path) -> None:
    number = Number("gpt_fp16", lambda run: run.arm("unscaled").min("test_loss"))
    before = number.compute()
    provenance, rows = data_file.read(CPU / "gpt_fp16.jsonl")
    changed = [
        row | {"test_loss": row["test_loss"] + (row["arm"] == "unscaled")}
        for row in rows
    ]
    data_file.write(tmp_path / "gpt_fp16.jsonl", provenance, changed)
    strict, here = Evaluation(), Evaluation(strict=False)
    with sources.reading(tmp_path):
        assert number.compute() == before + 1
        strict.claim("gpt.mean")
        assert here.claim("gpt.mean")["holds"] is False
    assert number.compute() == before
    problem = (
        r"claim 'gpt.mean': no longer true of gpt_fp16.jsonl: A transformer .* needs"
    )
    assert re.search(problem, *strict.problems)
    assert here.problems == []


def test_partly_failed_claim_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = dataclasses.replace(
        claims.CLAIMS["gpt.mean"], judge=lambda _: Finding("now", True, False)
    )
    monkeypatch.setitem(claims.CLAIMS, "gpt.mean", claim)
    evaluation = Evaluation()
    evaluation.claim("gpt.mean")
    assert re.search(r"claim 'gpt.mean': no longer true .*; now;", *evaluation.problems)


THEORY = "tests/core/test_theory.py"


def functions(file: str) -> set[str]:
    """The names of the functions of a file of tests."""
    return {
        *re.findall(
            r"^def (\w+)", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
    }


def test_tests_named_in_text_exist() -> None:
    inputs = {"content": json.dumps(Evaluation().content()), "notice": ""}
    text = ROOT / "paper" / "paper.typ"
    output = typst.query(
        text,
        "<tested>",
        field="value",
        root=ROOT,
        ignore_system_fonts=True,
        sys_inputs=inputs,
    )
    names = [name for names in json.loads(output) for name in names]
    assert names
    for name in names:
        file, _, function = name.partition("::")
        assert function in functions(file), name


def test_theorems_have_proofs_and_tests() -> None:
    theorems = re.findall(
        r'#theorem\("(T\d+)".*?tests: \(([^()]*)\)\)\[', TEXT, flags=re.DOTALL
    )
    named = {name: {*re.findall(r'"(\w+)"', tests)} for name, tests in theorems}
    assert named.keys() == {*sources.named("proof")}
    present = functions(THEORY)
    assert set().union(*named.values()) <= present
    for name in present:
        match = re.match(r"test_(t\d+)_", name)
        if match and (theorem := match[1].upper()) in named:
            assert name in named[theorem]


def test_page_of_theorems_matches_paper() -> None:
    page = (ROOT / "docs" / "theorems.md").read_text(encoding="utf-8")
    numbers = dict(
        re.findall(r"^\| (T\d+) .*paper, Theorem (\d+) \|$", page, re.MULTILINE)
    )
    in_order = dict.fromkeys(re.findall(r'#theorem\("(T\d+)"', TEXT))
    assert numbers == {name: str(at) for at, name in enumerate(in_order, 1)}
    here = {*re.findall(r"^## (T\d+):", page, re.MULTILINE)}
    assert here | numbers.keys() == {f"T{i}" for i in range(1, 11)}


def test_locked_packages_match_constraints() -> None:
    def pinned(path: Path) -> dict[str, str]:
        return dict(
            re.findall(
                r"^([\w.-]+)==([\w.]+)",
                path.read_text(encoding="utf-8"),
                flags=re.MULTILINE,
            )
        )

    locked, allowed = (
        pinned(ROOT / "paper" / "requirements.txt"),
        pinned(ROOT / "constraints.txt"),
    )
    text = (ROOT / "paper" / "requirements.txt").read_text(encoding="utf-8")
    assert len(
        re.findall(r"--hash=sha256:[0-9a-f]{64}$", text, flags=re.MULTILINE)
    ) == len(locked)
    del locked["setuptools"]  # torch brings it, whatever its version
    assert {name: allowed.get(name) for name in locked} == locked


def test_only_read_references_are_cited() -> None:
    entries = re.split(
        r"\n@", (ROOT / "paper" / "refs.bib").read_text(encoding="utf-8")
    )[1:]
    for entry in entries:
        key = re.match(r"\w+\{(\w+)", entry)[1]
        assert re.search(r"read = \{\w", entry), key
        assert f"@{key}" in TEXT, f"{key} is not cited"


def test_formats() -> None:
    assert show(1234567, ",d") == "1,234,567"
    assert show(-0.5, ".1f") == "−0.5"
    assert show(0.12345, "%1") == "12.3~%"
    assert show(2.0**-128, "2^") == "$2^(-128)$"
    assert show(-1.85e-4, "e2") == "$-1.85 dot 10^(-4)$"
    assert show(0, "words") == "no"
    assert show(math.inf, ".1f") == "inf"
    with pytest.raises(ValueError, match="expected a whole number"):
        show(2.5, "d")
