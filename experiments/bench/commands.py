"""What do the commands cost: a line of a log, the help, and a file with a training loop?

Each command is a process of its own, whose CPU time counts. Of `explain` and `lint` the start is
subtracted: the same command on a log of one line, and on an empty file. Each is compared with the
time that it should take at most.
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from ampsim.runs.read.read import read_log
from experiments.bench.report import Row, require_same, run
from experiments.runner.provenance import ROOT

FILES = ROOT / "tests" / "torch"  # those that name a scaler: lint parses no other


def measure(lines: int = 50_000, files: int = 40, trials: int = 5) -> list[Row]:
    """Time every command."""
    with tempfile.TemporaryDirectory(prefix="ampsim-bench-") as folder:
        log, short, empty = (Path(folder, name) for name in ("log", "short", "e.py"))
        text = [
            f"step {i}: loss {2 + 1 / (1 + i):.4f} scale 65536\n" for i in range(lines)
        ]
        log.write_text("".join(text), encoding="utf-8")
        short.write_text(text[0], encoding="utf-8")
        empty.touch()
        read = len(read_log(log).role("loss")[0])
        require_same("steps that explain read", read == lines)
        texts = {path: path.read_text("utf-8") for path in sorted(FILES.rglob("*.py"))}
        chosen = [path for path in texts if "GradScaler" in texts[path]][:files]
        count = sum(texts[path].count("\n") for path in chosen) // len(chosen)
        return [
            row("explain", "us a line", 8.0, [log], [short], lines * 1e-6, trials),
            row("--help", "ms", 200.0, [], None, 1e-3, trials),
            row(
                f"lint, files of {count} lines", "ms a file", 30.0,
                chosen, [empty], len(chosen) * 1e-3, trials,
            ),
        ]  # fmt: skip


def row(
    work: str,
    unit: str,
    most: float,
    paths: list[Path],
    start: list[Path] | None,
    seconds: float,
    trials: int,
) -> Row:
    """Time a command.

    Args:
        work: The command, and what a comma separates from it.
        unit: Unit of the times.
        most: Time that it should take at most.
        paths: Arguments of the command.
        start: Arguments of the command whose time is subtracted; None for no command.
        seconds: Number of seconds that are one unit of time.
        trials: Number of trials.
    """
    command = work.partition(",")[0]
    ours = []
    for _ in range(trials + 1):  # the first may compile the sources
        taken = cpu(command, *paths)
        if start is not None:
            taken -= cpu(command, *start)
        ours.append(taken / seconds)
    return Row(f"ampsim {work}", "the goal", unit, ours[1:], [most] * trials, 1.0)


def cpu(*arguments: str | Path) -> float:
    """Run ampsim and return its seconds of CPU time.

    The exit status is not asked: it says what a command found.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "ampsim", *map(str, arguments)]
    subprocess.run(command, check=False, capture_output=True)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    run("commands", measure)
