"""The same experiments with other kernels, another processor's own or those that all share, and on other seeds."""

from collections.abc import Callable, Iterator

from ampsim import records
from figures import quantities as q
from figures.claims import CLAIMS, Claim
from figures.results import DATA, Result, load
from figures.verdicts import judge
from paper import lint, sources
from paper.ledger import Cell, Formula, Number, Table

FOLDERS = {"": "common kernels", "@cpu-amd-epyc": "EPYC's own", "@cpu-intel-xeon": "Xeon's own"}
SEEDS = "cpu-new-seeds"  # with the common kernels, made after the claims
COMMON = "COMPATIBLE"  # of the settings, the one that no processor chooses by itself


def digests() -> list[dict[str, str]]:
    """Return a digest per operation of each processor that was asked with the common kernels."""
    rows = map(records.decode, (DATA / "bits.jsonl").read_text(encoding="utf-8").splitlines())
    return [row["bits"] for row in rows if row["settings"].get("MKL_CBWR") == COMMON]


def same_operations() -> int:
    """Return how many operations have one digest on all of them."""
    found = digests()
    return sum(len({row[name] for row in found}) == 1 for name in found[0])


def pairs() -> Iterator[tuple[records.Record, records.Record]]:
    """Yield the records of both processors with kernels of their own, unit by unit."""
    for path in sorted((DATA / "cpu-amd-epyc").glob("*.jsonl")):
        both = (load(path.stem, DATA / folder).records for folder in ("cpu-amd-epyc", "cpu-intel-xeon"))
        yield from zip(*both, strict=True)


def alarms(run: Result) -> str:
    """Return in how many calm runs large activations were a false alarm."""
    calm = [row for row in run.records if row["crash_step"] is None]
    return f"{sum(bool(row['alarms']['activation > 2^14']) for row in calm)} of {len(calm)}"


def crashes(run: Result) -> str:
    """Return how many seeds crashed at each of four learning rates."""
    return ", ".join(str(run.arm(f"fp16 lr={rate}").known("crash_step")) for rate in ("0.03", "0.035", "0.04", "0.05"))


def above_float32(run: Result) -> float:
    """Return by how much a fixed scale of 2^16 raises the mean loss."""
    return run.arm("static 2^16").mean("test_loss") - run.arm("fp32").mean("test_loss")


ROWS: tuple[tuple[str, str, Callable[[Result], float | str], str], ...] = (
    ("crashes of five seeds at rates .03, .035, .04, .05", "scale_crash", crashes, "text"),
    ("calm runs with a false alarm of large activations", "crash_signals", alarms, "text"),
    ("sigmoid network, loss in float32", "sigmoid_underflow", lambda run: run.arm("fp32").mean("train_loss"), ".3f"),
    ("the same, dynamic, $G = 50$", "sigmoid_underflow", lambda run: run.arm("dynamic G=50").mean("train_loss"), ".3f"),
    ("residual network at $2^16$, loss above float32's", "static_sweep", above_float32, ".3f"),
    ("E4M3 flushes at most", "formats", lambda run: max(q.flushed(run, "e4m3")), "%1"),
    ("late scale, nats lost at most", "staleness", lambda run: max(q.late_losses(run)), ".4f"),
)  # fmt: skip


def table() -> Table:
    """Return some results of each folder, side by side."""

    def cells(what: str, stem: str, value: Callable[[Result], float | str], form: str) -> tuple[Cell, ...]:
        return what, *(Number(f"{stem}{folder}", value, form) for folder in FOLDERS)

    return Table(("", *FOLDERS.values()), tuple(cells(*row) for row in ROWS), "lrrr")


def claims() -> list[Claim]:
    """Return the claims of the text."""
    return [CLAIMS[name] for name in lint.claims() if name in CLAIMS]


def on_new_seeds() -> list[bool]:
    """Return what data of new seeds says of each claim that it can be asked, if it was made after the claims."""
    stems = [path.stem for path in (DATA / SEEDS).glob("*.jsonl")]
    known = {stem.partition("@")[0] for stem in sources.known_before(f"{stem}@{SEEDS}" for stem in stems)}
    return [bool(judge(claim, DATA / SEEDS).holds) for claim in claims() if claim.stem in known]


NUMBERS = {
    "claims.after": Formula(lambda: len(sources.known_before(claim.stem for claim in claims())), "d"),
    "seeds.experiments": Formula(lambda: len(list((DATA / SEEDS).glob("*.jsonl"))), "words"),
    "seeds.asked": Formula(lambda: len(on_new_seeds()), "d"),
    "seeds.held": Formula(lambda: sum(on_new_seeds()), "d"),
    "kernels.operations": Formula(lambda: len(digests()[0]), "d"),
    "kernels.equal": Formula(same_operations, "d"),
    "kernels.records": Formula(lambda: sum(1 for _ in pairs()), "d"),
    "kernels.records.equal": Formula(lambda: sum(a == b for a, b in pairs()), "d"),
}
