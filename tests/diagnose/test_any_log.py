"""Any text is explained or refused; a long log needs no more memory than a short one."""

import html
import re
import tracemalloc
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampsim.core.files import DamagedFileError
from ampsim.diagnose import history
from ampsim.diagnose.explain import explain, in_words
from ampsim.diagnose.history import HistoryBuilder, Sample
from ampsim.diagnose.readers import fields, plan
from ampsim.diagnose.readers.sniff import NothingReadError, read_history
from ampsim.diagnose.readers.text import read_text
from ampsim.diagnose.report import report
from ampsim.diagnose.wording import sparkline
from tests.diagnose.test_logs import LOGS
from tests.examples import examples

NUMBERS = st.floats(width=32) | st.floats() | st.sampled_from([65536.0, 2.0**32, 5e-324, 1e308])
WORDS = """step iteration epoch loss scale loss_scale grad_norm skipped num_updates
log2_scale log_history deepspeed
: = , | { } [ ] " ' 1/9 log_dist] [00:01<00:02, [deepspeed] {"run":"""
LINES = [
    '{"run": {}, "format": 1}\n',
    '{"step": [], "grad_norm": "x"}\n',
    "\n",
    "\r",
    "\x1b[1m",
    "\0",
]
WHOLE = ["\n".join(log["log"]) for log in LOGS if len(log["log"]) < 6]
WRITTEN = st.sampled_from(WORDS.split() + LINES) | st.sampled_from(WHOLE)
TOKENS = WRITTEN | NUMBERS.map(str) | st.integers().map(str) | st.text(max_size=5)
PARTS = st.lists(TOKENS, max_size=30)
TEXTS = PARTS.map("".join) | PARTS.map(" ".join)
NAMES = st.sampled_from(["train.log", "log.json", "log.jsonl", "metrics.csv", "a.ipynb"])


@settings(max_examples=examples(ms=5))
@given(TEXTS, NAMES)
@example('{"run": {}, "format": 1}\n{"step": [], "grad_norm": "x"}\n', "run.jsonl")
@example("step " + "9" * 400 + " loss: 1", "train.log")
@example('{"run": 1, "loss": 2}', "log.jsonl")
@example('{"run": 65536.0 -', "train.log")
@example('{"cells": [{"outputs": [{"text": 7}, 1]}]}', "a.ipynb")
@example('{"loss": 1, "ampsim/nonfinite": "w has inf"}', "log.jsonl")
@example('loss,scale\n1,"2\0\n', "metrics.csv")
def test_arbitrary_text_is_explained_or_raises(tmp_path_factory: Any, text: str, name: str) -> None:
    path: Path = tmp_path_factory.mktemp("log") / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        found = read_history(path)
    except (NothingReadError, DamagedFileError):
        return
    assert in_words(explain(found))


COUNTS = st.dictionaries(st.integers(0, 279), st.integers(1, 9), max_size=3)
MAYBE = st.none() | NUMBERS
ENTRY = st.tuples(st.integers(0, 40), NUMBERS, NUMBERS, MAYBE, MAYBE)
ENTRIES = st.lists(ENTRY, min_size=1, max_size=30)
HUGE = [(0, 1e308, 0.0, 1e308, 1e308)] * 4
PLURALS = "steps|times|others|skips|doublings|halvings"
SINGULAR = re.compile(rf"(?<![\d.,-])1 ((?!between)[a-z]+ )?({PLURALS})\b")


@settings(max_examples=examples(ms=20))
@given(ENTRIES, st.booleans(), st.lists(COUNTS, max_size=3))
@example(HUGE, True, [])
@example(
    [(0, 2.0**51, 0.0, None, None), (0, 0.0, 0.0, 1.0, None), (0, 0.0, 0.0, 8e292, None)], True, []
)
@example(
    [(0, 0.0, 0.0, None, None), (0, 65.0, 0.0, None, None), (0, 1.0, 0.0, None, None)], True, []
)
def test_any_run_is_explained(entries: list[Any], in_order: bool, counts: list[Any]) -> None:
    builder = HistoryBuilder("-", "test")
    for number, (step, scale, skipped, norm, loss) in enumerate(entries):
        at = number if in_order else step
        builder.add(at, scale=scale, skipped=skipped, norm=norm, loss=loss)
    for number, bins in enumerate(counts):
        dense = np.zeros(280, np.int64)
        dense[list(bins)] = list(bins.values())
        builder.samples.append(Sample(number, {"a": dense, "b": np.zeros(280, np.int64)}))
    run = builder.finish()

    explanation = explain(run)
    assert not SINGULAR.search(in_words(explanation))
    assert all(len(line) <= 30 for line in sparkline(run, 30)[:-1])
    page = html.unescape(report(run))
    assert all(finding.what in page for finding in explanation.wrong[:6])


@pytest.mark.parametrize(
    "line",
    [
        "a" * 9000 + ": loss x\n",
        "OVERFLOW! overflow " * 900,
        "loss:" * 4000,
        "1" * 9000 + " [ < loss\n",
    ],
)
def test_hostile_lines_take_linear_time(line: str) -> None:
    read_text("-", [line] * 3)  # a pattern that goes back over it would not end today


def test_memory_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ENTRIES", 2**6)
    monkeypatch.setattr(fields, "field_of", lru_cache(2**6)(fields.field_of.__wrapped__))
    monkeypatch.setattr(plan, "_name", lru_cache(2**6)(plan._name.__wrapped__))

    def peak(lines: int) -> int:
        tracemalloc.start()
        read_text(
            "-",
            (f"step {i} loss: 2.0 scale: {2 ** (i % 7)} grad_norm: 1.0\n" for i in range(lines)),
        )
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(400)
    short, long = peak(400), peak(1600)
    assert long < 1.2 * short
