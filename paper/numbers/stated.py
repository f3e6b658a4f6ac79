"""The claims of the text."""

from figures.claims import CLAIMS, Claim
from paper import sources
from paper.values import Formula


def claims() -> list[Claim]:
    """Return the claims of the text."""
    return [CLAIMS[name] for name in sources.named("holds") if name in CLAIMS]


NUMBERS = {"claims": Formula(lambda: len(claims()), "d")}
