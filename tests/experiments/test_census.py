"""What the census counts."""

import json
from pathlib import Path

import pytest

from experiments import census


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
