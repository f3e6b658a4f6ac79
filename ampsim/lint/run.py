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
        if self.errors:
            return 2
        return int(any(finding.severity != "note" for finding in self.findings))

    @property
    def summary(self) -> str:
        """What was found and read, in one line: a file without a loop is not a clean file."""
        loops = [*self.loops.values()]
        findings = _counted(len(self.findings), "finding")
        read = _counted(len(loops), "file")
        found = _counted(sum(loops), "training loop")
        without = _counted(loops.count(0), "file")
        return f"{findings}; {read} read, {found}, {without} without a loop"


def _counted(number: int, noun: str) -> str:
    plural = "" if number == 1 else "s"
    return f"{number} {noun}{plural}"


def run(paths: Sequence[Path], codes: Collection[str]) -> Run:
    """Run rules on files, and on the files of folders; - is standard input."""
    done = Run()
    files = dict.fromkeys(file for path in paths for file in files_of(path))
    for file in files:
        name = str(file)
        if name == "-":
            name = "<stdin>"
        try:
            findings, done.loops[name] = examine(read(file), name, codes)
        except UnreadableError as error:
            done.errors[name] = str(error)
        else:
            done.findings += findings
    return done


def files_of(path: Path) -> Iterator[Path]:
    """Yield a file, or the *.py files of a folder, without hidden and `EXCLUDED` folders."""
    if not path.is_dir():
        yield path
        return
    for folder, inner, names in os.walk(path):
        # os.walk enters the folders that are left in this list.
        shown = {each for each in inner if not each.startswith(".")}
        inner[:] = sorted(shown - EXCLUDED)
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(folder, name)
