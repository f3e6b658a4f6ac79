"""A figure draws the arms and seeds that a file has, and names an arm that it cannot do without."""

import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from experiments.runner.cli import main as run_experiment
from figures import __main__ as cli
from figures import _style, rendering, results
from figures.results import Result

MOST = 6  # arms that are left out of one file, one by one


def files() -> list[tuple[str, str]]:
    """Return each figure with each experiment that it draws."""
    return [
        (stem, source)
        for stem in cli.stems()
        for source in rendering.experiments_of(stem)
    ]


def keep(run: Result, **left_out: object) -> Result:
    """Return data without the records that have these values."""
    kept = [
        row for row in run.records if any(row[key] != left_out[key] for key in left_out)
    ]
    seeds = [seed for seed in run.seeds if seed != left_out.get("seed")]
    return Result(run.stem, run.path, {**run.provenance, "seeds": seeds}, tuple(kept))


def draw(stem: str, changed: Result) -> None:
    runs = [results.load(name) for name in rendering.experiments_of(stem)]
    with _style.style():
        rendering.draw_results(
            stem, [changed if run.stem == changed.stem else run for run in runs]
        )


def spread(names: list[str]) -> Iterator[str]:
    """Yield at most `MOST` names: the first, the last, and some between."""
    yield from names[:: max(1, len(names) // MOST)]
    yield names[-1]


@pytest.mark.parametrize(("stem", "source"), files())
def test_figures_draw_fewer_arms(stem: str, source: str) -> None:
    run = results.load(source)
    needed = getattr(import_module(f"figures.{stem}"), "NEEDS", {}).get(source, ())
    for arm in spread(list(run.arms)):
        if arm not in needed:
            draw(stem, keep(run, arm=arm))
    for arm in needed:
        with pytest.raises(
            ValueError, match=re.escape(f"the figure {stem} needs the arm {arm!r}")
        ):
            draw(stem, keep(run, arm=arm))


@pytest.mark.parametrize(("stem", "source"), files())
def test_figures_draw_fewer_seeds(stem: str, source: str) -> None:
    run = results.load(source)
    if len(run.seeds) > 1:
        draw(stem, keep(run, seed=run.seeds[-1]))


@pytest.mark.parametrize("source", sorted({source for _, source in files()}))
def test_own_arms_satisfy_the_figures(source: str) -> None:
    run = results.load(source)
    for stem in cli.stems():
        if source in rendering.experiments_of(stem):
            rendering.require_arms(stem, [run])


def test_check_figure_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--lrs",
        "0.01",
        "0.02",
        "--out",
        "/nonexistent/data.jsonl",
        "--check-figure",
    ]
    assert run_experiment("scale_crash", options) == 0
    said = capsys.readouterr().out
    assert re.search(
        r"scale_crash: \d+ arms, \d+ units; figures whose arms are there: scale_crash",
        said,
    )


def test_check_figure_names_missing_arm(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_experiment("static_sweep", ["--check-figure"]) == 0
    with pytest.raises(ValueError, match="needs the arm 'fp32'"):
        rendering.require_arms(
            "needs_scale", [keep(results.load("static_sweep"), arm="fp32")]
        )
