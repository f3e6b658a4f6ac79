"""Which rules to run: the options of the command line, or ``[tool.ampsim]`` of pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Any

from ampsim.lint.engine import RULES

KEYS = {"select", "ignore"}  # of the table


def selected(start: Path, **options: str | None) -> frozenset[str]:
    """Return the codes to run in a folder. An option overrides the setting of the same name.

    Raises:
        ValueError: A setting is not valid.
    """
    settings = {"select": ["ALL"], "ignore": []} | table_of(start)
    for key, text in options.items():
        if text is not None:
            settings[key] = text.replace(",", " ").split()
    ignored = codes_of("ignore", settings["ignore"])
    return codes_of("select", settings["select"]) - ignored


def codes_of(key: str, words: object) -> frozenset[str]:
    """Return the codes of a setting, which lists codes, prefixes of codes, or ALL.

    Raises:
        ValueError: The setting is not a list, or a word of it matches no code.
    """
    if not isinstance(words, list):
        raise ValueError(
            f'{key} = {words!r}: expected a list of codes, e.g. ["AMP101"]'
        )
    found = set[str]()
    for word in map(str, words):
        prefix = word.upper()
        if prefix == "ALL":
            prefix = "AMP"
        codes = {code for code in RULES if prefix and code.startswith(prefix)}
        if not codes:
            known = ", ".join(RULES)
            raise ValueError(
                f"{key}: no rule {word!r}: expected one of {known}, a prefix, or ALL"
            )
        found |= codes
    return frozenset(found)


def table_of(start: Path) -> dict[str, Any]:
    """Return ``[tool.ampsim]`` of the nearest pyproject.toml above a folder.

    Raises:
        ValueError: The file is not TOML, or the table is not valid.
    """
    folder = start.resolve()
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if file.is_file():
            return _table_in(file)
    return {}


def _table_in(file: Path) -> dict[str, Any]:
    try:
        tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {})
        table: dict[str, Any] = tools.get("ampsim", {})
        unknown = table.keys() - KEYS
    except (OSError, ValueError, AttributeError) as error:
        raise ValueError(f"{file}: {error}: expected TOML, and tables") from error
    for key in sorted(unknown):
        raise ValueError(f"{file}: tool.ampsim has {key!r}: expected select or ignore")
    return table
