"""What is recorded stays as it was, and an adapter that cannot run here keeps its record."""

import pytest

from ampsim import frameworks
from ampsim.core import dialects
from ampsim.frameworks.checks import CHECKS
from experiments import conformance
from figures import results

DATA = {
    row["arm"]: row
    for row in results.load("conformance").records
    if row["arm"] != "checks"
}
RECORDED = sorted(name for name, row in DATA.items() if not row["live"])


def run(name: str) -> dict:
    return conformance.run(
        conformance.Config(adapters=(name,)),
        conformance.Arm(name),
        0,
        "cpu",
        lambda step: None,
    )


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_scaler_keeps_its_record(name: str) -> None:
    row = run(name)
    assert row.items() <= DATA[name].items()
    assert row["version"]
    assert row["date"]
    assert len(row["commit"]) == 40
    assert row["checks"].keys() <= CHECKS.keys()
    assert row["dialect"] in dialects.ALL


def test_missing_package_keeps_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(adapter: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(frameworks.load("torch"), "version", missing)
    assert run("torch").items() <= DATA["torch"].items()


def test_registry_matches_conformance_table() -> None:
    assert frameworks.REGISTRY.keys() == DATA.keys() - RECORDED
