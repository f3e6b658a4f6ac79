"""The playground's script computes the scales that `ampsim.core` does, and its page is current."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampsim import Rule
from ampsim.core.replay.thresholds import index_thresholds, replay_thresholds
from ampsim.runs.playground.build import (
    DATA,
    HERE,
    RUNS,
    SETTINGS,
    playground,
    settings,
    thresholds,
)
from ampsim.runs.record.data_file import read

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None, reason="needs node: apt-get install nodejs"
)
ROOT = Path(__file__).parents[2]


def in_node(function: str, calls: list[list[Any]]) -> list[Any]:
    """Return what a function of the script returns for each list of arguments."""
    code = (
        f"const {{ {function} }} = require({str(HERE / 'rule.js')!r});"
        "const calls = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        f"console.log(JSON.stringify(calls.map((call) => {function}(...call))));"
    )
    done = subprocess.run(  # noqa: S603
        [str(NODE), "-e", code],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[Any] = json.loads(
        done.stdout, parse_int=float
    )  # as JavaScript has no other numbers
    return answers


def random_rule(random: np.random.Generator) -> Rule:
    """Return a rule of torch's family; many of its runs reach a bound or the end of float32."""
    low, start, high = sorted(float(2 ** random.uniform(-140, 127)) for _ in range(3))
    return Rule(
        init_scale=start,
        growth_factor=float(random.choice([1.0, 2.0, random.uniform(1, 4), 2.0**60])),
        backoff_factor=float(
            random.choice([1.0, 0.5, random.uniform(0.1, 1), 2.0**-60])
        ),
        growth_interval=int(random.integers(1, 6)),
        min_scale=low if random.random() < 0.5 else None,
        max_scale=high if random.random() < 0.5 else None,
    )


def replayed(rule: Rule, limits: list[float]) -> dict[str, Any]:
    """Return what the reference makes of a run, as the script returns it."""
    run = replay_thresholds(rule, index_thresholds(limits))
    skipped = np.zeros(len(limits), bool)
    skipped[run.skipped] = True
    *scales, final = [run.first, *run.scales().tolist()]
    return {"scales": scales, "skipped": skipped.tolist(), "finalScale": final}


@needs_node
def test_script_replay_matches_reference() -> None:
    random = np.random.default_rng(0)
    rules = [random_rule(random) for _ in range(300)]
    runs = [
        (rule.init_scale * 2.0 ** random.normal(0, 9, 60)).tolist() for rule in rules
    ]
    for run in runs:
        run[random.integers(60)] = 0.0  # a forward pass that overflows
    calls = [
        [{name: getattr(rule, name) for name in SETTINGS}, run]
        for rule, run in zip(rules, runs, strict=True)
    ]
    for rule, run, found in zip(rules, runs, in_node("replay", calls), strict=True):
        assert found == replayed(rule, run), rule


@needs_node
def test_zero_share_matches_float16() -> None:
    values = 2.0 ** np.random.default_rng(0).uniform(-40, -20, 10_000)
    exponents = np.floor(np.log2(values)).astype(int)
    counts = [-40, *np.bincount(exponents + 40).tolist()]
    scales = [2.0**k for k in range(-10, 25)]
    lost = [np.mean((values * scale).astype(np.float16) == 0) for scale in scales]
    assert in_node("zeroShare", [[counts, scale] for scale in scales]) == pytest.approx(
        lost, abs=1e-12
    )
    assert sum(0 < share < 1 for share in lost) > 0


def test_recorded_runs_replay_recorded_skips() -> None:
    _, rows = read(DATA)
    kept = {row["arm"]: row for row in rows if row["counts"]}
    for arm in RUNS:
        row = kept[arm]
        own = {
            name: row["settings"][name] for name in ("init_scale", "growth_interval")
        }
        run = replay_thresholds(
            Rule(**settings(**own)), index_thresholds(thresholds(row))
        )
        assert run.skipped.tolist() == row["found_inf"]
        scales = [run.first, *run.scales().tolist()]
        assert all(scales[step] == scale for step, scale in row["scale_changes"])


def test_the_committed_page_is_current() -> None:
    committed = ROOT / "figures" / "playground.html"
    assert committed.read_text("utf-8") == playground(), (
        "run `ampsim playground -o figures/playground.html`"
    )
    assert len(committed.read_bytes()) <= 100_000
