"""``ampsim lint``: name what breaks a law in training loops. Exit status: 0 clean, 1 findings, 2 error."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ampsim.lint.engine import lint
from ampsim.lint.output import FORMATS, explained
from ampsim.lint.rule import Finding
from ampsim.lint.rules import RULES
from ampsim.lint.settings import SettingError, asked
from ampsim.lint.source import UnreadableError, read

LEFT_OUT = {"node_modules", "__pycache__", "site-packages", "build", "dist", "venv"}


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        prog="ampsim lint", description="Read training loops without running them, and name what breaks a law."
    )
    made.add_argument(
        "paths", nargs="*", metavar="PATH", help="files, and folders with *.py below; - is standard input"
    )
    made.add_argument("--select", metavar="CODES", help="ask these alone, e.g. AMP101,AMP103; ALL asks every rule")
    made.add_argument("--ignore", metavar="CODES", help="do not ask these")
    made.add_argument("--format", choices=FORMATS, default="text", help="github: annotations of a workflow")
    made.add_argument("--json", action="store_const", const="json", dest="format", help="as --format json")
    made.add_argument("--explain", metavar="CODE", help="say what a rule asks, and show a wrong and a right loop")
    made.add_argument("--rules", action="store_true", help="list the rules")
    return made


def files_of(path: Path) -> Iterator[Path]:
    """Yield a file, or the *.py below a folder, in order, but for hidden folders and those of tools."""
    if not path.is_dir():
        yield path
        return
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(each for each in inner if not each.startswith(".") and each not in LEFT_OUT)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def judged(paths: Sequence[Path], codes: frozenset[str]) -> tuple[list[Finding], dict[str, str]]:
    """Return the findings in files and folders, and what is wrong with the files that cannot be read."""
    found: list[Finding] = []
    errors: dict[str, str] = {}
    for path in dict.fromkeys(file for named in paths for file in files_of(named)):
        try:
            found += lint(read(path), "<stdin>" if str(path) == "-" else str(path), codes)
        except UnreadableError as error:
            errors[str(path)] = f"{error.line}:{error.column}: {error}"
    return found, errors


def say(text: str) -> None:
    """Print a text; a reader that has gone changes nothing of the exit status."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def told(code: str) -> int:
    """Print the page of a rule; return the exit status."""
    if rule := RULES.get(code.upper()):
        say(explained(rule).rstrip())
        return 0
    print(f"ampsim lint: no rule {code!r}; expected one of {', '.join(RULES)}", file=sys.stderr)
    return 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge what the command line names; return the exit status."""
    options = parser().parse_args(arguments)
    if options.explain:
        return told(options.explain)
    if options.rules:
        print(
            "\n".join(f"{code}  {rule.name}{'' if rule.on else '  (off by default)'}" for code, rule in RULES.items())
        )
        return 0
    paths = [Path(path) for path in options.paths]
    if not paths:
        print("ampsim lint: no file was named; expected some, e.g. ampsim lint train.py", file=sys.stderr)
        return 2
    try:
        first = paths[0] if paths[0].is_dir() else paths[0].parent
        found, errors = judged(paths, asked(first, options.select, options.ignore))
    except SettingError as error:
        print(f"ampsim lint: {error}", file=sys.stderr)
        return 2
    if written := FORMATS[options.format](found, errors):
        say(written)
    for path, said in errors.items():
        print(f"ampsim lint: {path}:{said}", file=sys.stderr)
    return 2 if errors else 1 if found else 0
