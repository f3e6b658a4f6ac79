"""The same experiments on seeds not used before."""

from figures.claims import CLAIMS, Claim
from figures.results import DATA
from paper import sources
from paper.values import Formula

SEEDS = "cpu-new-seeds"  # with the common kernels, made after the claims


def claims() -> list[Claim]:
    """Return the claims of the text."""
    return [CLAIMS[name] for name in sources.named("holds") if name in CLAIMS]


def on_new_seeds() -> list[Claim]:
    """Return the claims of the text that new seeds can test."""
    stems = {path.stem for path in (DATA / SEEDS).glob("*.jsonl")}
    return [claim for claim in claims() if claim.stem in stems]


NUMBERS = {
    "claims": Formula(lambda: len(claims()), "d"),
    "seeds.tested": Formula(lambda: len(on_new_seeds()), "d"),
}
