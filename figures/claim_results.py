"""Every claim, evaluated on the committed data of each processor and on your own data.

For `cpu` and `cpu-new-seeds` the data itself is committed. For other processors and devices only
the outcomes are, in `verdicts.jsonl` of their folder. `write` computes them with the same `judge`.
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ampsim.core.files import DamagedFileError
from ampsim.core.json_lines import Record
from ampsim.runs.record import data_file
from figures import results
from figures.claims import CLAIMS, Claim

HERE = "here"
VERDICTS = "verdicts.jsonl"
STATES = ("does not hold", "not evaluated", "holds")  # in the order of the lines


class Verdict(NamedTuple):
    """The outcome of one claim on one data file."""

    now: str  # the numbers in words, or why the claim could not be evaluated
    holds: bool | None  # None: it could not be evaluated


class Judged(NamedTuple):
    """A claim with its outcomes, by the name of the data folder."""

    name: str
    claim: Claim
    verdicts: Mapping[str, Verdict]

    def state(self) -> str:
        """Return whether the claim holds wherever it was evaluated."""
        outcomes = {verdict.holds for verdict in self.verdicts.values()}
        if False in outcomes:
            return "does not hold"
        return "holds" if True in outcomes else "not evaluated"


def judge(claim: Claim, *data: Path) -> Verdict:
    """Evaluate a claim on the data of these folders; by default on the committed data."""
    try:
        found = claim.judge(results.load(claim.stem, *data))
    except FileNotFoundError:
        return Verdict("not run", None)
    except (
        DamagedFileError,
        LookupError,
        TypeError,
        ArithmeticError,
        ValueError,
        AttributeError,
    ) as error:
        return Verdict(
            f"cannot be evaluated: {type(error).__name__}: {error}"[:100], None
        )
    return Verdict(found.now, found.holds)


def judge_folder(folder: Path) -> dict[str, Verdict]:
    """Return the outcome of each claim on a folder: from its data, or as recorded in it.

    Args:
        folder: A folder of data files, or one with `verdicts.jsonl`.

    Raises:
        ampsim.core.files.DamagedFileError: `verdicts.jsonl` cannot be read as written.
    """
    if not (folder / VERDICTS).exists():
        return {name: judge(claim, folder) for name, claim in CLAIMS.items()}
    _, rows = data_file.read(folder / VERDICTS)
    recorded = {row["claim"]: Verdict(row["number"], row["holds"]) for row in rows}
    missing = Verdict("not recorded", None)
    return {name: recorded.get(name, missing) for name in CLAIMS}


def write(folder: Path, path: Path) -> int:
    """Write the outcomes of a folder of data files; return how many claims were evaluated.

    The provenance keeps, per data file, what its own provenance says of the commit, the processor,
    and the kernels (their settings and digest, null where the file was made before they were
    recorded).

    Args:
        folder: A folder of data files.
        path: File to write, replaced at once.
    """
    kept = ("commit", "cpu", "device", "versions", "kernels", "bits", "date")
    origins = {
        data.stem: data_file.read_provenance(data)
        for data in sorted(folder.glob("*.jsonl"))
    }
    files = {
        stem: {name: origin.get(name) for name in kept}
        for stem, origin in origins.items()
    }
    rows = [*_rows(judge_folder(folder))]
    data_file.write(
        path,
        {"script": "figures/claim_results.py", "folder": folder.name, "files": files},
        rows,
    )
    return len(rows)


def _rows(found: Mapping[str, Verdict]) -> Iterable[Record]:
    """Yield a record per claim that was evaluated; recorded traces belong to no folder."""
    for name, verdict in found.items():
        claim = CLAIMS[name]
        if verdict.holds is not None and claim.stem != "traces":
            yield {
                "claim": name,
                "stem": claim.stem,
                "number": verdict.now,
                "holds": verdict.holds,
            }


def judge_all(own: Path | None = None) -> Iterator[Judged]:
    """Yield every claim with its outcome on each committed folder, and on your own as `here`."""
    folders = {folder.name: folder for folder in results.processors()} | (
        {HERE: own} if own else {}
    )
    found = {label: judge_folder(folder) for label, folder in folders.items()}
    for name, claim in CLAIMS.items():
        yield Judged(
            name, claim, {label: verdicts[name] for label, verdicts in found.items()}
        )


def lines(judged: Sequence[Judged], *, sentences: bool = False) -> Iterator[str]:
    """Yield a line per claim, those that do not hold first, then a line per data folder.

    Args:
        judged: The claims with their outcomes.
        sentences: Also yield the sentence of each claim, below its line.
    """
    labels = list(judged[0].verdicts)
    shown = HERE if HERE in labels else labels[0]
    for row in sorted(judged, key=lambda row: STATES.index(row.state())):
        number = textwrap.shorten(row.verdicts[shown].now, 72, placeholder=" ...")
        refuted = [label for label in labels if row.verdicts[label].holds is False]
        where = f" (not on {', '.join(refuted)})" if refuted else ""
        yield f"{row.state():<14} {row.name:<22} {number}{where}"
        if sentences:
            yield f"    {row.claim.sentence}"
    yield ""
    for label in labels:
        yield summary(judged, label)


def summary(judged: Sequence[Judged], label: str) -> str:
    """Return how many claims hold on one folder's data, and the names of those that do not."""
    found = {row.name: row.verdicts[label] for row in judged}
    asked = [name for name, verdict in found.items() if verdict.holds is not None]
    broken = [name for name in asked if not found[name].holds]
    unclear = [
        name
        for name, verdict in found.items()
        if verdict.now.startswith("cannot be evaluated")
    ]
    text = f"{label}: {len(asked) - len(broken)} of the {len(asked)} claims that can be evaluated hold"
    text += f"; do not hold: {', '.join(broken)}" if broken else ""
    return text + (f"; cannot be evaluated: {', '.join(unclear)}" if unclear else "")
