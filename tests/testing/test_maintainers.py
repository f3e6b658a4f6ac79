"""The page for maintainers says what happens, and the workflow that it offers is given what it reads."""

import doctest
import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
yaml = pytest.importorskip("yaml", reason="pip install -c constraints.txt pyyaml")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ampsim/testing/MAINTAINERS.md"


def test_page_examples_pass():
    test = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, PAGE.name, str(PAGE), 0)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    assert (result.attempted > 9, result.failed) == (True, 0)


def test_workflow_inputs_are_declared():
    text = (ROOT / ".ci/conformance.yml").read_text()
    workflow = yaml.safe_load(text)
    inputs = workflow[True]["workflow_call"]["inputs"]  # YAML 1.1 reads `on` as true
    assert set(re.findall(r"inputs\.(\w+)", text)) == {*inputs}
    for step in workflow["jobs"]["conformance"]["steps"]:
        assert "${{" not in step.get("run", ""), "an input in a command's text can run anything"
    for call in yaml.safe_load(PAGE.read_text().split("```yaml")[1].split("```")[0])[
        "jobs"
    ].values():
        required = {name for name, each in inputs.items() if each.get("required")}
        assert required <= {*call["with"]} <= {*inputs}
