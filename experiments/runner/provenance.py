"""Where a data file comes from: the first record of each."""

import ast
import contextlib
import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ampsim.core.json_lines import Record
from experiments import KERNELS
from experiments.runner import device
from experiments.runner.experiment import Experiment

ROOT = Path(__file__).parent.parent.parent
LIBRARY = ROOT / "ampsim"
PACKAGES = (
    "torch",
    "numpy",
    "jax",
    "optax",
    "flax",
    "jmp",
    "numba",
    "hypothesis",
    "wandb",
)
# What two runs must share for their units to stand in one file.
OF_MACHINE = ("versions", "device", "threads")
IDENTITY = ("config", "inputs_sha256", "source_sha256", *OF_MACHINE)


def collect(
    stem: str,
    argv: list[str],
    config: Record,
    inputs: Mapping[str, str],
    device_name: str,
) -> Record:
    """Return what is known before the run starts, on this machine with this device."""
    made_at = commit()
    changes = _git(
        "status", "--porcelain", "--", "ampsim", "experiments", ":!experiments/data"
    )
    return {
        "script": f"experiments/{stem}.py",
        "argv": argv,
        "commit": made_at,
        "dirty": None if made_at is None or changes is None else bool(changes),
        "source_sha256": source_sha256(stem),
        "config": config,
        "seeds": list(config["seeds"]),
        "inputs_sha256": dict(inputs),
        "versions": versions(),
        "platform": platform.platform(),
        "cpu": device.cpu_name(),
        "device": device.describe(device_name),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "kernels": {name: os.environ[name] for name in KERNELS if name in os.environ},
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of those packages that may take part in a result and are
    installed.
    """
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """Return the commit that is checked out; AMPSIM_COMMIT names it where git's part was not
    copied.
    """
    return os.environ.get("AMPSIM_COMMIT") or _git("rev-parse", "HEAD")


def _git(*args: str) -> str | None:
    """Return what git prints; None where there is no git, or no commit yet."""
    command = ["git", *args]  # whichever git the user has
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def source_sha256(stem: str) -> str:
    """Return the sha256 of what the experiment does, and what it imports from its folder: versions
    are never mixed.
    """
    digest = hashlib.sha256()
    for path in sorted(sources(Experiment(stem).path)):
        digest.update(
            f"{path.parent.name}/{path.name}\0{_parsed(path.read_bytes())[0]}\0".encode()
        )
    return digest.hexdigest()


def library_sha256() -> str:
    """Return the sha256 of the library's modules: units of two versions stand in no one journal.

    No data file has it, since most changes of the library change no number.
    """
    digest = hashlib.sha256()
    for path in sorted(LIBRARY.rglob("*.py")):
        digest.update(f"{path.relative_to(LIBRARY).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def essence(node: object) -> str:
    """Return a syntax tree as text, without layout, comments, and strings that stand alone, as
    docstrings do.

    Not `ast.dump` or `ast.unparse`, which differ between versions of Python: what is empty is left
    out here.
    """
    if isinstance(node, list):
        kept = (
            item
            for item in node
            if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
        )
        return f"[{' '.join(map(essence, kept))}]"
    if isinstance(node, ast.AST):
        fields = [
            (name, value)
            for name, value in ast.iter_fields(node)
            if value is not None and value != []
        ]
        return f"({type(node).__name__}{''.join(f' {name}={essence(value)}' for name, value in fields)})"
    return ascii(node)


def sources(path: Path) -> set[Path]:
    """Return a module and, by its imports, those below it in ``experiments``; not the runner, which
    all share.
    """
    found, waiting = set(), [path]
    while waiting:
        path = waiting.pop()
        if path not in found and path.parent.name != "runner" and path.exists():
            found.add(path)
            for name in _parsed(path.read_bytes())[1]:
                if name.startswith("experiments."):
                    file = ROOT / name.replace(".", "/")
                    waiting += [file.with_suffix(".py"), file / "__init__.py"]
    return found


@functools.cache  # experiments share most of what they import
def _parsed(source: bytes) -> tuple[str, list[str]]:
    """Return the essence of a module, and what it may import: `from` a name, and each name that it
    takes from there.
    """
    tree = ast.parse(source)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [f"{node.module}.{alias.name}" for node in nodes for alias in node.names]
    return essence(tree), [*names, *(str(node.module) for node in nodes)]


def why_stale(stem: str, origin: Mapping[str, object]) -> str | None:
    """Return why a data file is not what its experiment would write today; None if it is."""
    experiment = Experiment(stem)
    if origin["source_sha256"] != source_sha256(stem):
        return "its source has changed since"
    if (
        experiment.missing_packages
    ):  # it cannot be imported; a change of its settings is a change of source
        return None
    if origin["config"] != experiment.module.Config().plain():
        return "it was made with other settings"
    return (
        "its inputs have changed since"
        if origin["inputs_sha256"] != experiment.inputs()
        else None
    )
