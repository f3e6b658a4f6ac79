"""The rules, by code: one function per rule, in the file of what it asks about."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from ampsim.lint.rule import FINDERS, Rule
from ampsim.lint.rules import gradients, scaler, skips, windows

FILES = (skips, gradients, scaler, windows)
TEXTS = tomllib.loads((Path(__file__).parents[1] / "rules.toml").read_text(encoding="utf-8"))
RULES: Mapping[str, Rule] = {
    code: Rule(code=code, find=FINDERS[code], **text | {"sentence": text["sentence"].replace("\n", " ")})
    for code, text in TEXTS.items()
}
