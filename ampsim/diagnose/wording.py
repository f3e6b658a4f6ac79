"""Numbers in words, and a run's loss scale in two lines of text."""

import numpy as np

from ampsim.core.formats import binade
from ampsim.diagnose.evidence import Evidence
from ampsim.diagnose.history import History

BLOCKS = "▁▂▃▄▅▆▇█"


def counted(number: float, noun: str) -> str:
    """Return a number with its noun, which is regular.

    >>> counted(1, "skipped step"), counted(91, "backoff")
    ('1 skipped step', '91 backoffs')
    """
    return f"{number:g} {noun}" if number == 1 else f"{number:.15g} {noun}s"


def scale_text(scale: float) -> str:
    """Return a loss scale in few characters, exact if it is a power of two.

    >>> scale_text(65536.0), scale_text(2.0**20), scale_text(2.0**-185), scale_text(5.29e-23), scale_text(8e-323)
    ('65536', '2^20', '2^-185', '5.29e-23', '8e-323')
    """
    text = f"{scale:g}" if not 0 < scale < 2.0**-1022 else repr(float(scale))  # of few digits
    return text if float(text) == scale or binade(scale) is None else f"2^{binade(scale)}"


def sparkline(history: History, width: int) -> list[str]:
    """Return the logarithm of the loss scale over the steps as a line of blocks, and below it a mark for each skip.

    Returns:
        one or two strings of `width` characters at most, and a legend; nothing where no scale is known, or none but 0
        and inf.
    """
    drawn = history.last
    steps, scale = history.step[drawn], history.scale[drawn]
    known = np.flatnonzero((scale > 0) & (scale < np.inf))
    if not len(known):
        return []
    scale = np.log2(scale[known])
    begin, end = int(steps[0]), int(steps[-1]) + 1
    width = min(width, end - begin)
    edges = begin + (np.arange(width) + 1) * (end - begin) / width
    last = np.searchsorted(steps[known], edges) - 1  # in force at each column's end
    low, high = scale.min(), scale.max()
    level = np.round((scale - low) * (len(BLOCKS) - 1) / max(high - low, 1)).astype(int)
    line = "".join(BLOCKS[level[at]] if at >= 0 else " " for at in last)
    rows = steps[Evidence(**vars(history)).counted[drawn] > 0]
    skipped = {int((step - begin) * width // (end - begin)) for step in rows}
    marks = "".join("×" if column in skipped else " " for column in range(width)).rstrip()
    return [
        line,
        *([marks] if marks else []),
        f"loss scale, {scale_text(2.0 ** min(low, 1023))} to {scale_text(2.0 ** min(high, 1023))}"
        + ("; × skips" if marks else ""),
    ]
