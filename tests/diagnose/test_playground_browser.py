"""The playground in a browser: no complaint and no request, by mouse, by keyboard, with any log, on any screen."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampsim import dialects
from ampsim.core.replay.ceilings import replay_ceilings
from ampsim.core.replay.fold import first_divergence
from ampsim.diagnose.playground import build
from tests.diagnose.browser import Browser, needs_chromium

pytestmark = needs_chromium
PAGE = Path(__file__).parents[2] / "figures" / "playground.html"
HOSTILE = (
    "<img src=x onerror=alert(1)> step: 1, loss_scale: 65536, loss: 2\nstep: 9, loss_scale: 8192, x: </textarea><b>"
)


@pytest.fixture
def browser(tab: Browser) -> Iterator[Browser]:
    tab.look(1200, 900)
    tab.open(PAGE)
    yield tab
    assert tab.complaints() == []


def text(browser: Browser, selector: str) -> str:
    return str(browser.value(f"document.querySelector({json.dumps(selector)}).textContent"))


def choose(browser: Browser, name: str, value: str) -> None:
    browser.value(f"(e => {{ e.value = {json.dumps(value)}; e.onchange(); }})(document.getElementById('{name}'))")
    browser.settle()


def cursor(browser: Browser) -> float:
    """Return where the chart of the scale has its cursor, from 0 to 1; -1 if it has none."""
    return browser.value("""(() => {
        const line = document.querySelector("#scale .u-cursor-x"), box = document.querySelector("#scale .u-over");
        const style = getComputedStyle(line);
        return style.display === "none" ? -1 : new DOMMatrix(style.transform).e / box.clientWidth;
    })()""")


def colored(browser: Browser, color: str) -> object:
    """Return whether the chart of the scale has a pixel of one of the page's colours."""
    return browser.value(f"""(() => {{
        const hex = getComputedStyle(document.documentElement).getPropertyValue("{color}").trim();
        const wanted = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
        const canvas = document.querySelector("#scale canvas"), drawn = document.createElement("canvas");
        const ctx = drawn.getContext("2d", {{ willReadFrequently: true }});
        Object.assign(drawn, {{ width: canvas.width, height: canvas.height }});
        ctx.drawImage(canvas, 0, 0);
        const all = ctx.getImageData(0, 0, drawn.width, drawn.height).data;
        for (let i = 0; i < all.length; i += 4) if (wanted.every((value, j) => all[i + j] === value)) return true;
        return false;
    }})()""")


def paste(browser: Browser, log: str) -> None:
    browser.value(f"document.getElementById('log').value = {json.dumps(log)}; document.getElementById('read').click()")
    browser.settle()


def test_the_first_sight_is_what_the_reference_computes(browser: Browser) -> None:
    record = next(row for row in build.read(build.DATA)[1] if row["counts"] and row["arm"] == "gpt dynamic")
    ceilings, given = build.ceilings_of(record), {"init": 1.0, "interval": 8}
    a = replay_ceilings(dialects.get("torch.amp.GradScaler", **given), ceilings)
    b = replay_ceilings(dialects.get("megatron.core.DynamicGradScaler", **given), ceilings)
    assert text(browser, "#numbers-a dd").startswith(f"{len(a.skipped)} (")
    assert text(browser, "#numbers-b dd").startswith(f"{len(b.skipped)} (")
    parted = first_divergence(a.scales(), b.scales()) + 1  # the scale after an update is in force at the next step
    assert f"A and B part at step {parted}:" in text(browser, "#difference")
    assert browser.value("document.querySelectorAll('canvas').length") == 3
    browser.value("new Promise(done => setTimeout(() => done(0), 60))")  # behind the table's, which waits as long
    assert browser.value("document.querySelectorAll('#dialects tr').length") == len(dialects.names())
    assert cursor(browser) == -1  # no step is looked at yet
    assert colored(browser, "--orange")
    assert not colored(browser, "--sky")


def test_a_slider_is_dragged_with_the_mouse(browser: Browser) -> None:
    before, drawn = text(browser, "#numbers-a"), browser.value("document.querySelector('canvas').toDataURL()")
    box = "document.getElementById('growth_interval-a').getBoundingClientRect()"
    x, y, width = browser.value(f"(r => [r.x, r.y + r.height / 2, r.width])({box})")
    browser.mouse(("mousePressed", x + width * 0.3, y))
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + 4, y=y, button="left", buttons=1)
    browser.mouse(("mouseReleased", x + 4, y))
    assert text(browser, "#growth_interval-a-says") == "1 step"
    assert text(browser, "#numbers-a") != before
    assert browser.value("document.querySelector('canvas').toDataURL()") != drawn


def test_everything_is_reached_and_moved_by_keyboard(browser: Browser) -> None:
    reached = set()
    for _ in range(40):
        browser.press("Tab")
        reached.add(browser.value("document.activeElement.id"))
    knobs = ("init_scale", "factor", "growth_interval", "hysteresis", "min_scale", "delay")
    assert {"run", "step", "log", "read", "example"} <= reached
    assert {f"{knob}-{side}" for knob in knobs for side in "ab"} <= reached
    browser.value("document.getElementById('hysteresis-a').focus()")
    browser.press("ArrowRight")
    assert text(browser, "#hysteresis-a-says") == "2 overflows"
    assert text(browser, "#numbers-a dd:nth-of-type(1)") == text(browser, "#numbers-b dd:nth-of-type(1)")
    browser.value("document.getElementById('step').focus()")
    browser.press("End")
    assert text(browser, "#readout").startswith("Step 383: A at ")
    assert 0.99 < cursor(browser) < 1


def test_every_dialect_on_every_run(browser: Browser) -> None:
    for run in range(len(build.RUNS)):
        choose(browser, "run", str(run))
        for name in dialects.names():
            choose(browser, "dialect-b", name)
            assert "NaN" not in text(browser, "main")
            assert "undefined" not in text(browser, "main")


def test_a_log_is_played(browser: Browser) -> None:
    browser.value("document.getElementById('example').click()")
    browser.settle()
    assert "ampsim explain" in text(browser, "#found")
    assert "dialect" not in text(browser, "#found")
    assert text(browser, "#run option:checked") == "Your log"
    drawn, logged = browser.value("document.querySelectorAll('canvas').length"), text(browser, "#readout")
    assert drawn == 1
    assert logged.startswith("Step 0: A at 2¹⁶")
    choose(browser, "run", "0")
    assert browser.value("document.querySelectorAll('canvas').length") == 3


def test_what_is_pasted_is_text_and_what_is_no_log_is_refused(browser: Browser) -> None:
    paste(browser, HOSTILE)
    assert "ampsim explain" in text(browser, "#found")
    assert browser.value("document.querySelectorAll('img, main b b').length") == 0
    for log in ("", "hello\nworld", "{" * 1000, "loss: 2\nloss: 3", "step: 1, loss_scale: nan"):
        paste(browser, log)
        assert "Expected lines such as" in text(browser, "#found"), log


def test_a_long_log_is_drawn(browser: Browser) -> None:
    lines = (f"step: {step}, loss_scale: {65536 >> (step // 10000)}, skipped: 0" for step in range(40_000))
    paste(browser, "\n".join(lines))
    assert "ampsim explain" in text(browser, "#found")
    assert text(browser, "#readout").startswith("Step 0: A at 2¹⁶")


@pytest.mark.parametrize("width", [320, 390, 800, 1600])
def test_nothing_is_wider_than_the_screen(tab: Browser, width: int) -> None:
    tab.look(width, 800, phone=width < 400)
    tab.open(PAGE)
    for dark in (False, True):
        tab.look(width, 800, dark=dark, phone=width < 400)
        assert tab.value("document.documentElement.scrollWidth <= innerWidth")
    assert tab.complaints() == []
