"""Every example in a docstring and in the README is run."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import ampsim

README = Path(__file__).parent.parent / "README.md"
# Each imports a framework that not every environment has.
FRAMEWORKS = (
    "ampsim.testing.kit.words_flax", "ampsim.testing.loop.adapters.", "ampsim.testing.loop.backends.keras",
    "ampsim.testing.ranks.deepspeed",
)  # fmt: skip
MODULES = [
    m.name
    for m in pkgutil.walk_packages(ampsim.__path__, "ampsim.")
    if not m.name.endswith("__main__") and not m.name.startswith(FRAMEWORKS)
]


@pytest.mark.parametrize("name", ["ampsim", *MODULES])
def test_examples_in_docstrings(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_examples_in_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    from ampsim.testing import check_scaler

    monkeypatch.setitem(check_scaler.__kwdefaults__, "examples", 10)  # what it shows comes out after ten histories too
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0
