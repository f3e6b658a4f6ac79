"""Pay for what you import."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "jax", "hypothesis", "matplotlib", "ml_dtypes", "rich", "typer", "sklearn", "numba", "pytest")


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import ampsim", "import ampsim.testing as t; t.conductor.run"])
def test_importing_ampsim_loads_only_the_standard_library_and_numpy(statement: str) -> None:
    assert not modules_after(statement) & set(HEAVY)


def test_the_check_can_fail() -> None:
    assert "typer" in modules_after("import ampsim.cli")


@pytest.mark.parametrize("name", ["Rule", "State", "init", "update", "replay", "replay_ceilings", "dialects"])
def test_the_core_names_are_exported(name: str) -> None:
    import ampsim

    assert hasattr(ampsim, name)
