"""What tests share: the real thing beside `conductor.sync`, small programs, and the command in a process of its own."""

import json
import os
import queue
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ampsim.testing.conductor import Conductor, explore
from tests import warm

REAL: Any = SimpleNamespace(**{**vars(threading), **vars(queue)})


CHECKS = """
import json, sys
import ampsim.testing.loop.backends.torch
from ampsim.testing.kit.judge import warm_up
from typer.testing import CliRunner
from ampsim.cli import app
warm_up()  # torch's first step takes seconds, which are nobody's fault
for arguments in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, arguments)
    print(json.dumps([result.exit_code, result.output]), flush=True)
"""


def checked(folder: Path, modules: dict[str, str], runs: dict[str, list[str]]) -> dict[str, tuple[int, str]]:
    """Return exit status and output of commands of ampsim in a folder with these modules, by the name of its arguments.

    One process does for all, as torch takes seconds to import.
    """
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(  # noqa: S603
        [warm.python(), "-c", CHECKS, json.dumps([*runs.values()])],
        capture_output=True, text=True, check=True, cwd=folder, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return dict(zip(runs, map(json.loads, done.stdout.splitlines()), strict=True))


def outcome_of(call: Callable[[], Any]) -> Any:
    """Return what a call returned, or the type and text of what it raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001, RUF100  it is the result
        return f"{type(error).__name__}: {error}"


def outcomes(program: Callable[[Conductor], Any], **options: Any) -> set[Any]:
    """Return everything that a program returns under some schedule."""
    seen: set[Any] = set()
    explore(program, check=lambda done: seen.add(done.value), **options)
    return seen


def nothing_special(c: Conductor) -> None:
    c.spawn("worker", c.point, "here")


def together(c: Conductor, *bodies: Callable[[], object]) -> None:
    """Run a task per body, named a, b and so on, to their ends."""
    for thread in [c.spawn(name, body) for name, body in zip("abc", bodies, strict=False)]:
        thread.join()
