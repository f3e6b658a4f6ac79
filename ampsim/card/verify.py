"""The judge of a card's file: replays its scales, holds the laws of any history, and judges the frozen claims."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from ampsim.card import claims
from ampsim.card.file import read
from ampsim.core.files import DamagedFileError
from ampsim.core.laws import History, broken
from ampsim.core.machine import Rule
from ampsim.core.pipeline import trajectory
from ampsim.core.replay.fold import first_divergence, replay
from ampsim.records import Record


class Verdict(NamedTuple):
    """A sentence, and whether it holds."""

    outcome: Literal["holds", "does not hold", "not looked at"]
    text: str


def verify(path: Path) -> list[Verdict]:
    """Judge a file; raise DamagedFileError for one that is not as it was written, OSError for none."""
    head, *records = read(path)
    try:
        who, found = head["identity"], {each["probe"]: each for each in records}  # of a probe tried again, the last
        return [*complete(who["probes"], found), *replayed(found), *judged(who, found)]
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise DamagedFileError(
            path, 1, f"{type(error).__name__}: {error}", "records as the probes write them"
        ) from error


def complete(probes: list[str], found: Record) -> Iterator[Verdict]:
    """Yield what is missing or went wrong, and what there was no time for."""
    for probe in probes:
        record = found.get(probe, {})
        if not record:
            yield Verdict("does not hold", f"{probe}: no record; the command that made the file goes on")
        elif "error" in record:
            yield Verdict("does not hold", f"{probe}: {record['error']}; the same command tries it again")
        elif (of := record.get("of", 0)) > (done := len(record.get("checks", ()))):
            yield Verdict("not looked at", f"{probe}: {of - done} of {of} checks, for want of time")


def replayed(found: Record) -> Iterator[Verdict]:
    """Yield whether each trajectory is the reference machine's to the bit, and obeys every law, T1 among them."""
    for probe, record in found.items():
        for each in record.get("trajectories", []):
            wrong = mismatch(each)
            said = wrong or f"{len(each['scale'])} scales are the machine's, {sum(each['found_inf'])} skips within T1"
            yield Verdict("does not hold" if wrong else "holds", f"{probe}, {each['name']}: {said}")


def mismatch(run: Record) -> str:
    """Return where a trajectory is not the machine's, or which law it breaks; '' if none."""
    rule, flags = Rule(**run["rule"]), run["found_inf"]
    place = first_divergence(run["scale"], trajectory(rule, run["depth"], flags)[:-1])
    if place is not None:
        return f"the scale of step {place} is not the machine's"
    if run.get("skipped", flags) != flags:
        return "it skipped other steps than those that overflowed"
    laws = broken(History(rule, flags, [rule.init_scale, *replay(rule, flags).tolist()]))
    return "; ".join(f"{law}: {seen}" for law, seen in laws.items())


def judged(who: Record, found: Record) -> Iterator[Verdict]:
    """Yield whether each frozen claim holds."""
    late = "" if who["claims_sha256"] == claims.SHA256 else " (by claims of another version than the data's)"
    for claim in claims.CLAIMS:
        record = found.get(claim.probe, {"skipped": "no record"})
        why = record.get("skipped", record.get("error"))
        if claim.cuda and who["device"]["type"] == "cpu":
            why = "claimed of a card"
        if why:
            yield Verdict("not looked at", f"{claim.text} ({why})")
        else:
            yield Verdict("holds" if claim.holds(record) else "does not hold", claim.text + late)
