"""Which laws does each framework's own scaler keep, and does it still do what its dialect says?

Each peer of `ampsim.peers` runs as it is, in the environment that has it, and is asked the kit's laws, on histories
that hypothesis draws, always the same ones, and shrinks. A broken law is written as a test without ampsim, which must
fail where the peer is. Every peer is compared with its dialect on random histories. A peer that cannot run here is not
run: its record is that of the committed data, with the version and date of then, or says what installs it. Device: cpu.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from rich.table import Table

from ampsim import peers, records
from ampsim.peers.environments import NoEnvironmentError
from ampsim.peers.laws import LAWS, Verdict
from ampsim.peers.laws.drift import HISTORIES, drift
from ampsim.peers.laws.emit import emitted, prove
from ampsim.peers.laws.judging import ENDS, EXAMPLES, judge_all, promise
from ampsim.peers.laws.reports import reported, search
from ampsim.peers.laws.subject import Driven
from ampsim.peers.peer import Peer, is_pinned
from ampsim.peers.wire import PeerLostError, PeerRaisedError
from ampsim.records import Record
from experiments import runner

NAMES = tuple(sorted(peers.REGISTRY, key=lambda name: (peers.load(name).environment != "main", name)))
REQUIRES = ("hypothesis",)
DEVICES = ("cpu",)
BROKEN = ("failed", "refused")
ABOUT = ("requirement", "environment", "target", "source", "dialect", "patched")


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = EXAMPLES  # examples per law
    seeds: tuple[int, ...] = (0,)  # the examples do not depend on it
    histories: int = HISTORIES  # per comparison with a dialect
    peers: Annotated[tuple[str, ...], runner.one_of(("all", *NAMES))] = ("all",)


@dataclass(frozen=True)
class Arm:
    """A peer by its name; None is the list of laws."""

    peer: str | None


SMOKE = Config(steps=2, histories=10, peers=("torch",))


def arms(config: Config) -> Mapping[str, Arm]:
    return {"laws": Arm(None), **{name: Arm(name) for name in (NAMES if config.peers == ("all",) else config.peers)}}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Judge one peer; the columns are explained in `data/README.md`."""
    if arm.peer is None:
        promises = {name: promise(name) for name in LAWS}
        return {"sentences": {name: law.law for name, law in LAWS.items()}, "promises": promises, "ends": sorted(ENDS)}
    peer = peers.load(arm.peer)
    about = {"class": peer.same_class or peer.name, **{name: getattr(peer, name, None) for name in ABOUT}}
    before = earlier(arm.peer)
    try:
        found = judged(peer, config, tick)
    except (NoEnvironmentError, PeerLostError, PeerRaisedError) as error:
        how = f"{type(error).__name__} in environment {peer.environment}, which `make peers` builds"
        return before or {**about, "version": None, "date": None, "laws": {}, "drift": None, "not_run": how}
    unchanged = before and {**before, "date": None} == records.decode(records.encode({**about, **found, "date": None}))
    return {**about, **found, "date": before["date"] if before and unchanged else str(datetime.now(UTC).date())}


def judged(peer: type[Peer], config: Config, tick: Callable[[int], None]) -> Record:
    """Return what each law and the dialect say of a peer.

    Raises:
        NoEnvironmentError, PeerLostError, PeerRaisedError: it cannot be run here.
    """
    with peers.connect(peer.name) as connected:
        version = connected.version()
        connected.start()
        laws = {}
        for number, verdict in enumerate(judge_all(connected, LAWS.values(), examples=config.steps), 1):
            laws[verdict.result.law.name] = cell(peer, connected, verdict, version)
            tick(number * config.steps // len(LAWS))
        compared = asdict(drift(connected, histories=config.histories)) if peer.dialect else None
    broken = [found for found in laws.values() if "test" in found]
    for found, how in zip(broken, prove(connected, [each["test"] for each in broken]) if broken else (), strict=True):
        found["fails_by"] = how
    pinned = is_pinned(connected, version)
    return {"version": version, "pinned": pinned, "laws": laws, "drift": compared, "not_run": None}


def cell(peer: type[Peer], connected: Peer, verdict: Verdict, version: str) -> Record:
    """Return what one law says of a peer, with the history that breaks it, and the test of a failure."""
    result = verdict.result
    declared = result.text if result.outcome == "expected failure" else ""
    found: Record = {"outcome": result.outcome, "seen": verdict.seen, "reason": declared}
    if verdict.example is not None:
        found["did"] = [f"{label}: {text}" for label, text in verdict.example.story() if text]
        found["history"] = [drawn(number, each) for number, each in enumerate(verdict.scalers, 1)]
    if result.outcome == "failed":
        found |= {"test": emitted(peer, verdict, version), "search": search(connected, result.law.name)}
        found["reports"] = reported(connected, result.law.name)
    return found


def drawn(number: int, scaler: Driven) -> Record:
    """Return what a picture of a history shows: of each iteration the scale, and whether a gradient was not finite."""
    steps = [step for _, step in scaler.steps]
    return {
        "name": f"scaler {number}",
        "scales": [*[step.used for step in steps], *[step.scale for step in steps[-1:]]],
        "bad": "".join("." if all(map(math.isfinite, given)) else "x" for given, _ in scaler.steps),
        "stepped": "".join("?" if step.stepped is None else "s" if step.stepped else "-" for step in steps),
    }


def earlier(name: str) -> Record | None:
    """Return the committed record of a peer that was run by today's laws, without what the runner adds, or None."""
    path = runner.DATA / "cpu" / "atlas.jsonl"
    rows = records.read(path)[1] if path.exists() else ()
    found = [row for row in rows if row["arm"] == name and row["version"] and row["laws"].keys() == LAWS.keys()]
    return {key: value for key, value in found[0].items() if key not in ("arm", "seed", "settings")} if found else None


def table(rows: Sequence[Record]) -> Table:
    """Return how many laws each peer keeps, which it breaks, and whether it equals its dialect."""
    shown = Table("peer", "version", "keeps", "by choice", "breaks", "dialect")
    for row in rows:
        if "sentences" not in row:
            shown.add_row(row["arm"], row["version"] or row["not_run"], *summary(row))
    return shown


def summary(row: Record) -> tuple[str, str, str, str]:
    """Return the counts of laws kept and deviated from, the names of those broken, and the drift, in words."""
    counts = Counter(found["outcome"] for found in row["laws"].values())
    broken = [law for law, found in row["laws"].items() if found["outcome"] in BROKEN]
    compared: dict[str, Any] = row["drift"] or {}
    same = f"{compared['histories'] - compared['refused']} equal" if compared else "none"
    words = f"{compared['differing']} differ" if compared.get("differing") else same
    return str(counts["passed"]), str(counts["expected failure"]), "\n".join(broken), words


if __name__ == "__main__":
    raise SystemExit(runner.main("atlas"))
