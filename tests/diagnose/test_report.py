"""The page of a run: what it says without a browser, and what a browser makes of it."""

import functools
import json
import math
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from ampsim.cli import app
from ampsim.diagnose import report as pages
from ampsim.diagnose.explain import Explanation
from ampsim.diagnose.exponents import Exponents, exponents
from ampsim.diagnose.history import HistoryBuilder, Sample
from ampsim.diagnose.page.page import packed
from ampsim.diagnose.readers.sniff import read_history
from ampsim.diagnose.report import FINDINGS, _diagnosis, _layers, _ledger, report, skip_rows
from ampsim.diagnose.statements import make
from ampsim.run_file import RunFile, pack_counts
from tests.diagnose.browser import needs_chromium

HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--<script>", "a\ud800b"]
LAYERS = ["embed.weight", "blocks.0.weight", "blocks.0.bias", *HOSTILE]


def counts_of(values):
    counts = np.zeros(280, np.int64)
    np.add.at(counts, np.frexp(values)[1] - 1 + 150, 1)
    return counts


def history(steps=400, skips=(), source="run.jsonl", program="ampsim.watch", samples=True, scale=65536.0):
    """Return a run with a loss, a norm and samples, whose scale halves after each of `skips`."""
    builder, rng = HistoryBuilder(source, program, settings={"device": "</td><script>alert(1)</script>"}), np.random
    rng = rng.default_rng(0)
    for step in range(steps):
        bad = step in skips
        norm = np.inf if bad else float(rng.lognormal())
        builder.add(step, scale=scale, skipped=float(bad), norm=norm, loss=2 + float(rng.random()))
        if bad:
            builder.bad[step] = dict.fromkeys(LAYERS, "has inf")
            scale /= 2
        if samples and step % 20 == 0:
            builder.samples.append(Sample(step, {name: counts_of(np.exp2(rng.normal(-20, 3, 99))) for name in LAYERS}))
    return builder.finish()


HEALTHY, COLLAPSED = history(skips=(100, 200)), history(skips=range(300, 400))


def text(page):
    return re.sub(r"<[^>]*>", " ", re.sub(r"(?s)<(script|style).*?</\1>", "", page))


def test_a_healthy_run_is_said_to_be_healthy():
    assert "Healthy, as far as these lines tell" in text(report(HEALTHY))
    assert "Skipped: 2 steps, as follows from steps 0 to 399." in text(report(HEALTHY))


def test_a_finding_comes_with_its_step_and_what_to_try():
    page = report(COLLAPSED)
    assert "Healthy" not in text(page)
    assert '<article class="finding"><h2>Collapse, <button class="go" data-step="300">' in page


def test_findings_unfold_only_where_there_are_more_than_are_open():
    alarms = [make(HEALTHY, "alarm", 0, text=f"{number}") for number in range(FINDINGS + 1)]
    pages = ["".join(_diagnosis(Explanation("wrong", "", alarms[:count], []))) for count in (FINDINGS, FINDINGS + 1)]
    assert ["more finding" in page for page in pages] == [False, True]
    assert "<summary>1 more finding</summary>" in pages[1]


def test_of_a_skips_parameters_some_are_named_and_all_are_counted():
    names, told = (_ledger(history(steps=3, skips=(1,)))[key] for key in ("names", "bad"))
    assert told == {1: [[[number, "has inf"] for number in range(6)], 7]}
    assert names == LAYERS[:6]


def test_a_table_of_layers_has_those_that_lose_most(monkeypatch):
    monkeypatch.setattr(pages, "LAYERS", 2)
    lost = np.array([[0.0], [0.5], [0.25]])
    table = _layers(Exponents([0], ["none", "half", "quarter"], 0, np.zeros((3, 1, 1), np.uint8), lost))
    assert re.findall("<tr><td>([a-z]+)<", table) == ["half", "quarter"]


def test_a_range_of_skips_begins_behind_the_line_before():
    builder = HistoryBuilder("-", "Megatron")
    for step, skipped in ((10, 0.0), (20, 3.0), (22, 1.0)):
        builder.add(step, skipped=skipped, scale=8.0)
    assert skip_rows(builder.finish()) == [(11.0, 20.0, 3, None), (21.0, 22.0, 1, None)]


def test_of_many_findings_the_first_are_open():
    builder = HistoryBuilder("-", "test", alarms=[(step, "no parameter has moved") for step in range(0, 3000, 3)])
    builder.add(0)
    builder.add(3000)
    page = report(builder.finish())
    assert "994 more findings" in text(page)
    assert page.index("<details>") > [found.start() for found in re.finditer('class="finding"', page)][5]


def called(name):
    """Return a run in which everything that has a name has this one."""
    builder = HistoryBuilder(f"runs/{name}", name, {name: name}, [name], alarms=[(1, name)])
    for step, scale in enumerate([2.0, 1.0, 1.0]):
        builder.add(step, scale=scale, skipped=float(step == 0), norm=1.0, loss=1.0)
        builder.bad[0] = {name: "has inf"}
        builder.samples.append(Sample(step, {f"{name}.weight": counts_of(np.exp2(np.arange(-50.0, 0.0)))}))
    return builder.finish()


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_markup(name):
    def tags(page):
        return re.findall(r"<[a-z!/][^>]*", re.sub(r'(?s)(<script type="application/json").*?</script>', r"\1", page))

    page = report(called(name))
    assert tags(page) == tags(report(called("x")))
    page.encode()


def test_a_page_is_small_beside_its_data():
    page = report(COLLAPSED)
    data = re.search(r'(?s)id="data">(.*?)</script>', page)[1]
    json.loads(data)
    assert len(page) - len(data) < 200_000


def test_what_is_drawn_of_a_run_that_went_back_is_how_it_went_on():
    builder = HistoryBuilder("-", "test")
    for row, step in enumerate([0, 1, 2, 1, 2]):
        builder.add(step, scale=float(row), norm=float(row), loss=float(row), skipped=float(row % 2))
    data = json.loads(re.search(r'(?s)id="data">(.*?)</script>', report(builder.finish()))[1])
    assert data["step"] == packed(np.array([0.0, 1, 2]), "float64")
    assert [data[name] for name in ("scale", "norm", "loss")] == [packed(np.array([0.0, 3, 4]))] * 3
    assert data["skipped"] == packed(np.array([0.0, 1, 0]))


@pytest.mark.parametrize("scale", [0.0, 2.0**-5, 1.0, 65536.0])
def test_the_share_lost_is_that_of_a_cast_to_float16(scale):
    rng = np.random.default_rng(0)
    values = np.exp2(rng.integers(-60, 10, 5000).astype(np.float64)) * rng.uniform(1.01, 1.99, 5000)
    builder = HistoryBuilder("-", "test", samples=[Sample(0, {"a.0.w": counts_of(values), "b": counts_of(np.ones(7))})])
    for step, its in enumerate([scale, 2.0**40]):
        builder.add(step, scale=its)
    found = exponents(builder.finish())
    assert found.layers == ["all parameters", "a.0", "b"]
    with np.errstate(over="ignore"):
        expected = np.mean(np.float16(values * scale) == 0)
    np.testing.assert_allclose(found.lost[1, 0], expected)


def test_levels_are_darker_where_more_elements_lie_and_nothing_is_lost_without_a_scale():
    counts = counts_of(np.array([1.0] * 50 + [2.0**-9] * 5 + [2.0**-20]))
    builder = HistoryBuilder("-", "test", samples=[Sample(5, {"w": counts}), Sample(9, {})])
    builder.add(5)
    builder.add(9)
    found = exponents(builder.finish())
    assert found.lowest == -20
    assert found.levels.shape == (2, 2, 21)
    few, some, many = found.levels[0, 0, [0, 11, 20]].tolist()
    assert few == round(1 + 254 * (1 - math.log10(56) / 6)) < some < many <= 255  # a millionth is the faintest
    assert not found.levels[0, 1].any()
    assert np.isnan(found.lost).all()


def test_many_layers_leave_out_samples():
    names = {f"layer{i}.w": counts_of(np.exp2(np.arange(-60, 60))) for i in range(500)}
    builder = HistoryBuilder("-", "test", samples=[Sample(step, names) for step in range(300)])
    builder.add(0, scale=1.0)
    found = exponents(builder.finish())
    assert found.step[:3] == [0, 8, 16]
    assert found.levels.size <= 1 << 22


BAD = {
    "one record": history(1),
    "one record that was skipped": history(1, skips=(0,)),
    "no scale": history(50, scale=float("nan"), samples=False),
    "no scale, with samples": history(50, scale=float("nan")),
    "scale 0": history(50, scale=0.0),
    "scale inf": history(50, scale=float("inf"), samples=False),
}


@pytest.mark.parametrize("name", BAD)
def test_a_poor_run_has_a_page(name):
    assert "What the loss scale did" in text(report(BAD[name]))


# ---- the command


def run(*arguments):
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def recorded(tmp_path):
    """Return a run's file that a kill has torn."""
    path = tmp_path / "run.jsonl"
    with RunFile(path, {"device": "cpu"}) as file:
        for step in range(40):
            record = {"step": step, "scale": 1024.0, "skipped": step == 7, "norm": 1.0}
            file.append(
                record | ({"by_parameter": {"w": pack_counts(counts_of(np.ones(4)))}} if step % 10 == 0 else {})
            )
    with path.open("a") as file:
        file.write('{"step": 40, "sca')
    return path


def test_report_writes_beside_the_run_or_where_it_is_told(recorded, tmp_path):
    assert run("report", recorded) == (0, f"wrote {tmp_path / 'run.html'}\n")
    page = (tmp_path / "run.html").read_text()
    assert run("report", recorded, "-o", tmp_path / "other.html")[0] == 0
    assert (tmp_path / "other.html").read_text() == page
    assert "Skipped: 1 step, as follows from steps 0 to 39." in text(page)


def test_explain_writes_the_same_page(recorded, tmp_path):
    code, said = run("explain", recorded, "--html", tmp_path / "explained.html")
    assert code == 0
    assert "Healthy" in said
    assert (tmp_path / "explained.html").read_text() == report(read_history(recorded))


def test_what_cannot_be_read_or_written_is_a_sentence(recorded, tmp_path):
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 9)
    assert run("report", tmp_path / "none.jsonl")[0] == 2
    code, said = run("report", tmp_path / "noise.bin")
    assert code == 2
    assert "no loss scale, gradient norm or loss of a training was read" in said
    before = recorded.read_bytes()
    (tmp_path / "link.html").symlink_to(recorded)
    for page in (recorded, tmp_path / "link.html"):
        code, said = run("report", recorded, "-o", page)
        assert code == 2
        assert "expected another name for the page" in said
        assert recorded.read_bytes() == before
    code, said = run("report", recorded, "-o", tmp_path / "no" / "page.html")
    assert code == 2
    assert "expected a place where a page can be written" in said


# ---- in a browser


@pytest.fixture
def shown(tab, tmp_path):
    """Return a function that opens the page of a history."""

    def show(run, width=1000, **look):
        path = tmp_path / "page.html"
        path.write_text(report(run), encoding="utf-8")
        tab.look(width, 800, **look)
        tab.open(path)
        return tab

    return show


def visible_steps(browser, chart="scale"):
    label = browser.value(f'document.getElementById("{chart}").getAttribute("aria-label")')
    return tuple(int(number.replace(",", "")) for number in re.search(r"steps ([\d,]+) to ([\d,]+)", label).groups())


def place(browser, chart="scale"):
    """Return where a chart's plot lies: left, top, width."""
    box = f'document.querySelector("#{chart} .u-over").getBoundingClientRect()'
    return browser.value(f"(({{x, y, width}}) => [x, y, width])({box})")


def readout(browser):
    return browser.value('document.getElementById("readout").textContent')


@functools.cache
def long():
    return history(100_000, skips=range(1000, 100_000, 1000), samples=False, scale=2.0**100)


@needs_chromium
@pytest.mark.parametrize("name", ["healthy", "collapsed", "long", *BAD, "".join(HOSTILE)])
def test_a_page_opens_without_a_complaint_or_a_request(name, shown):
    run = long() if name == "long" else {"healthy": HEALTHY, "collapsed": COLLAPSED, **BAD}.get(name) or called(name)
    browser = shown(run)
    assert browser.complaints() == []
    assert readout(browser).startswith("Step ")


@needs_chromium
def test_a_planted_request_and_a_planted_error_are_seen(tab, tmp_path):
    path = tmp_path / "page.html"
    path.write_text('<img src="http://127.0.0.1:9/x.png"><script>throw Error("planted")</script>')
    tab.open(path)
    seen = json.dumps(tab.complaints())
    assert "planted" in seen
    assert "127.0.0.1" in seen


@needs_chromium
def test_a_drag_zooms_all_charts_and_a_double_click_shows_all(shown):
    browser = shown(HEALTHY)
    x, y, width = place(browser)
    places = [x + width * share for share in (0.25, 0.3, 0.5)]
    browser.mouse(("mouseMoved", places[0], y + 50), ("mousePressed", places[0], y + 50))
    browser.mouse(("mouseMoved", places[1], y + 60), ("mouseMoved", places[2], y + 60))
    browser.mouse(("mouseReleased", places[2], y + 60))
    low, high = visible_steps(browser)
    assert abs(low - 100) <= 2
    assert abs(high - 200) <= 2
    assert {visible_steps(browser, chart) for chart in ("heat", "norm", "loss")} == {(low, high)}
    browser.value('document.querySelector("#norm .u-over").dispatchEvent(new MouseEvent("dblclick", {bubbles: true}))')
    browser.settle()
    assert visible_steps(browser) == visible_steps(browser, "loss") == (0, 399)
    assert browser.complaints() == []


@needs_chromium
def test_the_step_under_the_mouse_is_told(shown):
    browser = shown(HEALTHY)
    x, y, width = place(browser)
    browser.mouse(("mouseMoved", x + width * 100 / 399, y + 50))
    assert readout(browser) == "Step 100 · scale 65,536 (2¹⁶) · skipped · norm inf or NaN · loss 2.043"


@needs_chromium
def test_every_chart_is_worked_by_keyboard(shown):
    browser = shown(HEALTHY)
    browser.value('document.getElementById("scale").focus()')
    browser.press("Home")
    assert readout(browser).startswith("Step 0 ")
    browser.press("ArrowRight", "ArrowRight", "Shift+ArrowLeft")
    assert readout(browser).startswith("Step 7 ")  # a hundredth of 400 each, then one
    browser.press("n")
    assert "Step 100 ·" in readout(browser)
    assert "skipped" in readout(browser)
    browser.press("n", "n")
    assert "Step 200 ·" in readout(browser)
    browser.press("p", "+", "+")
    assert "Step 100 ·" in readout(browser)
    low, high = visible_steps(browser, "loss")
    assert high - low in {99, 100, 101}
    assert low < 100 < high
    browser.press("-")
    low, high = visible_steps(browser)
    assert high - low in {198, 199, 200, 201}
    browser.press("0")
    assert visible_steps(browser) == (0, 399)
    browser.press("Tab", "ArrowDown")
    assert browser.value("document.activeElement.id") == "layer"
    browser.press("Tab", "ArrowDown")
    assert browser.value("document.activeElement.id") == "heat"
    assert browser.value('document.getElementById("layer").selectedIndex') in {1, 2}
    assert browser.complaints() == []


@needs_chromium
def test_a_step_that_is_named_can_be_gone_to(shown):
    browser = shown(COLLAPSED)
    browser.value('document.querySelector("#diagnosis [data-step]").click()')
    browser.settle()
    low, high = visible_steps(browser)
    assert (low, high) == (250, 350)
    browser.value('document.querySelectorAll("#ledger button")[3].click()')
    assert readout(browser).startswith("Step 303 ")


@needs_chromium
def test_the_ledger_is_a_table_of_text(shown):
    browser = shown(COLLAPSED)
    first = browser.value(
        '[...document.querySelectorAll("#ledger tbody tr:first-child td")].map(cell => cell.textContent)'
    )
    assert first[:3] == ["300", "1", "65,536 (2¹⁶)"]
    assert first[3].startswith(
        "inf: embed.weight, blocks.0.weight, blocks.0.bias, </script><script>alert(1)</script>, "
    )
    assert first[3].endswith("; 1 more")
    assert browser.value('document.querySelectorAll("#ledger tbody tr").length') == 25
    for _ in range(3):
        browser.value('document.getElementById("more").click()')
    assert browser.value('document.querySelectorAll("#ledger tbody tr").length') == 100
    assert browser.value('document.getElementById("more").hidden')


@needs_chromium
def test_skips_that_a_log_leaves_out_are_not_made_up(shown):
    builder = HistoryBuilder("train.log", "Megatron")
    for step, scale in [(29040, 65536.0), (29050, 8192.0), (29060, 4096.0), (29070, 4096.0)]:
        builder.add(step, scale=scale, loss=2.0)
    browser = shown(builder.finish())
    rows = browser.value('[...document.querySelectorAll("#ledger tbody tr")].map(row => row.innerText.split("\\t"))')
    assert rows == []
    assert "at least 4 steps" in browser.value('document.getElementById("diagnosis").textContent')


def pixels(browser, chart):
    """Return how many pixels of a chart's canvas have which colour."""
    return browser.value(f"""(() => {{
        const canvas = document.querySelector("#{chart} canvas"), seen = {{}};
        const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < all.length; i += 4) {{
            const [r, g, b] = all.slice(i, i + 3);
            const name = r > b + 60 ? "vermilion" : b > r + 60 ? "blue" : "other";
            seen[name] = (seen[name] ?? 0) + (all[i + 3] > 60);
        }}
        return seen;
    }})()""")


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_the_window_parts_what_is_kept_from_what_is_lost(shown, dark):
    kept = pixels(shown(history(samples=True), dark=dark), "heat")
    lost = pixels(shown(history(samples=True, scale=0.0), dark=dark), "heat")
    assert kept["blue"] > 50_000
    assert kept.get("vermilion", 0) < kept["blue"] / 100
    assert lost["vermilion"] > 50_000
    assert lost.get("blue", 0) < lost["vermilion"] / 100


@needs_chromium
@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_scrolls_one_way_only(shown, width):
    browser = shown(COLLAPSED, width, phone=True)
    assert browser.value("document.documentElement.scrollWidth") == width
    assert browser.complaints() == []


@needs_chromium
def test_one_finger_moves_the_step_and_two_zoom(shown):
    browser = shown(HEALTHY, 390, phone=True)
    browser.value('document.getElementById("scale").scrollIntoView({block: "center"})')
    x, y, width = place(browser)
    y += 60
    browser.touch(("touchStart", [(x + 50, y)]), ("touchMove", [(x + 60, y)]), ("touchMove", [(x + width / 2, y)]))
    browser.touch(("touchEnd", []))
    assert readout(browser).startswith(("Step 199 ", "Step 200 "))
    assert visible_steps(browser) == (0, 399)
    fingers = [[(x + width / 2 - apart, y), (x + width / 2 + apart, y)] for apart in (30, 40, 60)]
    browser.touch(("touchStart", fingers[0]), ("touchMove", fingers[1]), ("touchMove", fingers[2]), ("touchEnd", []))
    low, high = visible_steps(browser)
    assert 190 <= high - low <= 210
    assert low < 200 < high
    assert browser.complaints() == []


@needs_chromium
def test_a_page_prints_dark_on_light_and_fits(shown):
    browser = shown(COLLAPSED, dark=True, media="print")
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.value('css("ink")') == "#1c1f23"
    assert browser.value('getComputedStyle(document.getElementById("bar")).display') == "none"
    assert len(browser.call("Page.printToPDF")["data"]) > 10_000
    assert browser.complaints() == []
