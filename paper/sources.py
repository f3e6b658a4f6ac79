"""What the paper's numbers are functions of: data files, and recorded traces.

A data file is *fresh* when its experiment, with today's source, defaults and inputs, would write the same header.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Required, TypedDict

from ampsim import records
from figures import results
from figures.results import Result

ROOT = Path(__file__).parent.parent
DATA = Path("experiments") / "data" / "cpu"
TRACES = Path("tests") / "traces"


class Use(TypedDict, total=False):
    """One thing in the compiled text."""

    kind: Required[str]
    name: Required[str]
    text: str  # of a number: as it is printed
    tests: list[str]  # of a theorem


Uses = Mapping[str, Sequence[Use]]  # by kind


class PaperError(ValueError):
    """A reason why the paper cannot be built: what is wrong, what was expected and the cure."""


@functools.cache
def load(stem: str, root: Path = ROOT) -> Result:
    """Return what a stem's numbers are functions of: its data file, or for "traces" what these hold.

    A stem may name another folder of data: `staleness@cpu-new-seeds`.

    Raises:
        PaperError: no such file, or one that cannot be read.
    """
    try:
        name, _, folder = stem.partition("@")
        data = (root / DATA).with_name(folder or DATA.name)
        return results.traces(root / TRACES) if stem == "traces" else results.load(name, data)
    except (FileNotFoundError, records.DamagedFileError) as error:
        raise PaperError(str(error).replace(f"{root}/", "")) from None


def claims(root: Path = ROOT) -> list[str]:
    """Return the names of the claims that the text marks with ``#holds``, each once."""
    texts = sorted((root / "paper" / "text").glob("*.typ"))
    found = [re.findall(r'#holds\("([^"]+)"\)', path.read_text(encoding="utf-8")) for path in texts]
    return list(dict.fromkeys(name for names in found for name in names))


def claims_sha256() -> str:
    """Return the hash of the claims and of what they are made of, which data made later has in its header."""
    from experiments.runner import provenance  # it loads what runs experiments

    return provenance.claims_sha256()


def known_before(stems: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return those stems whose data was made when the claims were what they are now; traces were not."""
    frozen = claims_sha256()
    return [stem for stem in stems if stem != "traces" and load(stem, root).provenance.get("claims_sha256") == frozen]


def stale(stems: Iterable[str], root: Path = ROOT) -> list[str]:
    """Name the data files that their experiments would not write today, each with the reason and the cure.

    Those of other folders are what an experiment wrote once, and stay.
    """
    from experiments.runner import provenance  # it loads what runs experiments

    return [
        f"{DATA / stem}.jsonl: stale, {why}; `python -m experiments.{stem} --force`"
        for stem in stems
        if stem != "traces" and "@" not in stem and (why := provenance.why_stale(stem, load(stem, root).provenance))
    ]
