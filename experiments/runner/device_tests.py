"""Run the tests that need a device in a separate process, with a log."""

import hashlib
import importlib.util
import os
import subprocess
import sys

from experiments.runner.provenance import ROOT
from experiments.runner.slot import Part, Slot

SECONDS = 60.0  # that the tests are expected to take


def run(slot: Slot) -> Part:
    """Run the tests, unless they passed with the current sources."""
    log = slot.logs / f"tests.{digest()}.log"
    if log.exists():
        return Part("tests", "up to date")
    if missing := [name for name in ("pytest", "hypothesis") if not is_installed(name)]:
        return Part("tests", "skipped", f"requires {' and '.join(missing)}")
    if slot.left < SECONDS and not slot.dry:
        return Part("tests", "skipped", f"takes about {SECONDS:.0f} s")
    log.parent.mkdir(parents=True, exist_ok=True)
    unfinished = log.with_suffix(".part")
    environment = os.environ | {"JAX_PLATFORMS": "cpu" if slot.dry else ""}  # "": any
    try:
        with unfinished.open("wb") as file:
            subprocess.run(  # noqa: S603 - our own
                command(dry=slot.dry),
                cwd=ROOT,
                env=environment,
                stdout=file,
                timeout=max(slot.left, 0.1),
                check=True,
            )
    except subprocess.CalledProcessError:
        return Part("tests", "failed", f"see {unfinished}")
    except subprocess.TimeoutExpired:
        return Part("tests", "stopped", f"see {unfinished}")
    unfinished.rename(log)
    return Part("tests", "ran", log.read_text(encoding="utf-8").splitlines()[-1])


def command(*, dry: bool) -> list[str]:
    """Return the command: on a device, the tests marked gpu; else their variants on the CPU."""
    folders = ["torch", "probe"]
    if is_installed("jax"):
        folders.append("jax")
    paths = [f"tests/{folder}/test_gpu.py" for folder in folders]
    marks = "not gpu" if dry else "gpu"
    return [sys.executable, "-m", "pytest", "-q", "-m", marks, *paths]


def is_installed(name: str) -> bool:
    """Return whether a package can be imported."""
    return importlib.util.find_spec(name) is not None


def digest() -> str:
    """Return a digest of the current sources, in twelve digits."""
    found = hashlib.sha256()
    for folder in ("ampsim", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]
