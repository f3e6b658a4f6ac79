"""The file of a card, and its judge, which replays its scales and holds the frozen claims; neither needs torch.

The file is JSON Lines: what ran where, a record per probe, and the sha256 of all bytes before it. With each probe it
is written anew and renamed: whoever reads it, or is killed, has it with the probe or without.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from ampsim.card import claims
from ampsim.core.files import DamagedFileError, write_atomically
from ampsim.core.laws import History, broken
from ampsim.core.machine import Rule
from ampsim.core.pipeline import trajectory
from ampsim.core.replay.fold import first_divergence, replay
from ampsim.records import Record, decode, encode

HEAD = b'{"card":1,"identity":{'


class Verdict(NamedTuple):
    """A sentence, and whether it holds."""

    outcome: Literal["holds", "does not hold", "not looked at"]
    text: str


def seal(body: bytes) -> bytes:
    """Return all lines of a file behind which the last comes, and that."""
    return body + f"{encode({'sha256': hashlib.sha256(body).hexdigest()})}\n".encode()


def write(path: Path, records: list[Record]) -> None:
    """Put all records on the disk, in place of what is there."""
    write_atomically(path, seal("".join(f"{encode(each)}\n" for each in records).encode()))


def read(path: Path) -> list[Record]:
    """Return the records of a file, the first line included; raise DamagedFileError for one that is not as written."""
    lines = (data := path.read_bytes()).splitlines(keepends=True)
    if data != seal(b"".join(lines[:-1])) or not data.startswith(HEAD):
        raise DamagedFileError(path, len(lines), "its seal is another", "the sha256 of all lines before")
    return [decode(line.decode()) for line in lines[:-1]]


def verify(path: Path) -> list[Verdict]:
    """Judge a file; raise DamagedFileError for one that is not as it was written, OSError for none."""
    head, *records = read(path)
    try:
        who, found = head["identity"], {each["probe"]: each for each in records}  # of a probe tried again, the last
        runs = (verdict for probe in who["probes"] for verdict in replayed(probe, found.get(probe)))
        return [*runs, *(judged(claim, who, found.get(claim.probe)) for claim in claims.CLAIMS)]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise DamagedFileError(path, 1, said, "records as the probes write them") from error


def replayed(probe: str, record: Record | None) -> Iterator[Verdict]:
    """Yield what of a probe is missing or went wrong, and whether its trajectories are the reference machine's."""
    if record is None:
        yield Verdict("does not hold", f"{probe}: no record; the command that made the file goes on")
    elif "error" in record:
        yield Verdict("does not hold", f"{probe}: {record['error']}; the same command tries it again")
    elif runs := record.get("trajectories"):
        wrong = {run["name"]: said for run in runs if (said := mismatch(run))}
        yield from (Verdict("does not hold", f"{probe}, {name}: {said}") for name, said in wrong.items())
        if not wrong:
            scales, skips = sum(len(run["scale"]) for run in runs), sum(sum(run["found_inf"]) for run in runs)
            text = f"{scales} scales of {len(runs)} runs are the reference machine's; {skips} skips, within bound T1"
            yield Verdict("holds", f"{probe}: {text}")


def mismatch(run: Record) -> str:
    """Return where a trajectory is not the machine's to the bit, or which law it breaks, T1 among them; '' if none."""
    rule, flags = Rule(**run["rule"]), run["found_inf"]
    place = first_divergence(run["scale"], trajectory(rule, run["depth"], flags)[:-1])
    if place is not None:
        return f"the scale of step {place} is not the machine's"
    if run.get("skipped", flags) != flags:
        return "it skipped other steps than those that overflowed"
    laws = broken(History(rule, flags, [rule.init_scale, *replay(rule, flags).tolist()]))
    return "; ".join(f"{law}: {seen}" for law, seen in laws.items())


def judged(claim: claims.Claim, who: Record, record: Record | None) -> Verdict:
    """Return whether a frozen claim holds; of laws of which not all were asked only that it does not."""
    record = record or {"skipped": "no record"}
    why, done, of = record.get("skipped", record.get("error")), len(record.get("checks", ())), record.get("of", 0)
    if claim.cuda and who["device"]["type"] == "cpu":
        why = "claimed of a card"
    elif done < of and claim.holds(record):
        why = f"{done} of {of} laws asked, for want of time"
    if why:
        return Verdict("not looked at", f"{claim.text} ({why})")
    late = "" if who["claims_sha256"] == claims.SHA256 else " (by claims of another version than the data's)"
    if claim.holds(record):
        return Verdict("holds", claim.text + late)
    seen = ", ".join(map(str, record.get("findings") or record.get("differing") or ()))
    return Verdict("does not hold", f"{claim.text}{seen and ': '}{seen}{late}")
