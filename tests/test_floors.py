"""Arrows point down: which part of the tree may import what, as one table and one AST walk."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# part of the tree -> what it may import beside the standard library; the most specific part counts
FLOORS = {
    "ampsim/__init__.py": {"ampsim.core"},
    "ampsim/__main__.py": {"ampsim.cli"},
    "ampsim/core": {"numpy", "ampsim.core"},
    "ampsim/core/formats.py": {"numpy", "ml_dtypes", "ampsim.core"},
    "ampsim/core/replay/engine.py": {"numpy", "numba", "ampsim.core"},
    "ampsim/torch": {"numpy", "torch", "triton", "ampsim.core", "ampsim.torch"},
    "ampsim/jax": {"numpy", "jax", "optax", "ampsim.core", "ampsim.jax"},
    "ampsim/probe": {"numpy", "torch", "triton", "ampsim.core", "ampsim.probe"},
    "ampsim/testing": {"numpy", "hypothesis", "torch", "ampsim.core", "ampsim.testing"},
    "ampsim/testing/kit/parametrize.py": {"pytest", "ampsim.core", "ampsim.testing"},
    "ampsim/records.py": {"numpy"},
    "ampsim/cli.py": {"ampsim", "rich", "typer"},
    "experiments": {"ampsim", "experiments", "jax", "numba", "numpy", "optax", "rich", "sklearn", "torch", "tyro"},
    "experiments/probe_overhead.py": {"ampsim", "experiments", "numpy", "rich", "torch", "wandb"},
    "experiments/jax_speed.py": {"ampsim", "experiments", "flax", "jax", "jmp", "numpy", "rich"},
    "figures": {"figures", "matplotlib", "numpy", "ampsim.core", "ampsim.records"},
    "paper": {"ampsim.core", "ampsim.records", "numpy", "paper", "typst"},
    "paper/build.py": {"ampsim.core", "figures.__main__", "paper", "typst"},
    "paper/sources.py": {
        "ampsim.core",
        "ampsim.records",
        "experiments.runner.provenance",
        "paper",
    },
}


def imported(tree: ast.AST) -> set[str]:
    """Absolute dotted names that a module imports anywhere, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def may_import(allowed: set[str], name: str) -> bool:
    standard = name.split(".")[0] in sys.stdlib_module_names
    return standard or any(name == a or name.startswith(a + ".") for a in allowed)


def floor_of(path: str) -> set[str]:
    parts = [part for part in FLOORS if path == part or path.startswith(part + "/")]
    assert parts, f"{path} stands on no floor: add its folder to FLOORS or move the file"
    return FLOORS[max(parts, key=len)]


MODULES = sorted(
    str(p.relative_to(ROOT))
    for top in ("ampsim", "experiments", "figures", "paper")
    for p in (ROOT / top).rglob("*.py")
)


@pytest.mark.parametrize("path", MODULES)
def test_imports_point_down(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    wrong = sorted(name for name in imported(tree) if not may_import(floor_of(path), name))
    assert not wrong, f"{path} may not import {', '.join(wrong)}"


def test_a_planted_import_is_seen() -> None:
    planted = ast.parse("def f():\n    from torch.optim import SGD\n    import matplotlib.pyplot as plt")
    assert imported(planted) == {"torch.optim.SGD", "matplotlib.pyplot"}
    assert not may_import(floor_of("ampsim/core/laws.py"), "torch.optim.SGD")
    assert not may_import(floor_of("figures/x.py"), "experiments.models.mlp")
    assert not may_import(floor_of("experiments/x.py"), "matplotlib.pyplot")
    assert may_import(floor_of("ampsim/core/laws.py"), "ampsim.core.machine.Rule")


def test_the_top_level_is_what_a_newcomer_expects() -> None:
    kept = {"pyproject.toml", "README.md", "ampsim", "experiments", "tests", "figures", "paper", "Makefile"}
    kept |= {"constraints.txt", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff"}
    seen = {p.name for p in ROOT.iterdir() if not p.name.startswith(".") and not p.name.endswith(".egg-info")}
    assert seen - {"build"} <= kept, f"{sorted(seen - kept)} at the top level"
