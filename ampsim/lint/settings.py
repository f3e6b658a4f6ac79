"""Which rules are asked: ``[tool.ampsim]`` of the nearest pyproject.toml, and what the command line says beside it."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

from ampsim.lint.engine import DEFAULT
from ampsim.lint.rules import RULES


class SettingError(ValueError):
    """A setting that cannot be followed: says its value, what was expected, and the cure."""


def codes_of(said: object, where: str) -> frozenset[str]:
    """Return the codes that a setting names: codes, the beginnings of codes, or ALL. SettingError: it names none."""
    words = said.replace(",", " ").split() if isinstance(said, str) else said
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SettingError(f'{where} = {said!r}: expected a list of codes, as ["AMP101"]')
    found: set[str] = set()
    for word in words:
        begins = "AMP" if word.upper() == "ALL" else word.upper()
        codes = {code for code in RULES if begins.startswith("AMP") and code.startswith(begins)}
        if not codes:
            raise SettingError(
                f"{where}: no rule {word!r}; expected one of {', '.join(RULES)}, the beginning of some, or ALL"
            )
        found |= codes
    return frozenset(found)


def table_of(start: Path) -> tuple[dict[str, object], str]:
    """Return the table of the nearest pyproject.toml at or above a folder, and its path. SettingError: no TOML."""
    for folder in (start.resolve(), *start.resolve().parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                table = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("ampsim", {})
            except (OSError, ValueError) as error:
                raise SettingError(f"{file}: {error}; expected TOML") from error
            if not isinstance(table, dict):
                raise SettingError(f"{file}: tool.ampsim = {table!r}; expected a table")
            if unknown := [*table.keys() - {"select", "ignore"}]:
                raise SettingError(f"{file}: tool.ampsim has {unknown[0]!r}; expected select or ignore")
            return table, str(file)
    return {}, ""


def asked(start: Path, select: str | None = None, ignore: str | None = None) -> frozenset[str]:
    """Return the codes that are asked in a folder; the command line counts more than the file. SettingError: wrong."""
    table, file = table_of(start)
    chosen = DEFAULT
    if select is not None or "select" in table:
        chosen = codes_of(*((select, "--select") if select is not None else (table["select"], f"{file}: select")))
    left_out: Iterable[str] = ()
    if ignore is not None or "ignore" in table:
        left_out = codes_of(*((ignore, "--ignore") if ignore is not None else (table["ignore"], f"{file}: ignore")))
    return chosen - frozenset(left_out)
