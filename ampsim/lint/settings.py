"""Which rules to run: the options of the command line, or ``[tool.ampsim]`` of pyproject.toml."""

import tomllib
from pathlib import Path

from ampsim.lint.engine import RULES

_KEYS = {"select", "ignore"}


class SettingError(ValueError):
    """An invalid setting. The text has its value and what was expected."""


def selected(start: Path, select: str | None = None, ignore: str | None = None) -> frozenset[str]:
    """Return the codes to run in a folder. The command line overrides the file.

    Raises:
        SettingError: A setting is not valid.
    """
    table, file = table_of(start)
    codes = {"select": frozenset(RULES), "ignore": frozenset[str]()}
    for key, option in (("select", select), ("ignore", ignore)):
        if option is not None:
            codes[key] = codes_of(option.replace(",", " ").split(), f"--{key}")
        elif key in table:
            codes[key] = codes_of(table[key], f"{file}: {key}")
    return codes["select"] - codes["ignore"]


def codes_of(words: object, where: str) -> frozenset[str]:
    """Return the codes of a setting, which lists codes, prefixes of codes, or ALL.

    Raises:
        SettingError: The setting is not a list, or a word of it matches no code.
    """
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SettingError(f'{where} = {words!r}: expected a list of codes, e.g. ["AMP101"]')
    found = set[str]()
    for word in words:
        prefix = "AMP" if word.upper() == "ALL" else word.upper()
        codes = {code for code in RULES if prefix and code.startswith(prefix)}
        if not codes:
            known = ", ".join(RULES)
            raise SettingError(
                f"{where}: no rule {word!r}: expected one of {known}, a prefix, or ALL"
            )
        found |= codes
    return frozenset(found)


def table_of(start: Path) -> tuple[dict[str, object], str]:
    """Return ``[tool.ampsim]`` of the nearest pyproject.toml above a folder, and the file's path.

    Raises:
        SettingError: The file is not TOML, or the table is not valid.
    """
    folders = (start.resolve(), *start.resolve().parents)
    files = (folder / "pyproject.toml" for folder in folders)
    file = next(filter(Path.is_file, files), None)
    if file is None:
        return {}, ""
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError) as error:
        raise SettingError(f"{file}: {error}: expected TOML") from error
    table = tools.get("ampsim", {})
    if not isinstance(table, dict):
        raise SettingError(f"{file}: tool.ampsim = {table!r}; expected a table")
    if unknown := [*table.keys() - _KEYS]:
        raise SettingError(f"{file}: tool.ampsim has {unknown[0]!r}: expected select or ignore")
    return table, str(file)
