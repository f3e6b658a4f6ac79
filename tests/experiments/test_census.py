"""What the census counts, and that its five reports hold."""

import importlib.util
import json
from pathlib import Path

import pytest

from experiments import census, runner

REPORTS = sorted((runner.DATA / "census_reports").glob("*.py"))


@pytest.mark.parametrize("path", REPORTS, ids=[path.stem for path in REPORTS])
def test_report_reproducer_fails(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (test,) = (
        value for name, value in vars(module).items() if name.startswith("test_")
    )
    with pytest.raises((AssertionError, RuntimeError)):
        test()
    assert path.with_suffix(".md").exists()


def test_equal_loops_count_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = {"digest": "a", "has": ["schedule"], "codes": {"AMP101": [6], "AMP000": [7]}}
    left = {"digest": "b", "has": ["clip"], "codes": {"AMP000": [7]}}
    files = [
        {"repository": "some/one", "kind": "script", "loops": [late, left]},
        {"repository": "some/copy", "kind": "script", "loops": [late]},
        {"repository": "other/kind", "kind": "package", "loops": [{**left, "digest": "c"}]},
    ]  # fmt: skip
    monkeypatch.setattr(census, "INPUT", tmp_path / "census.jsonl")
    census.INPUT.write_text("".join(json.dumps(file) + "\n" for file in files))
    found = census.run(census.Config(), census.Arm("script"), 0, "cpu", lambda _: None)
    assert found["loops"] == 2
    assert found["wrong"] == {"loops": 1, "repositories": ["some/one"]}
    assert found["of"]["schedule"] == {"loops": 1, "wrong": 1}
    assert found["of"]["clip"] == {"loops": 1, "wrong": 0}
