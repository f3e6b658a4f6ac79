"""``ampsim lint``: find loss-scaling problems in training loops."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ampsim.lint.engine import RULES, examine
from ampsim.lint.output import FORMATS, Run, explained
from ampsim.lint.settings import SettingError, selected
from ampsim.lint.source import UnreadableError, read

EXCLUDED = {"node_modules", "__pycache__", "site-packages", "build", "dist", "venv"}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="ampsim lint",
        description="Find loss-scaling problems in training loops. Reads the source; runs nothing. "
        "Exit status: 0 no error or warning, 1 errors or warnings, 2 unreadable file or wrong use.",
    )
    option = made.add_argument
    option(
        "paths",
        nargs="*",
        metavar="PATH",
        type=Path,
        help="file, or folder to search for *.py; - for standard input",
    )
    option(
        "--select",
        metavar="CODES",
        type=_words,
        help="run only these rules, e.g. AMP101,AMP103; ALL for all rules",
    )
    option("--ignore", metavar="CODES", type=_words, help="skip these rules")
    option(
        "--format",
        choices=FORMATS,
        default="text",
        help="output format; github: workflow annotations",
    )
    option(
        "--json",
        action="store_const",
        const="json",
        dest="format",
        help="short for --format json",
    )
    option(
        "--explain",
        metavar="CODE",
        help="print the page of a rule: reason, example, and fix",
    )
    option("--rules", action="store_true", help="list all rules with their severity")
    return made


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def files_of(path: Path) -> Iterator[Path]:
    """Yield a file, or the *.py files of a folder, without hidden and `EXCLUDED` folders."""
    if not path.is_dir():
        yield path
    for folder, inner, names in os.walk(path):
        shown = (each for each in inner if not each.startswith("."))
        inner[:] = sorted({*shown} - EXCLUDED)
        yield from (
            Path(folder, name) for name in sorted(names) if name.endswith(".py")
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.explain or options.rules:
            print(page_of(options.explain))
            return 0
        if not options.paths:
            raise SettingError(
                "no path given: expected a file or a folder, e.g. ampsim lint train.py"
            )
        first = options.paths[0]
        start = first if first.is_dir() else first.parent
        codes = selected(start, select=options.select, ignore=options.ignore)
    except SettingError as error:
        print(f"ampsim lint: {error}", file=sys.stderr)
        return 2
    run = Run()
    for path in dict.fromkeys(
        file for named in options.paths for file in files_of(named)
    ):
        name = "<stdin>" if str(path) == "-" else str(path)
        try:
            findings, run.loops[name] = examine(read(path), name, codes)
            run.findings += findings
        except UnreadableError as error:
            run.errors[name] = f"{error.line}:{error.column}: {error}"
    if written := FORMATS[options.format](run):
        print(written)
    for name, text in run.errors.items():
        print(f"ampsim lint: {name}:{text}", file=sys.stderr)
    return run.status


def page_of(code: str | None) -> str:
    """Return the page of a rule, or without a code the list of all rules.

    Raises:
        SettingError: No rule has this code.
    """
    if code is None:
        return "\n".join(
            f"{each}  {rule.severity:7}  {rule.name}" for each, rule in RULES.items()
        )
    if code.upper() not in RULES:
        raise SettingError(f"no rule {code!r}: expected one of {', '.join(RULES)}")
    return explained(RULES[code.upper()]).rstrip()
