"""``ampsim lint``: find loss-scaling problems in training loops. Exit status: 0 none, 1 findings, 2 error."""

import argparse
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ampsim.lint.engine import DEFAULT, RULES, lint
from ampsim.lint.output import FORMATS, explained
from ampsim.lint.source import UnreadableError, read

EXCLUDED = {"node_modules", "__pycache__", "site-packages", "build", "dist", "venv"}


class SettingError(ValueError):
    """An invalid setting. The text has its value and what was expected."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="ampsim lint",
        description="Find loss-scaling problems in training loops. Reads the source; runs nothing.",
    )
    made.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="file, or folder to search for *.py; - for standard input",
    )
    made.add_argument(
        "--select",
        metavar="CODES",
        help="run only these rules, e.g. AMP101,AMP103; ALL for all rules",
    )
    made.add_argument("--ignore", metavar="CODES", help="skip these rules")
    made.add_argument(
        "--format",
        choices=FORMATS,
        default="text",
        help="output format; github: workflow annotations",
    )
    made.add_argument(
        "--json", action="store_const", const="json", dest="format", help="short for --format json"
    )
    made.add_argument(
        "--explain", metavar="CODE", help="print the page of a rule: reason, example, and fix"
    )
    made.add_argument("--rules", action="store_true", help="list all rules")
    return made


def files_of(path: Path) -> Iterator[Path]:
    """Yield a file, or the *.py files of a folder, sorted, without hidden folders and `EXCLUDED`."""
    if not path.is_dir():
        yield path
    for folder, inner, names in os.walk(path):
        inner[:] = sorted(
            each for each in inner if not each.startswith(".") and each not in EXCLUDED
        )
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def codes_of(value: object, where: str) -> frozenset[str]:
    """Return the codes of a setting, which lists codes, prefixes of codes, or ALL.

    Raises:
        SettingError: The setting is not a list, or a word of it matches no code.
    """
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SettingError(f'{where} = {value!r}: expected a list of codes, e.g. ["AMP101"]')
    found = {
        word: {code for code in RULES if code.startswith(word.upper()) or word.upper() == "ALL"}
        for word in words
    }
    for word, codes in found.items():
        if not word or not codes:
            raise SettingError(
                f"{where}: no rule {word!r}: expected one of {', '.join(RULES)}, a prefix, or ALL"
            )
    return frozenset().union(*found.values())


def table_of(start: Path) -> tuple[dict[str, object], str]:
    """Return ``[tool.ampsim]`` of the nearest pyproject.toml above a folder, and the file's path.

    Raises:
        SettingError: The file is not TOML, or the table is not valid.
    """
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
                raise SettingError(f"{file}: {error}: expected TOML") from error
            if not isinstance(table, dict):
                raise SettingError(f"{file}: tool.ampsim = {table!r}; expected a table")
            if unknown := [*table.keys() - {"select", "ignore"}]:
                raise SettingError(
                    f"{file}: tool.ampsim has {unknown[0]!r}: expected select or ignore"
                )
            return table, str(file)
    return {}, ""


def selected(start: Path, select: str | None = None, ignore: str | None = None) -> frozenset[str]:
    """Return the codes to run in a folder. The command line overrides the file.

    Raises:
        SettingError: A setting is not valid.
    """
    table, file = table_of(start)
    options = {"select": select, "ignore": ignore}
    codes = {
        key: codes_of(value, f"--{key}") for key, value in options.items() if value is not None
    }
    codes = {
        key: codes_of(value, f"{file}: {key}") for key, value in table.items() if key not in codes
    } | codes
    return codes.get("select", DEFAULT) - codes.get("ignore", frozenset())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit status."""
    options = parser().parse_args(arguments)
    try:
        if options.explain or options.rules:
            print(page_of(options.explain))
            return 0
        if not (paths := [Path(path) for path in options.paths]):
            raise SettingError(
                "no path given: expected a file or a folder, e.g. ampsim lint train.py"
            )
        codes = selected(
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
    for name, text in errors.items():
        print(f"ampsim lint: {name}:{text}", file=sys.stderr)
    return 2 if errors else 1 if found else 0


def page_of(code: str | None) -> str:
    """Return the page of a rule, or without a code the list of all rules.

    Raises:
        SettingError: No rule has this code.
    """
    if code is None:
        off = "  (off by default)"
        return "\n".join(
            f"{code}  {rule.name}{'' if rule.on else off}" for code, rule in RULES.items()
        )
    if code.upper() not in RULES:
        raise SettingError(f"no rule {code!r}: expected one of {', '.join(RULES)}")
    return explained(RULES[code.upper()]).rstrip()
