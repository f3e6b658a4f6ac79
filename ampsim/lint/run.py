"""A run of the lint over files and folders: which files it reads, and what it finds in them."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ampsim.lint.engine import Finding, examine
from ampsim.lint.source import UnreadableError, read

EXCLUDED = {"node_modules", "__pycache__", "site-packages", "build", "dist", "venv"}


@dataclass
class Run:
    """What a run of the lint read and found.

    Attributes:
        findings: the findings of all files.
        errors: why a file could not be read, by path.
        loops: the number of training loops by path, also where it is 0.
    """

    findings: list[Finding] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    loops: dict[str, int] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The exit status: 2 for an unreadable file, 1 for an error or a warning, or else 0."""
        failed = any(finding.severity != "note" for finding in self.findings)
        return 2 if self.errors else int(failed)

    @property
    def summary(self) -> str:
        """What was found and read, in one line: a file without a loop is not a clean file."""
        counts = (
            (len(self.findings), "finding"),
            (len(self.loops), "file"),
            (sum(self.loops.values()), "training loop"),
            ([*self.loops.values()].count(0), "file"),
        )
        texts = [f"{number} {noun}{'s' * (number != 1)}" for number, noun in counts]
        return "{}; {} read, {}, {} without a loop".format(*texts)


def run(paths: Sequence[Path], codes: Collection[str]) -> Run:
    """Run rules on files, and on the files of folders; - is standard input."""
    done = Run()
    files = (file for path in paths for file in files_of(path))
    for file in dict.fromkeys(files):
        name = "<stdin>" if str(file) == "-" else str(file)
        try:
            findings, done.loops[name] = examine(read(file), name, codes)
            done.findings += findings
        except UnreadableError as error:
            done.errors[name] = str(error)
    return done


def files_of(path: Path) -> Iterator[Path]:
    """Yield a file, or the *.py files of a folder, without hidden and `EXCLUDED` folders."""
    if not path.is_dir():
        yield path
    for folder, inner, names in os.walk(path):
        shown = (each for each in inner if not each.startswith("."))
        inner[:] = sorted({*shown} - EXCLUDED)
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(folder, name)
