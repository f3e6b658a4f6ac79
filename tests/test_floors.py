"""Arrows point down and never round: which part of the tree may import what, as one table and one
AST walk.

An import counts wherever it stands: at the top, inside a function, or under ``if TYPE_CHECKING``. A
file that only needs the other's types needs a name for them, such as a Protocol, in a file below
both.
"""

import ast
import re
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# part of the tree -> what it may import beside the standard library; the most specific part counts
FLOORS = {
    "ampsim/__init__.py": {"ampsim.core", "ampsim.runs.data_frame"},
    "ampsim/__main__.py": {"ampsim.cli", "ampsim.core.output"},
    "ampsim/core": {"numpy", "ampsim.core"},
    "ampsim/core/formats.py": {"numpy", "ml_dtypes", "ampsim.core"},
    "ampsim/core/replay/engine.py": {"numpy", "numba", "ampsim.core"},
    "ampsim/torch": {"numpy", "torch", "ampsim.core", "ampsim.torch"},
    "ampsim/torch/async_state.py": {"ampsim.core"},  # pure: no tensors, no locks
    "ampsim/torch/gradients": {
        "numpy",
        "torch",
        "ampsim.core",
        "ampsim.torch.gradients",
    },
    "ampsim/jax": {"numpy", "jax", "optax", "ampsim.core", "ampsim.jax"},
    "ampsim/frameworks": {"ampsim", "ampsim.frameworks"},
    "ampsim/frameworks/checks": {
        "hypothesis",
        "ampsim.core",
        "ampsim.frameworks",
        "ampsim.testing",
    },
    "ampsim/frameworks/adapters": {  # its own project's package each, inside of its methods
        *("numpy", "torch", "ampsim", "ampsim.jax", "ampsim.frameworks"),
        *(
            "accelerate",
            "deepspeed",
            "equinox",
            "fairscale",
            "flax",
            "jax",
            "jaxamp",
            "jmp",
            "keras",
            "lightning",
        ),
        *("mpx", "optax", "roundpipe"),
    },
    "ampsim/probe": {"numpy", "torch", "ampsim.core", "ampsim.probe"},
    "ampsim/testing": {"numpy", "hypothesis", "torch", "ampsim.core", "ampsim.testing"},
    "ampsim/testing/parametrize.py": {"pytest", "ampsim.testing"},
    "ampsim/testing/plugin.py": {"pytest"},
    "ampsim/testing/loop": {
        "numpy",
        "ampsim.core.validation",
        "ampsim.runs.read.error_texts",
        "ampsim.testing.alarm",
        "ampsim.testing.judge",
        "ampsim.testing.check",
        "ampsim.testing.lines",
        "ampsim.testing.loop",
    },
    "ampsim/testing/loop/checks/ranks.py": {
        "ampsim.testing.judge",
        "ampsim.testing.loop",
        "ampsim.testing.scheduler",
        "ampsim.testing.ranks.threads",
    },
    "ampsim/lint": {
        "ampsim.lint"
    },  # the standard library only: it starts in a moment, where torch is not
    "ampsim/cli": {"ampsim", "rich", "typer"},
    "ampsim/runs": {"numpy", "ampsim.core", "ampsim.runs"},
    "ampsim/runs/record": {
        "numpy",
        "torch",
        "ampsim.core",
        "ampsim.probe",
        "ampsim.runs.record",
    },
    "ampsim/runs/record/data_file.py": {"ampsim.core"},
    "ampsim/runs/record/run_file.py": {"numpy", "ampsim.core"},
    "ampsim/runs/record/sinks.py": {
        "numpy",
        "wandb",
        "ampsim.probe",
        "ampsim.runs.record",
    },
    "ampsim/runs/record/callbacks/lightning.py": {
        "lightning",
        "ampsim.core",
        "ampsim.runs.record",
    },
    "ampsim/runs/record/callbacks/transformers.py": {
        "transformers",
        "ampsim.core",
        "ampsim.runs.record",
    },
    "ampsim/runs/report/scale_chart.py": {
        "matplotlib",
        "numpy",
        "ampsim.core",
        "ampsim.runs",
    },
    "ampsim/runs/read/trackers.py": {
        "tensorboard",
        "wandb",
        "ampsim.core.extras",
        "ampsim.runs",
    },
    "experiments": {
        "ampsim",
        "experiments",
        "llvmlite",
        "numba",
        "numpy",
        "rich",
        "torch",
        "tyro",
    },
    "experiments/frameworks": {  # its own framework's package each
        *(
            "ampsim.jax",
            "ampsim.testing",
            "experiments.frameworks",
            "jax",
            "numpy",
            "optax",
            "torch",
        ),
        *("accelerate", "equinox", "flax", "jmp", "lightning", "transformers"),
    },
    "experiments/runner/commands.py": {
        "ampsim",
        "experiments",
        "figures.claim_results",
        "rich",
    },  # above its package
    "experiments/runner/cli.py": {
        "ampsim.core",
        "ampsim.runs.record.data_file",
        "experiments",
        "figures",
        "rich",
        "tyro",
    },  # asks the figures, only for --check-figure, which arms they need
    "experiments/zero_reductions.py": {"ampsim", "deepspeed", "experiments", "torch"},
    "experiments/engine_drivers": {
        "accelerate",
        "datasets",
        "deepspeed",
        "experiments",
        "lightning",
        "megatron",
        "mmengine",
        "tensordict",
        "tokenizers",
        "torch",
        "transformers",
        "trl",
        "verl",
    },
    # Scripts to be handed on.
    "experiments/data/reports": {
        "deepspeed",
        "lightning",
        "megatron",
        "torch",
        "transformers",
        "verl",
    },
    "experiments/bench": {"ampsim", "experiments", "numba", "numpy", "rich", "torch"},
    "experiments/bench/jax_step.py": {
        "ampsim",
        "experiments",
        "flax",
        "jax",
        "jmp",
        "numpy",
        "optax",
    },
    "experiments/bench/watching.py": {"ampsim", "experiments", "torch", "wandb"},
    "figures": {
        "figures",
        "matplotlib",
        "numpy",
        "ampsim.core",
        "ampsim.core.json_lines",
        "ampsim.core.files",
        "ampsim.runs.record.data_file",
    },
    "figures/claim_results.py": {
        "ampsim.core.json_lines",
        "ampsim.core.files",
        "ampsim.runs.record.data_file",
        "figures",
    },
    "figures/conformance_page.py": {"ampsim.runs.report.page", "figures"},
    "figures/screenshot.py": {"PIL", "ampsim.core", "ampsim.runs", "figures"},
    "paper": {
        "ampsim.core",
        "ampsim.frameworks.checks.judging",
        "ampsim.core.json_lines",
        "ampsim.core.files",
        "ampsim.runs.record.data_file",
        "ampsim.testing.scaler_checks",
        "ampsim.testing.known_failures",
        "figures.claims",
        "figures.derived_numbers",
        "figures.results",
        "figures.tables",
        "figures.claim_results",
        "paper",
    },
    "paper/build.py": {
        "ampsim.core.json_lines",
        "ampsim.core.files",
        "ampsim.runs.record.data_file",
        "figures.claims",
        "figures.claim_results",
        "paper",
        "typst",
    },
    "paper/numbers/runs.py": {
        "ampsim.core",
        "experiments.corpus.runs",
        "figures.derived_numbers",
        "figures.results",
        "paper",
    },
    "paper/sources.py": {
        "ampsim.core",
        "ampsim.core.json_lines",
        "ampsim.core.files",
        "ampsim.runs.record.data_file",
        "experiments.runner.provenance",
        "figures.results",
    },
}

# A backend of loops imports its own framework, by the first word of its name, and what this stands
# on.
BACKEND = re.compile(r"ampsim/testing/loop/backends/([a-z]+)\w*\.py")
STANDS_ON = {
    "jax": {"ampsim.core.machine", "ampsim.jax"},
    "torch": {"ampsim.core.machine", "ampsim.testing.construction"},
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
    if found := BACKEND.fullmatch(path):
        return {
            found[1],
            "numpy",
            "ampsim.testing.loop",
            *STANDS_ON[found[1]],
        }
    parts = [part for part in FLOORS if path == part or path.startswith(part + "/")]
    assert parts, (
        f"{path} stands on no floor: add its folder to FLOORS or move the file"
    )
    return FLOORS[max(parts, key=len)]


MODULES = sorted(
    str(p.relative_to(ROOT))
    for top in ("ampsim", "experiments", "figures", "paper")
    for p in (ROOT / top).rglob("*.py")
)


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by its path."""
    return {path: ast.parse((ROOT / path).read_text()) for path in MODULES}


def test_imports_follow_layers() -> None:
    names = (
        (path, name)
        for path, tree in trees().items()
        for name in sorted(imported(tree))
    )
    wrong = [
        f"{path} may not import {name}"
        for path, name in names
        if not may_import(floor_of(path), name)
    ]
    assert not wrong, "\n".join(wrong)


def test_gradients_import_no_locks() -> None:
    for path in (ROOT / "ampsim/torch/gradients").glob("*.py"):
        assert not imported(ast.parse(path.read_text())) & {
            "threading",
            "queue",
            "concurrent.futures",
        }, path.name


def test_nested_import_is_detected() -> None:
    planted = ast.parse(
        "def f():\n    from torch.optim import SGD\n    import matplotlib.pyplot as plt"
    )
    assert imported(planted) == {"torch.optim.SGD", "matplotlib.pyplot"}
    assert not may_import(floor_of("ampsim/core/properties.py"), "torch.optim.SGD")
    assert may_import(floor_of("ampsim/core/properties.py"), "ampsim.core.machine.Rule")


def file_of(name: str, files: Collection[str]) -> str | None:
    """Return the file that an import of a dotted name loads: a module, or what a module or package
    defines.
    """
    parts = name.split(".")
    for end in (len(parts), len(parts) - 1):
        for path in (
            "/".join(parts[:end]) + ".py",
            "/".join([*parts[:end], "__init__.py"]),
        ):
            if path in files:
                return path
    return None


def circles(files: Mapping[str, ast.AST]) -> set[frozenset[str]]:
    """Return the groups of files in which each imports every other, directly or by way of others of
    the group.
    """
    reached: dict[str, set[str]] = {}
    arrows = {
        path: {file_of(name, files) for name in imported(tree)} - {None, path}
        for path, tree in files.items()
    }
    for start in arrows:
        todo, seen = [*arrows[start]], set()
        while todo:
            if (path := todo.pop()) not in seen:
                seen.add(path)
                todo += arrows[path]
        reached[start] = seen
    return {
        frozenset({a} | {b for b in reached[a] if a in reached[b]})
        for a in arrows
        if a in reached[a]
    }


def test_no_two_files_import_each_other() -> None:
    new = circles(trees())
    assert not new, "these files import each other: " + "; ".join(
        " and ".join(sorted(circle)) for circle in new
    )


PLANTED_CIRCLES = {
    "directly": {"a/x.py": "import a.y", "a/y.py": "from a.x import f"},
    "lazily": {"a/x.py": "import a.y", "a/y.py": "def f():\n    from a import x"},
    "for types": {
        "a/x.py": "import a.y",
        "a/y.py": "if TYPE_CHECKING:\n    from a.x import T",
    },
    "by a package": {"a/__init__.py": "from a.y import f", "a/y.py": "from a import g"},
    "by way of a third": {
        "a/x.py": "import a.y",
        "a/y.py": "import a.z",
        "a/z.py": "import a.x",
    },
}


@pytest.mark.parametrize("planted", PLANTED_CIRCLES.values(), ids=PLANTED_CIRCLES)
def test_import_cycle_is_detected(planted: dict[str, str]) -> None:
    files = {path: ast.parse(source) for path, source in planted.items()}
    outside = {"b.py": ast.parse("import a.x, a.y")}
    assert circles({**files, **outside}) == {frozenset(planted)}
    del files[max(files)]
    assert not circles({**files, **outside})


def test_top_level_has_expected_entries() -> None:
    kept = {
        "pyproject.toml",
        "README.md",
        "ampsim",
        "experiments",
        "tests",
        "figures",
        "paper",
        "Makefile",
    }
    kept |= {
        "constraints.txt",
        "action.yml",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "CITATION.cff",
        "docs",
    }
    seen = {
        p.name
        for p in ROOT.iterdir()
        if not p.name.startswith(".") and not p.name.endswith(".egg-info")
    }
    assert seen - {"build"} <= kept, f"{sorted(seen - kept)} at the top level"
