"""Test other versions of Python, torch, and JAX: `make versions`.

`nox -f .ci/noxfile.py -s "torch(newest)"` runs one session. Each session writes its row of
docs/versions.md. The default build of torch takes several GB; to install a CPU build, set
PIP_INDEX_URL to an index that has one.
"""

import datetime
import xml.etree.ElementTree as ET
from pathlib import Path

import nox

nox.options.error_on_missing_interpreters = False
nox.options.envdir = "../build/nox"
ROOT = Path(__file__).resolve().parents[1]
TORCH = {
    "oldest": "torch==2.4.1",
    "2.11": "torch==2.11.0",
    "2.13": "torch==2.13.0",
    "newest": "torch",
}
PYTHONS = {"oldest": "3.11", "2.11": "3.12", "2.13": "3.11", "newest": "3.13"}
CORE = ("tests/core", "tests/lint", "tests/test_import.py", "tests/test_wheel.py")
QUICK = (
    "pytest",
    "-q",
    "-n",
    "2",
    "--dist",
    "worksteal",
    "-p",
    "no:cacheprovider",
    "-o",
    "junit_family=xunit1",
)
# Warnings that torch itself raises: on Python 3.13.0, and for sparse tensors in torch 2.11.
FOREIGN = (
    "ignore::DeprecationWarning",
    "ignore:Guards may run slower",
    "ignore:Sparse invariant checks",
)
PACKAGES = ("torch", "jax", "flax", "optax", "numpy")
VERSIONS = f"""import platform
from importlib.metadata import distributions
found = [(name, each.version) for name in {PACKAGES} for each in distributions(name=name)]
print(*(" ".join(pair) for pair in [("Python", platform.python_version()), *found]), sep=", ")"""


@nox.session
@nox.parametrize(
    ("python", "version"), [(PYTHONS[name], name) for name in TORCH], ids=[*TORCH]
)
def torch(session: nox.Session, version: str) -> None:
    """Test the packages that import torch."""
    session.install(TORCH[version], "numpy>=2")
    test(session, "torch,testing", "tests/torch", "tests/probe", "tests/runs/record")


@nox.session
@nox.parametrize("python", ["3.11", "3.13"])
def jax(session: nox.Session) -> None:
    """Test `ampsim.jax` on the newest JAX, flax, optax, and numpy."""
    session.install("-U", "jax", "flax", "optax", "numpy", "flatbuffers")
    test(session, "jax,testing", "tests/jax")


@nox.session(python="3.11")
@nox.parametrize("version", ["0.6", "0.7", "0.8", "0.9", "0.10"])
def older_jax(session: nox.Session, version: str) -> None:
    """Test `ampsim.jax` on an older JAX, with the newest packages that allow it."""
    session.install(f"jax=={version}.*", "flax", "optax", "numpy", "flatbuffers")
    test(session, "jax,testing", "tests/jax")


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def core(session: nox.Session) -> None:
    """Test the packages that import no framework."""
    test(session, "testing", *CORE)


def test(session: nox.Session, extras: str, *paths: str) -> None:
    """Install ampsim with extras, run the tests in the paths, and write the row of the session."""
    session.chdir(ROOT)
    session.install(f".[{extras}]", "pytest-xdist", "setuptools")
    environment = {
        "HYPOTHESIS_PROFILE": "ci",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    warnings = [word for warning in FOREIGN for word in ("-W", warning)]
    report = ROOT / "build" / "versions" / f"{session.name}.xml"
    arguments = (*warnings, f"--junitxml={report}", *paths, *session.posargs)
    session.run(*QUICK, *arguments, env=environment, success_codes=[0, 1])
    suite = ET.parse(report).getroot()[0]  # noqa: S314
    count = {
        name: int(suite.attrib[name])
        for name in ("tests", "failures", "errors", "skipped")
    }
    failed = count["failures"] + count["errors"]
    versions = session.run("python", "-c", VERSIONS, silent=True).strip()
    numbers = [count["tests"] - failed - count["skipped"], failed, count["skipped"]]
    cells = [versions, *map(str, numbers), str(datetime.date.today())]
    if not session.posargs:
        write_row(session.name, cells)
    if failed:
        session.error(f"{failed} failed")


def write_row(name: str, cells: list[str]) -> None:
    """Replace the row of a session, or append it after the last row."""
    page, row = (
        ROOT / "docs" / "versions.md",
        " | ".join([f"| `{name}`", *cells]) + " |",
    )
    lines = page.read_text().splitlines()
    rows = [place for place, line in enumerate(lines) if line.startswith("| `")]
    old = [place for place in rows if lines[place].startswith(f"| `{name}` |")]
    lines[slice(old[0], old[0] + 1) if old else slice(rows[-1] + 1, rows[-1] + 1)] = [
        row
    ]
    page.write_text("\n".join(lines) + "\n")
