"""A law: one sentence, and a function over a `Trial` that fails where it does not hold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis.strategies import SearchStrategy

from ampsim.testing.law import sentence

EXAMPLES = 12


@dataclass(frozen=True)
class Law:
    """One law.

    Attributes:
        name: what `Peer.deviations`, the atlas and a test call it.
        sentence: what must be true.
        function: drives a `Trial` and requires it.
        draws: strategies, by the function's parameters; the first value of each is the shortest.
        found: examples that come first.
        choice: why a peer that does otherwise has no defect, whichever it is; "" where it has one.
        words: what an upstream report of it would say, for a search.
    """

    name: str
    sentence: str = field(repr=False)
    function: Callable[..., None] = field(repr=False)
    draws: Mapping[str, SearchStrategy[object]] = field(repr=False)
    found: Sequence[Mapping[str, object]] = field(default=(), repr=False)
    choice: str = field(default="", repr=False)
    words: str = field(default="", repr=False)


LAWS: dict[str, Law] = {}  # by name, in the order of the atlas


def law(
    words: str, *, choice: str = "", found: Sequence[Mapping[str, object]] = (), **draws: SearchStrategy[object]
) -> Callable[[Callable[..., None]], Law]:
    """Make a law of a function of a `Trial` and of what `draws` draws; see `Law` for the rest."""

    def register(function: Callable[..., None]) -> Law:
        name = function.__name__
        LAWS[name] = Law(name, sentence(function), function, draws, found, choice, words)
        return LAWS[name]

    return register
