"""``ampsim lint``: name what breaks a check in training loops. Exit status: 0 clean, 1 findings, 2 error."""

import argparse
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ampsim.lint.engine import DEFAULT, RULES, lint
from ampsim.lint.output import FORMATS, explained
from ampsim.lint.source import UnreadableError, read

LEFT_OUT = {"node_modules", "__pycache__", "site-packages", "build", "dist", "venv"}


class SettingError(ValueError):
    """A setting that cannot be followed: says its value, what was expected, and the cure."""


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        prog="ampsim lint",
        description="Read training loops without running them, and name what breaks a check.",
    )
    made.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files, folders with *.py below, - for standard input",
    )
    made.add_argument(
        "--select", metavar="CODES", help="ask these alone, e.g. AMP101,AMP103; ALL asks every rule"
    )
    made.add_argument("--ignore", metavar="CODES", help="do not ask these")
    made.add_argument(
        "--format", choices=FORMATS, default="text", help="github: annotations of a workflow"
    )
    made.add_argument(
        "--json", action="store_const", const="json", dest="format", help="as --format json"
    )
    made.add_argument(
        "--explain", metavar="CODE", help="say what a rule asks, and show a wrong and a right loop"
    )
    made.add_argument("--rules", action="store_true", help="list the rules")
    return made


def files_of(path: Path) -> Iterator[Path]:
    """Yield a file, or the *.py below a folder, in order, but for hidden folders and those of tools."""
    if not path.is_dir():
        yield path
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(
            each for each in inner if not each.startswith(".") and each not in LEFT_OUT
        )
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def codes_of(said: object, where: str) -> frozenset[str]:
    """Return the codes that a setting names: codes, the beginnings of codes, or ALL. SettingError: it names none."""
    words = said.replace(",", " ").split() if isinstance(said, str) else said
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SettingError(f'{where} = {said!r}: expected a list of codes, as ["AMP101"]')
    found = {
        word: {code for code in RULES if code.startswith(word.upper()) or word.upper() == "ALL"}
        for word in words
    }
    for word, codes in found.items():
        if not word or not codes:
            raise SettingError(
                f"{where}: no rule {word!r}; expected one of {', '.join(RULES)}, their beginning, or ALL"
            )
    return frozenset().union(*found.values())


def table_of(start: Path) -> tuple[dict[str, object], str]:
    """Return ``[tool.ampsim]`` of the nearest pyproject.toml above a folder, and its path. SettingError: wrong."""
    for file in (
        folder / "pyproject.toml" for folder in (start.resolve(), *start.resolve().parents)
    ):
        if file.is_file():
            try:
                table = (
                    tomllib.loads(file.read_text(encoding="utf-8"))
                    .get("tool", {})
                    .get("ampsim", {})
                )
            except (OSError, ValueError) as error:
                raise SettingError(f"{file}: {error}; expected TOML") from error
            if not isinstance(table, dict):
                raise SettingError(f"{file}: tool.ampsim = {table!r}; expected a table")
            if unknown := [*table.keys() - {"select", "ignore"}]:
                raise SettingError(
                    f"{file}: tool.ampsim has {unknown[0]!r}; expected select or ignore"
                )
            return table, str(file)
    return {}, ""


def asked(start: Path, select: str | None = None, ignore: str | None = None) -> frozenset[str]:
    """Return the codes that are asked in a folder; the command line counts more than the file. SettingError: wrong."""
    table, file = table_of(start)
    said = {"select": select, "ignore": ignore}
    found = {key: codes_of(value, f"--{key}") for key, value in said.items() if value is not None}
    found = {
        key: codes_of(value, f"{file}: {key}") for key, value in table.items() if key not in found
    } | found
    return found.get("select", DEFAULT) - found.get("ignore", frozenset())


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge what the command line names; return the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.explain or options.rules:
            print(page_of(options.explain))
            return 0
        if not (paths := [Path(path) for path in options.paths]):
            raise SettingError("no file was named; expected some, e.g. ampsim lint train.py")
        codes = asked(
            paths[0] if paths[0].is_dir() else paths[0].parent, options.select, options.ignore
        )
    except SettingError as error:
        print(f"ampsim lint: {error}", file=sys.stderr)
        return 2
    found, errors = [], {}
    for path in dict.fromkeys(file for named in paths for file in files_of(named)):
        try:
            found += lint(read(path), "<stdin>" if str(path) == "-" else str(path), codes)
        except UnreadableError as error:
            errors[str(path)] = f"{error.line}:{error.column}: {error}"
    if written := FORMATS[options.format](found, errors):
        print(written)
    for name, said in errors.items():
        print(f"ampsim lint: {name}:{said}", file=sys.stderr)
    return 2 if errors else 1 if found else 0


def page_of(code: str | None) -> str:
    """Return the page of a rule, or the list of all. SettingError: there is none of this code."""
    if code is None:
        off = "  (off by default)"
        return "\n".join(
            f"{code}  {rule.name}{'' if rule.on else off}" for code, rule in RULES.items()
        )
    if code.upper() not in RULES:
        raise SettingError(f"no rule {code!r}; expected one of {', '.join(RULES)}")
    return explained(RULES[code.upper()]).rstrip()
