"""What every experiment keeps, whatever its question."""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from ampsim import Rule
from ampsim.core import json_lines
from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file
from experiments import runner
from experiments.runner import pool, provenance, settings
from experiments.runner.experiment import Experiment, Unit, stems
from figures import results
from tests.experiments.runs import assert_replayed

# A smoke run of these costs seconds: they start processes, or compile. `make deep` runs all.
DEEP = {
    "conformance",
    "rank_reductions", "ranks_cells", "ranks_training", "zero_reductions",
}  # fmt: skip
# Of these, a smoke run in `make test` has no other arm than one that is done in a second.
QUICK = {
    "policy_benchmark": "Headroom 1 bit",
    "log_power": "no fault",
    "cuda_runs": "megatron",
}
EXPERIMENTS = [Experiment(stem) for stem in stems()]
HERE = [experiment for experiment in EXPERIMENTS if experiment.data("cpu").exists()]
load = cache(results.load)


def every(experiments: list[Experiment]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "experiment", experiments, ids=lambda experiment: experiment.stem
    )


def require(experiment: Experiment) -> None:
    if missing := experiment.missing_packages:
        pytest.skip(f"{experiment.stem} needs {' and '.join(missing)}")


@every(EXPERIMENTS)
def test_settings_and_arms_are_valid(experiment: Experiment) -> None:
    require(experiment)
    for config in (experiment.module.Config(), experiment.module.SMOKE):
        settings.check(config)
        units = experiment.units(config)
        assert len({unit.key for unit in units}) == len(units)
        for unit in units:
            assert dataclasses.is_dataclass(unit.settings)
            assert hash(unit.settings) == hash(dataclasses.replace(unit.settings))
            assert (
                json_lines.decode(json_lines.encode(dataclasses.asdict(unit.settings)))
                is not None
            )


@every(EXPERIMENTS)
def test_smoke_run_is_reproducible(
    experiment: Experiment,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require(experiment)
    if experiment.stem in DEEP and os.environ.get("AMPSIM_DEEP") != "1":
        pytest.skip("takes seconds: run `make deep`")
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # where a smoke run leaves its data
    module = experiment.module
    assert module.SMOKE.steps <= module.Config().steps
    several = len(experiment.units(module.SMOKE)) > 1
    if experiment.stem in QUICK and os.environ.get("AMPSIM_DEEP") != "1":
        quick = {
            QUICK[experiment.stem]: module.arms(module.SMOKE)[QUICK[experiment.stem]]
        }
        monkeypatch.setattr(module, "arms", lambda config: quick)
    assert runner.main(experiment.stem, ["--smoke"]) == 0
    path = Path(capsys.readouterr().out.split("written to ")[1].strip())
    assert not path.is_relative_to(runner.DATA)
    rows, units = data_file.read(path)[1], experiment.units(module.SMOKE)
    assert_of_units(rows, units)
    assert_of_the_machine(rows, module.SMOKE.steps)
    if hasattr(module, "table"):
        assert module.table(rows)
    if experiment.repeats and several:  # a run of one unit would take twice as long
        again = pool.run(pool.Job(experiment.stem, module.SMOKE, units[0], "cpu"))
        assert isinstance(again, pool.Done)  # the first, after all others
        unit = {name: rows[0][name] for name in ("arm", "seed", "settings")}
        assert json_lines.encode(unit | again.record) == json_lines.encode(rows[0])


def assert_of_units(rows: Sequence[Record], units: Sequence[Unit]) -> None:
    """Assert that there is one record per unit, in order, with its settings."""
    wanted = [
        {
            "arm": unit.arm,
            "seed": unit.seed,
            "settings": dataclasses.asdict(unit.settings),
        }
        for unit in units
    ]
    assert json_lines.encode(
        [{name: row[name] for name in wanted[0]} for row in rows]
    ) == json_lines.encode(wanted)


@every(EXPERIMENTS)
def test_data_matches_current_settings(experiment: Experiment) -> None:
    require(experiment)
    assert ("cpu" in experiment.devices) == (experiment in HERE)
    if experiment in HERE:
        config, found = experiment.module.Config(), load(experiment.stem)
        assert found.config == config.plain()
        assert found.provenance["inputs_sha256"] == experiment.inputs()
        assert_of_units(found.records, experiment.units(config))


def rule_of(row: Record) -> Rule | None:
    """Return the rule that a record's settings name, from the scale that it began with; None if
    they name none.
    """
    settings = row.get("settings", {})
    if (
        not {"scale_changes", "found_inf"} <= row.keys()
        or settings.get("growth_interval") is None
    ):
        return None
    bits = settings.get("growth_bits", 1.0), settings.get("backoff_bits", 1.0)
    floor = settings.get("floor_log2")
    bounds = {} if floor is None else {"min_scale": 2.0**floor}
    late = {"delay": settings.get("delay", 0)}
    return Rule(
        row["scale_changes"][0][1],
        2.0 ** bits[0],
        2.0 ** -bits[1],
        settings["growth_interval"],
        **bounds | late,
    )


def assert_of_the_machine(rows: Sequence[Record], steps: int) -> None:
    """Assert that scales are those of the reference machine, and stay where the settings name no
    growth interval.
    """
    for row in rows:
        if rule := rule_of(row):
            assert_replayed(row, rule, steps * row["settings"].get("every", 1))
        elif "scale_changes" in row and "init_scale" in row["settings"]:
            assert row["scale_changes"] == [[0, row["settings"]["init_scale"]]]


@every(HERE)
def test_reference_replays_recorded_scales(experiment: Experiment) -> None:
    found = load(experiment.stem)
    assert_of_the_machine(found.records, found.config["steps"])


def test_data_of_other_settings_is_stale() -> None:
    inputs = Experiment("census").inputs()
    config = Experiment("census").module.Config().plain()
    origin = {"source_sha256": provenance.source_sha256("census"), "config": config}
    assert provenance.why_stale("census", {**origin, "inputs_sha256": inputs}) is None
    assert (
        provenance.why_stale("census", {**origin, "inputs_sha256": {}})
        == "its inputs have changed since"
    )
    assert (
        provenance.why_stale("census", {**origin, "config": {}})
        == "it was made with other settings"
    )
    assert (
        provenance.why_stale("census", {**origin, "source_sha256": ""})
        == "its source has changed since"
    )
