"""``python -m tests.mutation``: judge a sample of mutants; stopped, it goes on where it was when run again."""

import argparse
import hashlib
import tempfile
from collections import Counter
from pathlib import Path

from ampsim.records import Journal, Record, read, write
from experiments.runner import provenance
from tests.mutation import judge
from tests.mutation.equivalent import ARGUMENTS
from tests.mutation.mutants import ROOMS, ROOT, Mutant, sample

COUNTS = {"core": 34, "jax": 33, "torch": 33} | dict.fromkeys(("watch", "testing", "peers", "diagnose", "runner"), 20)
BUILD = ROOT / "build" / "mutation"
LEAST = 0.95  # of the mutants that are not equivalent


def main() -> int:
    """Judge the sample, write it, and return 1 where too many survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--packages", nargs="+", choices=COUNTS, default=list(COUNTS))
    parser.add_argument("--count", type=int, help="mutants per package, to try it out: what is found stays in build/")
    chosen = parser.parse_args()
    counts = dict.fromkeys(COUNTS, chosen.count) if chosen.count else COUNTS
    folder = BUILD / f"count-{chosen.count}" if chosen.count else Path(__file__).parent
    out = folder / f"seed-{chosen.seed}.jsonl"
    judge.preload()
    with tempfile.TemporaryDirectory() as copy:
        tree = judge.Tree(Path(copy))
        for package in chosen.packages:
            judge_package(tree, package, counts[package], chosen.seed, out)
    return report(argue(out))


def judge_package(tree: judge.Tree, package: str, count: int, seed: int, out: Path) -> None:
    """Judge the mutants of one package, unless these sources were judged, and write them beside the others'."""
    origin, records = read(out) if out.exists() else ({"script": "tests/mutation", "seed": seed, "packages": {}}, [])
    origins = {"source_sha256": sha256(sources(package)), "tests_sha256": sha256(tests(package))}
    if origins.items() <= origin["packages"].get(package, {}).items():
        return
    before = {identity(record): record["before"] for record in records}
    journal = Journal(out, {"package": package, "seed": seed, **origins})
    mine = judged(tree, package, sample(package, count, seed), journal)
    for record in mine:
        record["before"] = before.get(identity(record), record["outcome"])
    origin["packages"][package] = {
        **origins,
        "versions": provenance.versions() | {"mutmut": provenance.version("mutmut")},
        "date": provenance.now(),
    }
    others = [record for record in records if record["package"] != package]
    journal.finish(origin, sorted(others + mine, key=lambda record: record["package"]))


def argue(out: Path) -> list[Record]:
    """Note on each survivor why it is equivalent, where that is argued, and count; return the records."""
    origin, records = read(out)
    for record in records:
        if record["outcome"] in ("survived", "equivalent"):
            argument = ARGUMENTS.get((record["file"], record["diff"]))
            record |= {"outcome": "equivalent", "argument": argument} if argument else {"outcome": "survived"}
    for package, about in origin["packages"].items():
        mine = [record for record in records if record["package"] == package]
        about |= {name: dict(sorted(Counter(r[name] for r in mine).items())) for name in ("before", "outcome")}
    write(out, origin, records)
    return records


def identity(record: Record) -> tuple[str, str, str]:
    """Return what makes a mutant the same one after other lines have changed."""
    return record["file"], record["operator"], record["diff"]


def judged(tree: judge.Tree, package: str, mutants: list[Mutant], journal: Journal) -> list[Record]:
    """Return the records of a package's sample; what the journal holds is not judged again."""
    data = BUILD / f"{package}-{sha256(sources(package))[:12]}.coverage"
    if not data.with_suffix(".json").exists():
        print(f"{package}: which test reaches which line", flush=True)
        tree.measure(package, data)
    reach = judge.Reach(data)
    for number, mutant in enumerate(mutants, start=1):
        if mutant.unit not in journal.done:
            verdict = tree.judge(mutant, package, reach)
            journal.append(mutant.unit, as_record(package, mutant, verdict))
        done = journal.done[mutant.unit]
        print(f"{package} {number}/{len(mutants)} {done['outcome']:8} {mutant.file}:{mutant.line}", flush=True)
    return [journal.done[mutant.unit] for mutant in mutants]


def as_record(package: str, mutant: Mutant, verdict: judge.Verdict) -> Record:
    """Return what is kept of one mutant."""
    fields = {name: getattr(mutant, name) for name in ("file", "line", "operator", "diff")}
    survived = verdict.how == "passed"
    outcome = {"outcome": "survived"} if survived else {"outcome": "killed", "by": verdict.by, "how": verdict.how}
    return {"package": package, **fields, **outcome, "tests": verdict.tests}


def report(records: list[Record]) -> int:
    """Print the survivors and the rates; return the exit status."""
    for record in records:
        if record["outcome"] == "survived":
            print(f"\nsurvived: {record['file']}:{record['line']} {record['operator']}\n{record['diff']}")
    before, now = (Counter(record[name] for record in records) for name in ("before", "outcome"))
    rate = now["killed"] / (now["killed"] + now["survived"])
    print(f"\nwhen first judged {dict(before)}, now {dict(now)}")
    print(f"{rate:.1%} of those not equivalent are killed; expected at least {LEAST:.0%}")
    return int(rate < LEAST)


def sources(package: str) -> list[Path]:
    """Return the files that are mutated and those below them."""
    return sorted({*(ROOT / "ampsim" / "core").rglob("*.py"), *(ROOT / ROOMS[package].code).rglob("*.py")})


def tests(package: str) -> list[Path]:
    """Return the files that judge them; not the arguments."""
    folder = Path(__file__).parent
    judges = {*folder.glob("*.py"), *(ROOT / ROOMS[package].tests).rglob("*.py"), *(ROOT / "tests").glob("[ce]*.py")}
    return sorted(judges - {folder / "equivalent.py"})


def sha256(paths: list[Path]) -> str:
    """Return the sha256 of files with their names: two versions are never mixed."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
