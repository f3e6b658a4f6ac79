"""The page of a run has the run's data, says its verdict, and takes nothing of a log for markup."""

import base64
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ampsim.cli import app
from ampsim.runs import explain
from ampsim.runs.read.history import History, Sample, Series
from ampsim.runs.record.run_file import RunFile, pack_counts
from ampsim.runs.report.exponent_heatmap import exponent_heatmap, packed
from ampsim.runs.report.page import assemble
from ampsim.runs.report.report import MOST_POINTS
from ampsim.runs.report.report import report as page_of
from ampsim.runs.report.scale_chart import scale_chart
from tests.examples import examples

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\ud800",
    "\u2028",
    "&lt;",
    "]]>",
]
HOSTILE += ["\0", '"\\', "<img src=x onerror=alert(1)>"]


class Page(HTMLParser):
    """Collects the tags of a page, its text, and its data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.json, self._inside = "", "", ""
        self.feed(page)
        self.data = json.loads(self.json or "null")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = "data" if ("id", "data") in attrs else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.json += data
        elif self._inside not in ("script", "style"):
            self.text += data


def counts_of(values: np.ndarray) -> np.ndarray:
    counts = np.zeros(280, np.int64)
    np.add.at(counts, np.frexp(values)[1] - 1 + 150, 1)
    return counts


def history(
    steps: int, skips: Any = (), scale: float = 65536.0, name: str = ""
) -> History:
    """Return a recorded run whose scale halves after each skip; all of its names are this one."""
    run = History(f"runs/{name}", steps + 1, recorded=True)
    if name:
        run.settings, run.notes, run.warnings = {name: name}, [name], [(0, name)]
    columns = {
        "loss_scale": "scale",
        "skipped": "skips",
        "grad_norm": "norm",
        "loss": "loss",
    }
    series = [Series(column, role) for column, role in columns.items()]
    for step in range(steps):
        skipped = step in skips
        values = (
            scale,
            float(skipped),
            math.inf if skipped else 1.0 + step / 1000,
            3.0 - step / steps,
        )
        for each, value in zip(series, values, strict=True):
            each.add(step + 2, step, value)
        if skipped:
            run.nonfinite[step] = {name: "has inf"}
            scale /= 2
        if step % 20 == 0:
            counts = counts_of(np.exp2(np.arange(-50.0, 0.0)))
            run.samples.append(Sample(step, {f"{name}.w": counts}))
    run.series = series
    return run


def report(run: History) -> str:
    return page_of(explain(run))


@given(st.text())
@example(HOSTILE[0])
@example(HOSTILE[1])
@example(HOSTILE[2])
@example("</script/><img src=x>")
def test_embedded_data_contains_no_markup(text: str) -> None:
    page = Page(assemble("t", [], {text: [text]}, ""))
    assert page.data == {text: [text]}
    assert not set("<>&") & set(page.json)
    assert page.tags == Page(assemble("t", [], {}, "")).tags


@settings(max_examples=examples(ms=20))
@given(st.text(min_size=1))
@example(HOSTILE[0])
@example(HOSTILE[1])
@example(HOSTILE[2])
@example(HOSTILE[-1])
@example("`0`")
def test_no_name_becomes_markup(name: str) -> None:
    page = report(history(3, [0], name=name))
    plain = report(history(3, [0], name="x"))
    assert [tag for tag, _ in Page(page).tags] == [tag for tag, _ in Page(plain).tags]
    page.encode()


def test_pages_load_nothing() -> None:
    text = report(history(400, range(300, 400)))
    page = Page(text)
    for tag, attributes in page.tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "data:").startswith(("data:", "#"))
    assert "default-src 'none'" in text
    assert len(text) - len(page.json) < 200_000


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nonfinite_page_data_raises(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        assemble("t", [], [value], "")


@pytest.mark.parametrize("script", ["'</SCRIPT>'", "<!-- x"])
def test_scripts_with_html_markup_raise(script: str) -> None:
    with pytest.raises(ValueError, match="expected neither"):
        assemble("t", [script], {}, "")


def test_pages_have_verdict_and_step() -> None:
    well, sick = (
        Page(report(history(400, [100, 200]))),
        Page(report(history(400, range(300, 400)))),
    )
    assert "No problem found" in well.text
    assert "Skipped steps: 2" in well.text
    assert "No problem found" not in sick.text
    assert (
        "button",
        {"class": "go", "data-line": "302", "data-step": "300"},
    ) in sick.tags


def test_page_draws_all_series() -> None:
    run = history(400, [100])
    data = Page(report(run)).data
    for series, drawn in zip(run.series, data["series"], strict=True):
        numbers = [math.inf if value == "inf" else value for value in drawn["value"]]
        assert (drawn["step"], numbers) == (
            series.steps.tolist(),
            series.values.tolist(),
        )
    assert [skip["last"] for skip in data["skips"]] == [100]


def test_thinned_series_keep_extremes() -> None:
    run = history(60_000)
    run.series[0].values[31_234] = 2.0**30
    run.series[0].values[41_234] = 2.0**-30
    [drawn] = [
        each for each in Page(report(run)).data["series"] if each["role"] == "scale"
    ]
    assert len(drawn["value"]) <= MOST_POINTS
    assert {2.0**30, 2.0**-30} <= set(drawn["value"])


def test_scale_chart_is_a_picture() -> None:
    pytest.importorskip("matplotlib")
    explanation = explain(history(40, [9]))
    assert scale_chart(explanation, "png").startswith(b"\x89PNG")
    assert scale_chart(explanation, "svg") == scale_chart(explanation, "svg")
    with pytest.raises(ValueError, match="no loss scale"):
        scale_chart(explain(["step 1 loss 2", "step 2 loss 1"]), "svg")


def unpacked(data: dict[str, str]) -> np.ndarray:
    [(kind, text)] = data.items()
    return np.frombuffer(base64.b64decode(text), kind)


def test_packed_arrays_round_trip() -> None:
    values = np.array([0.1, np.inf, np.nan, 65536.0, 1e300])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(
            unpacked(packed(values)), values.astype(np.float32)
        )


def test_counted_skips_have_a_range() -> None:
    lines = [
        f"step {step} loss 2 number of skipped iterations: {n}"
        for step, n in [(10, 2), (20, 3), (22, 1)]
    ]
    skips = [(first, last, count) for first, last, count, *_ in explain(lines).skips]
    assert skips[1:] == [(11.0, 20.0, 3), (21.0, 22.0, 1)]


@pytest.mark.parametrize("scale", [0.0, 2.0**-5, 1.0, 65536.0])
def test_underflow_share_matches_float16(scale: float) -> None:
    random = np.random.default_rng(0)
    binades = np.exp2(random.integers(-60, 10, 5000).astype(float))
    values = binades * random.uniform(1.01, 1.99, 5000)
    printed = Series("loss_scale", "scale")
    printed.add(1, 0, scale)
    run = History("-", samples=[Sample(0, {"a.0.w": counts_of(values)})])
    found: Any = exponent_heatmap(run, printed)
    with np.errstate(over="ignore"):
        expected = np.mean(np.float16(values * scale) == 0)
    assert found["layers"] == ["all parameters", "a.0"]
    np.testing.assert_allclose(unpacked(found["lost"]), [expected] * 2, rtol=1e-6)


def test_many_layers_leave_out_samples() -> None:
    names = {f"layer{i}.w": counts_of(np.exp2(np.arange(-60, 60))) for i in range(500)}
    samples = [Sample(step, names) for step in range(300)]
    found: Any = exponent_heatmap(History("-", samples=samples), None)
    assert 0 < unpacked(found["levels"]).size <= 1 << 22


@pytest.mark.parametrize("scale", [65536.0, 0.0, math.nan, math.inf])
@pytest.mark.parametrize("skips", [(), (0,)])
def test_one_step_run_has_a_page(scale: float, skips: tuple[int, ...]) -> None:
    assert Page(report(history(1, skips, scale))).data["series"][0]["step"] == [0.0]


# ---- the command


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a run's file that a kill has torn."""
    path = tmp_path / "run.jsonl"
    with RunFile(path, {"device": "cpu"}) as file:
        for step in range(40):
            record: dict[str, Any] = {
                "step": step,
                "loss_scale": 1024.0,
                "skipped": step == 7,
                "grad_norm": 1.0 + step / 100,
            }
            if step % 10 == 0:
                record["exponent_histograms"] = {
                    "w": pack_counts(counts_of(np.ones(4)))
                }
            file.append(record)
    with path.open("a") as file:
        file.write('{"step": 40, "sca')
    return path


def test_command_writes_page_of_explanation(recorded: Path, tmp_path: Path) -> None:
    assert run("report", recorded)[0] == 0
    page = (tmp_path / "run.html").read_text()
    assert "Skipped steps: 1" in Page(page).text
    assert run("report", recorded, "-o", tmp_path / "other.html")[0] == 0
    assert (tmp_path / "other.html").read_text() == page
    assert page == page_of(explain(recorded))


def test_suffix_decides_the_format(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run("report", recorded, "-o", tmp_path / "x.png")[0] == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert run("report", recorded, "-o", tmp_path / "y.svg")[0] == 0
    assert "<svg" in (tmp_path / "y.svg").read_text()
    code, said = run("report", recorded, "-o", tmp_path / "x.pdf")
    assert (code, "expected a name that ends in" in said) == (2, True)
    assert not (tmp_path / "x.pdf").exists()


def test_a_page_never_replaces_its_run(recorded: Path, tmp_path: Path) -> None:
    before = recorded.read_bytes()
    (tmp_path / "link.html").symlink_to(recorded)
    for page in (recorded, tmp_path / "link.html"):
        assert run("report", recorded, "-o", page)[0] == 2
        assert recorded.read_bytes() == before


def test_unreadable_and_unwritable_files_exit_2(recorded: Path, tmp_path: Path) -> None:
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 9)
    nowhere = tmp_path / "no" / "page.html"
    for arguments in (
        [tmp_path / "none.jsonl"],
        [tmp_path / "noise.bin"],
        [recorded, "-o", nowhere],
    ):
        code, said = run("report", *arguments)
        assert code == 2
        assert re.match("ampsim: ", said)
        assert Path(arguments[-1]).name in said.replace("\n", "")


@pytest.mark.parametrize("character", ["\u202e", "\u200b", "\u2028", "\x1b"])
def test_page_and_text_escape_invisible_characters(
    tmp_path: Path, character: str
) -> None:
    # A bidirectional character could reverse the sentence that names the problem.
    path, name = tmp_path / "run.jsonl", f"fc{character}.weight"
    with RunFile(path, {"argv": [name]}) as file:
        for step in range(40):
            record = {"step": step, "loss_scale": 2.0 ** (16 - step), "skipped": True}
            file.append(
                record | {"nonfinite": {name: "has nan"}, "warning": f"at {name}"}
            )
    for arguments in (
        ["explain", "--why", path],
        ["explain", "--json", path],
        ["report", path],
    ):
        shown = CliRunner().invoke(app, [*map(str, arguments)]).output
        assert character not in shown
    assert character not in path.with_suffix(".html").read_text("utf-8")
