"""Texts for users have one word per concept. `USE` maps words that are replaced to words to use."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ampsim.cli import COMMANDS, build

ROOT = Path(__file__).parents[1]
GLOBS = """README.md docs/**/*.md figures/README.md figures/*_page.html paper/text/*.typ
ampsim/lint/rules.toml ampsim/runs/*.toml ampsim/runs/*/*.toml ampsim/runs/*/*.html"""
PATHS = {
    path.relative_to(ROOT).as_posix()
    for glob in GLOBS.split()
    for path in ROOT.glob(glob)
}
HELPS = [
    f"ampsim {name} --help"
    for name in ("", *COMMANDS, "traces export", "traces verify")
]
USE = """
laws?: check, property | atlas: conformance table | peers?|strangers?: framework, third-party scaler
kits?: conformance suite | planted: seeded | drawn: generated, sampled | houses?: repository
anew: again, from scratch | rooms?: package | doors?: command | for ever|forever: indefinitely
mend(s|ed|ing)?|cure[sd]?: fix | acquit\\w*: clear | accus(e|es|ed|ing): flag | sick: unhealthy
spoil(s|ed|t)?: corrupted | refills?: hysteresis reset | scales? in force: current loss scale
streaks?: growth tracker | patience: hysteresis | clean steps?: finite step | not asked: skipped
(made|makes?) zero: underflow | bears?: shows, reports, has | floors?: min_scale, layer
ceilings?: overflow threshold, max_scale | left out: skipped | emitted tests?: standalone test
refuse[sd]?|refusals?: raise, skip | judge[sd]?|judging|held to|holds? to: check, review
"""
WORDS = [
    (
        re.compile(rf"(?<![a-z])({old})(?![a-z])".replace(" ", r"\s+"), re.IGNORECASE),
        new,
    )
    for old, new in (entry.split(": ") for entry in re.split(r" \| |\n", USE.strip()))
]
# Links, names in code, what a program matches or quotes, and phrases with another meaning.
IGNORED = r"""https?://[^\s)"]+ | \#\w+\("[^"\n]*"\) | "test_\w+" | @[\w-]+
| judge_\w+ | patience\ margin | ^\[statement\..*$ | ^(pattern|words?|source|thread)\ =\ .*$
| (power|scaling|renewal)\ laws? | (math|torch|np)\.floor
| \|\ floor\ \| | floor\ is\ the\ least\ work | beside\ a\ floor"""
BLANKED = re.compile(IGNORED, re.MULTILINE | re.IGNORECASE | re.VERBOSE)


def text_of(name: str) -> str:
    """Return a file, or the output of a command."""
    if name in HELPS:
        result = CliRunner().invoke(build(), name.split()[1:])
        assert result.exit_code == 0, result.output
        return result.output
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*sorted(PATHS - {"docs/changelog.md"}), *HELPS])
def test_a_text_uses_the_words_of_the_glossary(name: str) -> None:
    text = BLANKED.sub(lambda ignored: " " * len(ignored[0]), text_of(name))
    hits = [
        (text.count("\n", 0, hit.start()) + 1, hit[0], new)
        for old, new in WORDS
        for hit in old.finditer(text)
    ]
    assert not hits, "".join(
        f"\n{name}:{line}: {old!r}, use: {new}" for line, old, new in hits
    )
