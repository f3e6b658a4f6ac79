"""What do the commands cost: a line of a log, the help, and a file with a training loop?

Each command is a process of its own, whose CPU time counts. Of `explain` and `lint` the start is
subtracted: the same command on a log of one line, and on an empty file. The floors: a loop that
reads and splits the lines, Python's own start, and `ast.parse` of the files.
"""

import ast
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ampsim.runs.read.read import read_log
from experiments.bench.report import TIME, Row, require_same, run
from experiments.runner.provenance import ROOT

FILES = ROOT / "tests" / "torch"  # those that speak of a scaler: lint parses no other


def measure(lines: int = 50_000, files: int = 40, trials: int = 5) -> list[Row]:
    """Time every command."""
    with tempfile.TemporaryDirectory(prefix="ampsim-bench-") as folder:
        return [
            *explain(Path(folder), lines, trials),
            *help_of_all(trials),
            *lint(Path(folder), files, trials),
        ]


def explain(folder: Path, lines: int, trials: int) -> list[Row]:
    """Return the cost of a line of a log."""
    log, short = folder / "train.log", folder / "short.log"
    text = [f"step {i}: loss {2 + 1 / (1 + i):.4f} scale 65536\n" for i in range(lines)]
    log.write_text("".join(text), encoding="utf-8")
    short.write_text(text[0], encoding="utf-8")
    require_same("steps that explain read", len(read_log(log).role("loss")[0]) == lines)

    def split() -> None:
        with log.open(encoding="utf-8") as file:
            for line in file:
                line.split()

    whole = repeat(lambda: cpu("-m", "ampsim", "explain", str(log)), trials)
    start = repeat(lambda: cpu("-m", "ampsim", "explain", str(short)), trials)
    floor = repeat(lambda: own(split), trials)
    ours = [1e6 * (a - b) / lines for a, b in zip(whole, start, strict=True)]
    row = Row(
        "ampsim explain",
        "floor",
        "us a line",
        ours,
        [1e6 * each / lines for each in floor],
    )
    return [row._replace(figure=TIME, goal=8.0), row]


def help_of_all(trials: int) -> list[Row]:
    """Return the cost of the help."""
    ours = repeat(lambda: cpu("-m", "ampsim", "--help"), trials)
    floor = repeat(lambda: cpu("-c", "pass"), trials)
    ours, floor = ([1e3 * each for each in way] for way in (ours, floor))
    row = Row("ampsim --help", "floor", "ms", ours, floor)
    return [row._replace(figure=TIME, goal=200.0), row]


def lint(folder: Path, files: int, trials: int) -> list[Row]:
    """Return the cost of a file."""
    empty = folder / "empty.py"
    empty.touch()
    texts = {path: path.read_text("utf-8") for path in sorted(FILES.rglob("*.py"))}
    chosen = {path: text for path, text in texts.items() if "GradScaler" in text}
    chosen = dict([*chosen.items()][:files])

    def parse() -> None:
        for text in chosen.values():
            ast.parse(text)

    whole = repeat(lambda: cpu("-m", "ampsim", "lint", *map(str, chosen)), trials)
    start = repeat(lambda: cpu("-m", "ampsim", "lint", str(empty)), trials)
    floor = repeat(lambda: own(parse), trials)
    ours = [1e3 * (a - b) / len(chosen) for a, b in zip(whole, start, strict=True)]
    count = sum(text.count("\n") for text in chosen.values()) // len(chosen)
    name = f"ampsim lint, {len(chosen)} files of {count} lines"
    row = Row(
        name, "floor", "ms a file", ours, [1e3 * each / len(chosen) for each in floor]
    )
    return [row._replace(figure=TIME, goal=30.0), row]


def repeat(timed: Callable[[], float], trials: int) -> list[float]:
    """Return the seconds of each trial, after one that may compile the sources."""
    timed()
    return [timed() for _ in range(trials)]


def cpu(*arguments: str) -> float:
    """Run Python and return its seconds of CPU time.

    The exit status is not asked: it says what a command found.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    subprocess.run(command, check=False, capture_output=True)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def own(work: Callable[[], None]) -> float:
    """Return the seconds of CPU time of this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    run("commands", measure)
