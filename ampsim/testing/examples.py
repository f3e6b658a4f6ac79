"""The examples that a check is asked on, and the shortest one that fails.

Hypothesis draws the same for a check every time, but to draw takes about as long as to run, and many come twice. So a
list of examples is drawn once in a process, for all scalers and for all checks that draw alike, and holds each once.
Only when one fails does hypothesis ask the check: it draws the same ones up to that, and then shrinks it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

SEED = 1  # any number: without one, hypothesis makes it of this file's text, and an edit would draw other examples
SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)
Draws = tuple[tuple[str, SearchStrategy[object]], ...]  # strategies, by the names of parameters
Drawn = Mapping[str, object]


def run(
    example: Callable[..., None],
    draws: Draws,
    found: Sequence[Drawn],
    count: int,
    last: Sequence[Drawn] = (),
) -> None:
    """Call `example` with each of `found`, then with what is drawn; raise what the shortest one that fails raises.

    Args:
        example: takes what `draws` names; the last one that it fails is the shortest.
        draws: strategies; where there are none there is one example.
        found: examples that come first, and are as short as they can be.
        count: examples to draw, at most.
        last: examples that come behind these.
    """
    for drawn in found:
        example(**drawn)
    if not draws:
        example()
        return
    passed = set()
    try:
        for name, drawn in drawn_by(draws, count).items():
            example(**drawn)
            passed.add(name)
    except (Exception, SystemExit):
        test(lambda **drawn: None if repr(drawn) in passed else example(**drawn), draws, count)()
        raise  # it passes the second time
    for drawn in last:
        example(**drawn)


@cache
def drawn_by(draws: Draws, count: int) -> Mapping[str, Drawn]:
    """Return what hypothesis draws, each once, by how it is written."""
    examples: dict[str, Drawn] = {}
    test(lambda **drawn: examples.setdefault(repr(drawn), drawn), draws, count)()
    return examples


def test(example: Callable[..., object], draws: Draws, count: int) -> Callable[[], None]:
    """Return a function that runs hypothesis on `example`."""

    def run_one(**drawn: object) -> None:
        example(**drawn)

    return seed(SEED)(settings(SETTINGS, max_examples=count)(given(**dict(draws))(run_one)))
