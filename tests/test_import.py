"""Pay for what you import."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ampsim.core.extras import BROUGHT_BY

HEAVY = (
    "torch",
    "jax",
    "hypothesis",
    "matplotlib",
    "ml_dtypes",
    "rich",
    "typer",
    "sklearn",
    "numba",
    "pytest",
)


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sys.modules)"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import ampsim", "import ampsim.testing as t; t.scheduler.run"]
)
def test_import_loads_no_heavy_packages(statement: str) -> None:
    assert not modules_after(statement) & set(HEAVY)


@pytest.mark.parametrize(
    "arguments", [["lint", "--rules"], ["lint", "--explain", "AMP101"]]
)
def test_lint_loads_no_heavy_packages(arguments: list[str]) -> None:
    run = f"import sys; sys.argv[1:] = {arguments}; import contextlib, io, ampsim.__main__ as program\n"
    run += "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): program.main()"
    assert not modules_after(run) & ({*HEAVY} - {"rich", "typer"})


def test_loaded_modules_are_detected() -> None:
    assert "typer" in modules_after("import ampsim.cli")


LAZY = (
    "ampsim/__init__.py",
    "ampsim/runs/__init__.py",
    "ampsim/testing/__init__.py",
)  # load a name when it is first used
ROOT = Path(__file__).parents[1]
PACKAGES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "ampsim").rglob("__init__.py")
)


@pytest.mark.parametrize(
    "path", [path for path in PACKAGES if path not in ("ampsim/cli/__init__.py", *LAZY)]
)
def test_package_all_lists_imported_names(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text())
    nodes = [
        each
        for node in tree.body
        for each in (node.body if isinstance(node, ast.With) else [node])
    ]
    taken = [
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    listed = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and "__all__" in {getattr(target, "id", "") for target in node.targets}
    ]
    public = sorted(name for name in taken if not name.startswith("_"))
    assert [sorted(names) for names in listed] == ([public] if public else [])


def test_extra_includes_its_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    brought = {
        package: [each for each in extras[extra] if re.match(rf"{package}\b", each)]
        for package, extra in BROUGHT_BY.items()
    }
    assert [package for package, found in brought.items() if not found] == []


@pytest.mark.parametrize(
    ("module", "absent", "extra"),
    [
        ("ampsim.torch", "torch", "torch"),
        ("ampsim.runs", "torch", "torch"),
        ("ampsim.jax", "jax", "jax"),
        ("ampsim.testing", "hypothesis", "testing"),
    ],
)
def test_missing_package_shows_install_command(
    module: str, absent: str, extra: str
) -> None:
    if module == "ampsim.testing":
        pytest.importorskip(
            "torch", reason="asked for first: pip install 'ampsim[torch]'"
        )
    code = f"import sys; sys.modules[{absent!r}] = None\nfrom {module} import *"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(
        f"; pip install -c constraints.txt -e '.[{extra}]'"
    )


def test_missing_package_is_one_line_error() -> None:
    code = "import sys, runpy; sys.modules['tyro'] = None; runpy.run_module('experiments', run_name='__main__')"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("experiments: error: import of tyro halted")
    assert done.stderr.count("\n") == 1
