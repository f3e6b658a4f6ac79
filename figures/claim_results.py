"""Every claim, judged by the committed data of each processor and by data of one's own: a table for the terminal.

Of `cpu` and `cpu-new-seeds` the data itself is committed. Of any other processor or device only the verdicts are, in
`verdicts.jsonl` of its folder, which `write` makes with the same `judge`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from ampsim import records
from ampsim.records import DamagedFileError, Record
from figures import results
from figures.claims import CLAIMS, Claim

HERE = "here"
VERDICTS = "verdicts.jsonl"


class Verdict(NamedTuple):
    """An answer of one data file to a claim."""

    now: str  # the numbers in words; where it could not be judged, why
    holds: bool | None  # None: it could not be judged


class Judged(NamedTuple):
    """A claim with its verdicts, by the name of the folder that the data came from."""

    name: str
    claim: Claim
    verdicts: Mapping[str, Verdict]


def judge(claim: Claim, *data: Path) -> Verdict:
    """Return what the data says of a claim, the committed if no folder is named; no answer is a verdict too."""
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
        return Verdict(f"cannot be judged: {type(error).__name__}: {error}"[:100], None)
    return Verdict(found.now, found.holds)


def judge_folder(folder: Path) -> dict[str, Verdict]:
    """Return the verdict of a folder on each claim: from its data, or as recorded where only verdicts are kept.

    Args:
        folder: A folder of data files, or one with `verdicts.jsonl`.

    Raises:
        ampsim.records.DamagedFileError: `verdicts.jsonl` cannot be read as written.
    """
    if not (folder / VERDICTS).exists():
        return {name: judge(claim, folder) for name, claim in CLAIMS.items()}
    _, rows = records.read(folder / VERDICTS)
    recorded = {row["claim"]: Verdict(row["number"], row["holds"]) for row in rows}
    missing = Verdict("not recorded", None)
    return {name: recorded.get(name, missing) for name in CLAIMS}


def write(folder: Path, path: Path) -> int:
    """Write the verdicts of a folder of data files, and return how many claims its data could judge.

    The provenance keeps, per data file, what its own provenance says of the commit, the processor, and the kernels
    (their settings and digest, null where the file was made before they were recorded).

    Args:
        folder: A folder of data files.
        path: File to write, replaced at once.
    """
    kept = ("commit", "cpu", "device", "versions", "kernels", "bits", "date")
    origins = {data.stem: records.read_provenance(data) for data in sorted(folder.glob("*.jsonl"))}
    files = {stem: {name: origin.get(name) for name in kept} for stem, origin in origins.items()}
    rows = [*_rows(judge_folder(folder))]
    records.write(
        path, {"script": "figures/claim_results.py", "folder": folder.name, "files": files}, rows
    )
    return len(rows)


def _rows(found: Mapping[str, Verdict]) -> Iterable[Record]:
    """Yield a record per claim that the data of a folder could judge; recorded traces belong to no folder."""
    for name, verdict in found.items():
        claim = CLAIMS[name]
        if verdict.holds is not None and claim.stem != "traces":
            yield {"claim": name, "stem": claim.stem, "number": verdict.now, "holds": verdict.holds}


def judge_all(own: Path | None = None) -> Iterator[Judged]:
    """Yield every claim, judged by each committed folder of a processor, and as `here` by a folder of one's own."""
    folders = {folder.name: folder for folder in results.processors()} | (
        {HERE: own} if own else {}
    )
    found = {label: judge_folder(folder) for label, folder in folders.items()}
    for name, claim in CLAIMS.items():
        yield Judged(name, claim, {label: verdicts[name] for label, verdicts in found.items()})


def table(judged: Sequence[Judged]) -> Table:
    """Return the claims with the committed number, the number here, and on which data each holds."""
    labels = list(judged[0].verdicts)
    own = HERE in labels
    shown = Table(title="Claims", show_lines=True)
    for column in (
        "claim",
        "committed number",
        *["number here"] * own,
        *(f"holds: {label}" for label in labels),
    ):
        shown.add_column(
            column, max_width=9 if column.startswith("holds") else None, overflow="fold"
        )
    for row in judged:
        committed = row.verdicts[labels[0]].now
        here = (
            [row.verdicts[HERE].now if row.verdicts[HERE].now != committed else "the same"]
            if own
            else []
        )
        marks = (
            {True: "yes", False: "NO", None: "-"}[row.verdicts[label].holds] for label in labels
        )
        shown.add_row(f"{row.name}: {row.claim.sentence}", committed, *here, *marks)
    shown.caption = "\n".join(summary(judged, label) for label in labels)
    return shown


def summary(judged: Sequence[Judged], label: str) -> str:
    """Return in words how many claims hold on one folder's data, and the names of those that do not."""
    found = {row.name: row.verdicts[label] for row in judged}
    asked = [name for name, verdict in found.items() if verdict.holds is not None]
    broken = [name for name in asked if not found[name].holds]
    unclear = [
        name for name, verdict in found.items() if verdict.now.startswith("cannot be judged")
    ]
    text = f"{label}: {len(asked) - len(broken)} of the {len(asked)} claims that can be judged hold"
    text += f"; not {', '.join(broken)}" if broken else ""
    return text + (f"; {', '.join(unclear)} cannot be judged" if unclear else "")
