"""The quick tests on other versions: `make versions`, or `nox -f .ci/noxfile.py -s "torch(newest)"` for one.

torch is the default build, of several GB, unless PIP_INDEX_URL names an index with CPU builds.
"""

import nox

nox.options.error_on_missing_interpreters = False
nox.options.envdir = "../build/nox"
TORCH = {"oldest": "torch==2.4.1", "2.11": "torch==2.11.0", "2.13": "torch==2.13.0", "newest": "torch"}
PYTHONS = {"oldest": "3.11", "2.11": "3.12", "2.13": "3.11", "newest": "3.13"}
ROOMS = {"torch": ("tests/torch", "tests/probe", "tests/watch"), "jax": ("tests/jax",)}
CORE = ("tests/core", "tests/lint", "tests/test_import.py", "tests/test_wheel.py")
QUICK = ("pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider")
# torch's own warnings: of Python 3.13.0, and of sparse tensors by 2.11.
FOREIGN = ("ignore::DeprecationWarning", "ignore:Guards may run slower", "ignore:Sparse invariant checks")


@nox.session
@nox.parametrize(("python", "version"), [(PYTHONS[name], name) for name in TORCH], ids=[*TORCH])
def torch(session: nox.Session, version: str) -> None:
    """Test what stands on torch."""
    session.install(TORCH[version], "numpy>=2")
    test(session, "torch,testing", *ROOMS["torch"])


@nox.session
@nox.parametrize("python", ["3.11", "3.13"])
def jax(session: nox.Session) -> None:
    """Test what stands on the newest JAX, with the newest flax, optax and numpy."""
    session.install("-U", "jax", "flax", "optax", "numpy")
    test(session, "jax,testing", *ROOMS["jax"])


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def core(session: nox.Session) -> None:
    """Test what needs no framework."""
    test(session, "testing", *CORE)


def test(session: nox.Session, extras: str, *rooms: str) -> None:
    """Install this tree with extras, and run the tests of some rooms."""
    session.chdir("..")
    session.install(f".[{extras}]", "pytest-xdist", "setuptools")
    environment = {"HYPOTHESIS_PROFILE": "mutants", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    warnings = [word for each in FOREIGN for word in ("-W", each)]
    session.run(*QUICK, *warnings, *rooms, *session.posargs, env=environment)
