"""The quick tests on other versions: `make versions`, or `nox -f .ci/noxfile.py -s "torch(newest)"` for one.

Each session writes its row of docs/versions.md. torch is the default build, of several GB, unless PIP_INDEX_URL names
an index with CPU builds.
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
# torch's own warnings: of Python 3.13.0, and of sparse tensors by 2.11.
FOREIGN = (
    "ignore::DeprecationWarning",
    "ignore:Guards may run slower",
    "ignore:Sparse invariant checks",
)
PACKAGES = ("torch", "jax", "flax", "optax", "numpy")
VERSIONS = f"""import platform
from importlib.metadata import distributions as d
print(platform.python_version(), *([each.version for each in d(name=name)] or ["-"] for name in {PACKAGES}), sep="|")"""


@nox.session
@nox.parametrize(("python", "version"), [(PYTHONS[name], name) for name in TORCH], ids=[*TORCH])
def torch(session: nox.Session, version: str) -> None:
    """Test what stands on torch."""
    session.install(TORCH[version], "numpy>=2")
    test(session, "torch,testing", "tests/torch", "tests/probe", "tests/watch")


@nox.session
@nox.parametrize("python", ["3.11", "3.13"])
def jax(session: nox.Session) -> None:
    """Test what stands on the newest JAX, with the newest flax, optax and numpy."""
    session.install("-U", "jax", "flax", "optax", "numpy")
    test(session, "jax,testing", "tests/jax")


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def core(session: nox.Session) -> None:
    """Test what needs no framework."""
    test(session, "testing", *CORE)


def test(session: nox.Session, extras: str, *rooms: str) -> None:
    """Install this tree with extras, run the tests of some rooms, and note what came of them."""
    session.chdir(ROOT)
    session.install(f".[{extras}]", "pytest-xdist", "setuptools")
    environment = {"HYPOTHESIS_PROFILE": "mutants", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    warnings = [word for each in FOREIGN for word in ("-W", each)]
    report = ROOT / "build" / "versions" / f"{session.name}.xml"
    told = (*warnings, f"--junitxml={report}", *rooms, *session.posargs)
    session.run(*QUICK, *told, env=environment, success_codes=[0, 1])
    suite = ET.parse(report).getroot()[0]  # noqa: S314 - pytest has just written it
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    versions = (
        session.run("python", "-c", VERSIONS, silent=True)
        .strip()
        .translate(str.maketrans("", "", "[]'"))
    )
    numbers = [count["tests"] - failed - count["skipped"], failed, count["skipped"]]
    cells = [
        *versions.split("|"),
        " ".join(f"`{room}`" for room in rooms),
        *map(str, numbers),
        str(datetime.date.today()),
    ]
    if not session.posargs:
        note(session.name, cells)
    if failed:
        session.error(f"{failed} failed")


def note(name: str, cells: list[str]) -> None:
    """Put the row of a session in place of that of an earlier run, or behind the last."""
    page, row = ROOT / "docs" / "versions.md", " | ".join([f"| `{name}`", *cells]) + " |"
    lines = page.read_text().splitlines()
    rows = [place for place, line in enumerate(lines) if line.startswith("| `")]
    old = [place for place in rows if lines[place].startswith(f"| `{name}` |")]
    lines[slice(old[0], old[0] + 1) if old else slice(rows[-1] + 1, rows[-1] + 1)] = [row]
    page.write_text("\n".join(lines) + "\n")
