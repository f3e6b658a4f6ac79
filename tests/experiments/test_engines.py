"""The table of engines agrees with the recorded data, and the checks see seeded faults."""

import dataclasses
from pathlib import Path

import pytest

from ampsim.runs.record import data_file

pytest.importorskip("torch", reason="pip install 'ampsim[torch]'")
from experiments.engines.__main__ import PATH
from experiments.engines.drivers import Job, Result
from experiments.engines.read import READ

from experiments.engines import checks, drivers

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "reinforcement-learning.md"
ROWS = data_file.read(PATH)[1]


def test_page_shows_recorded_results() -> None:
    lines = PAGE.read_text().splitlines()
    assert {row["engine"] for row in ROWS} == drivers.ENGINES.keys() | READ.keys()
    for row in ROWS:
        if row["evidence"] == "run":
            assert list(row["checks"]) == [check.__name__ for check in checks.CHECKS]
        shown = row["checks"].values() if row["evidence"] == "run" else [row["note"]]
        assert f"| {' | '.join([row['engine'], row['version'], *shown])} |" in lines


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
def test_torch_passes(check: checks.Check) -> None:
    assert check(drivers.torch_loop)


def divided_twice(job: Job) -> Result:
    """Clip by a norm that depends on the loss scale, and step by a gradient that does."""
    batches = tuple((inputs, targets / job.scale) for inputs, targets in job.batches)
    return drivers.torch_loop(dataclasses.replace(job, batches=batches))


def forgets_scale(job: Job) -> Result:
    return dataclasses.replace(drivers.torch_loop(job), scale=job.scale * 2.0**-job.start)


def moves_in_skips(job: Job) -> Result:
    ended = drivers.torch_loop(job)
    if ended.scale < job.scale:
        ended.parameters[0].add_(1.0)
    return ended


def test_seeded_faults_fail() -> None:
    assert not checks.gradients_do_not_depend_on_loss_scale(divided_twice)
    assert not checks.clipping_does_not_depend_on_loss_scale(divided_twice)
    assert not checks.skipped_step_changes_nothing(moves_in_skips)
    assert not checks.resume_is_exact(forgets_scale)
