"""Join lines that a terminal wrapped at its width."""

import itertools
import re
from collections.abc import Iterable, Iterator

NARROWEST, WIDEST = 60, 400
"""Widths of terminals, in characters."""
SAMPLE = 2000
"""Lines from which the width is found."""
_START = re.compile(r"\d+")


def joined(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield numbered lines, joined where a terminal wrapped them.

    A log is wrapped if many lines have exactly the greatest length, and the line after such a line
    begins like no other line. A joined line has the number of its first part.
    """
    lines = iter(lines)
    sample = list(itertools.islice(lines, SAMPLE))
    width, starts = _width([text for _, text in sample])
    everything = itertools.chain(sample, lines)
    if not width:
        yield from everything
        return
    number, text = 0, ""
    for at, part in everything:
        if text and len(text) % width == 0 and _start(part) not in starts:
            text += part
            continue
        if text:
            yield number, text
        number, text = at, part
    if text:
        yield number, text


def _width(texts: list[str]) -> tuple[int, set[str]]:
    """Return the width at which lines are wrapped, 0 if they are not; and how lines begin that
    continue none.
    """
    longest = max(map(len, texts), default=0)
    full = [at for at, text in enumerate(texts[:-1]) if len(text) == longest]
    if (
        not NARROWEST <= longest <= WIDEST
        or len(full) < 3
        or 5 * len(full) < len(texts) - 1
    ):
        return 0, set()
    if len({texts[at] for at in full}) == 1:
        return 0, set()  # one sentence again and again
    after = {at + 1 for at in full}
    starts = {_start(text) for at, text in enumerate(texts) if at not in after}
    wrapped = [at for at in full if _start(texts[at + 1]) not in starts]
    return (longest if 2 * len(wrapped) > len(full) else 0), starts


def _start(text: str) -> str:
    return _START.sub("0", text[:24])[:6]
