"""A right loop keeps every law, and each planted bug is caught by the law that should."""

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.testing import check_loop
from ampsim.testing.loop.judge import LAWS, judge_loop
from experiments.bugs.loops import BUGS
from tests.testing.loops import RIGHT, batches


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loop_is_not_accused(name):
    check_loop(RIGHT[name], batches())


def test_there_are_30_bugs():
    assert len(BUGS) >= 30
    assert {bug.law for bug in BUGS.values()} == {*LAWS} - {"ranks_are_invisible"}  # whose bugs rank_loops has


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_caught_by_its_law(name):
    bug = BUGS[name]
    (result,) = judge_loop(bug.make, batches(), [bug.law])
    assert result.outcome == "failed", f"{bug.law} did not catch {bug.link}: {result}"
    assert result.text.startswith(f"{bug.law}: ")
    assert "\n  cause    " in result.text
