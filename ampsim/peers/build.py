"""Builds the environments of environments.toml, one after the other, and goes on where it was interrupted."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ampsim.peers import environments


class BuildError(RuntimeError):
    """An environment that could not be built, with the reason that the installer gave."""


def build_all(names: Sequence[str], console: Console) -> dict[str, str]:
    """Build environments that are not ready; return why not for each that could not be had.

    Args:
        names: of tables of environments.toml.
        console: on which it tells how far it is.
    """
    failed = {name: reason for name in names if (reason := environments.tables()[name].get("unavailable"))}
    todo = [name for name in names if name not in failed and environments.state(name) != "ready"]
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as progress:
        whole = progress.add_task("", total=sum(map(_seconds, todo)))
        for name in todo:
            progress.update(whole, description=name)
            try:
                build(name)
                console.print(f"{name}: built")
            except BuildError as error:
                failed[name] = str(error)
                console.print(f"{name}: could not be had: {error}")
            progress.advance(whole, _seconds(name))
    return failed


def _seconds(name: str) -> float:
    return float(environments.tables()[name]["seconds"])


def build(name: str) -> None:
    """Make one environment, or finish one that is half built; raise BuildError with the installer's reason."""
    home = environments.folder() / name
    if environments.state(name) == "outdated":
        shutil.rmtree(home)
    home.mkdir(parents=True, exist_ok=True)
    table = environments.tables()[name]
    path = environments.folder() / f"{name}.log"
    with path.open("w") as log:

        def run(*command: str) -> None:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603
            log.write(" ".join(command) + "\n" + done.stdout)
            if done.returncode:
                raise BuildError(f"{_reason(done.stdout)} (all of it: {path})")

        python = str(home / "bin" / "python")
        if not (home / "bin" / "pip").exists():  # the last that venv makes
            run(interpreter(table.get("python")), "-m", "venv", "--clear", str(home))
        if table.get("over_main"):
            site = next(home.glob("lib/python*/site-packages"))
            (site / "ampsim-over-main.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for stage in table["stages"]:
            run("env", *_assignments(name), python, "-m", "pip", "install", "--disable-pip-version-check", *stage)
    (home / environments.STAMP).write_text(environments.stamp(name))


def interpreter(version: str | None) -> str:
    """Return a Python of this version, such as 3.10: this one, one on the path, or pyenv's; else raise BuildError."""
    if version is None or sys.version.startswith(f"{version}."):
        return sys.executable
    installed = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    for found in (shutil.which(f"python{version}"), *installed.glob(f"{version}.*/bin/python")):
        # pyenv puts names on the path of which not each is a Python that it would start.
        if found and subprocess.run([found, "--version"], capture_output=True).returncode == 0:  # noqa: S603
            return str(found)
    raise BuildError(f"no Python {version} on the path; install one, such as with `pyenv install {version}`")


def _assignments(name: str) -> list[str]:
    return [f"{key}={value}" for key, value in environments.variables(name).items()]


def _reason(output: str) -> str:
    """Return what an installer complains of: its first line with ERROR, or its last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in lines if line.startswith("ERROR")), lines[-1])
