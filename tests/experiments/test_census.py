"""What the census counts, and that its five reports hold."""

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

from experiments import census, runner

REPORTS = sorted((runner.DATA / "census_reports").glob("*.py"))
LOOP = """\
def train(model, loader, optimizer, scaler, scheduler, ema):
    for batch in loader:
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
    torch.save({"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}, path)
"""


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


def test_loop_features_and_findings_are_read() -> None:
    (loop,) = census.loops_in(LOOP)
    assert (loop["line"], loop["has"], loop["codes"]) == (
        2,
        ["schedule", "checkpoint"],
        {"AMP101": [6]},
    )
    (gated,) = census.loops_in(
        LOOP.replace("        scheduler", "        if not skipped: scheduler")
    )
    assert gated["codes"] == {}
    (moved,) = census.loops_in("import torch\n" + LOOP)
    assert moved["digest"] == loop["digest"] != gated["digest"]


def test_folder_files_are_verified_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some+one").mkdir()
    (tmp_path / "some+one" / "train.py").write_text(LOOP)
    row = {
        "repository": "some/one",
        "commit": "0" * 40,
        "path": "train.py",
        "sha256": "0" * 64,
        "kind": "script",
        "loops": [],
    }
    monkeypatch.setattr(census, "INPUT", tmp_path / "census.jsonl")
    monkeypatch.setenv(census.FOLDER, str(tmp_path))
    census.INPUT.write_text(json.dumps(row))
    with pytest.raises(ValueError, match="sha256"):
        census.files()
    now = hashlib.sha256(LOOP.encode()).hexdigest()
    (tmp_path / "index.jsonl").write_text(
        json.dumps({**row, "sha256": now, "packaged": False})
    )
    census.write(tmp_path)
    (read,) = census.files()
    assert (read["sha256"], read["loops"][0]["codes"]) == (now, {"AMP101": [6]})
    found = census.run(census.Config(), census.Arm("script"), 0, "cpu", lambda _: None)
    assert (found["loops"], found["wrong"], found["of"]["schedule"]) == (
        1, {"loops": 1, "repositories": ["some/one"]}, {"loops": 1, "wrong": 1},
    )  # fmt: skip
