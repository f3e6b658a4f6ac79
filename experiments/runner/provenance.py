"""Where a data file comes from: the first record of each."""

import ast
import contextlib
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("torch", "numpy", "jax", "optax", "flax", "jmp", "numba", "hypothesis", "wandb")


def collect(stem: str, argv: list[str], config: Mapping[str, Any], inputs: Mapping[str, str], device: str) -> Any:
    """What is known before the run starts."""
    commit, dirty = commit_and_dirty()
    return {
        "script": f"experiments/{stem}.py",
        "argv": argv,
        "commit": commit,  # null where there is no git or no commit yet
        "dirty": dirty,
        "source_sha256": source_sha256(stem),
        "config": dict(config),
        "seeds": list(config["seeds"]),
        "inputs_sha256": dict(inputs),
        "versions": versions(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "device": describe_device(device),
        "threads": int(os.environ["OMP_NUM_THREADS"]),
    }


def versions() -> dict[str, str]:
    """Of Python, and of the packages that may take part in a result and are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def now() -> str:
    """UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit_and_dirty() -> tuple[str | None, bool | None]:
    """HEAD, and whether the code that runs differs from it; (None, None) without git."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--", "ampsim", "experiments", ":!experiments/data")
    return commit, None if commit is None or status is None else bool(status)


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *args],  # noqa: S607 - whichever git the user has
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def source_sha256(stem: str) -> str:
    """Of the experiment and what it imports from this folder: units of two versions are never mixed."""
    digest = hashlib.sha256()
    for path in sorted(sources(ROOT / "experiments" / f"{stem}.py")):
        digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def sources(path: Path) -> set[Path]:
    """A module and, by its imports, those below it in ``experiments``; not what runs every experiment alike."""
    found, waiting = set(), [path]
    while waiting:
        path = waiting.pop()
        if path in found or path.parent.name == "runner" or not path.exists():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("experiments"):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                waiting += [ROOT / f"{str(name).replace('.', '/')}.py" for name in names]
    return found


def cpu_name() -> str:
    """As Linux names it; elsewhere what Python knows."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_device(device: str) -> dict[str, Any]:
    """What computed: for CUDA the card, its driver and the CUDA version that torch was built for."""
    if device == "cpu":
        return {"type": "cpu", "name": cpu_name()}
    import torch

    capability = torch.cuda.get_device_capability()
    return {
        "type": "cuda",
        "name": torch.cuda.get_device_name(),
        "capability": f"{capability[0]}.{capability[1]}",
        "cuda": torch.version.cuda,
        "driver": _driver(),
    }


def _driver() -> str | None:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text(encoding="utf-8").splitlines()[0] if path.exists() and sys.platform == "linux" else None
