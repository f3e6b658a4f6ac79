"""The page for maintainers says what happens, and gives the action inputs that it has."""

import doctest
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
yaml = pytest.importorskip("yaml", reason="pip install -c constraints.txt pyyaml")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ampsim/testing/MAINTAINERS.md"


def test_page_examples_pass():
    test = doctest.DocTestParser().get_doctest(
        PAGE.read_text(), {}, PAGE.name, str(PAGE), 0
    )
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert (result.attempted > 9, result.failed) == (True, 0)


def test_workflow_gives_inputs_of_the_action():
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    (job,) = yaml.safe_load(PAGE.read_text().split("```yaml")[1].split("```")[0])[
        "jobs"
    ].values()
    calls = [
        step["with"]
        for step in job["steps"]
        if step.get("uses", "").startswith("OWNER/")
    ]
    assert len(calls) == 2
    assert all(call.keys() <= inputs.keys() for call in calls)
