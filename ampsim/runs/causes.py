"""Likely causes that stand in a log besides its numbers; see ``causes.toml``."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

OF_NONFINITE = frozenset(
    """loss-not-finite loss-never-finite loss-zero-hides-nan never-stepped scale-collapse scale-at-minimum
    norm-not-finite evaluation-not-finite static-scale-overflows skips-too-often skipped-to-the-end
    overflow-at-low-scale""".split()  # noqa: SIM905 - a list of 12 names
)
"""Findings that these causes explain."""


@cache
def _causes() -> list[tuple[re.Pattern[str], str]]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [(re.compile(row["pattern"], re.IGNORECASE), row["advice"]) for row in table["cause"]]


def advice_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the advice whose causes stand in the texts of a log."""
    text = "\n".join(texts)
    return tuple(advice for pattern, advice in _causes() if pattern.search(text))
