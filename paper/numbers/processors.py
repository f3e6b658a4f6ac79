"""The same experiments on seeds not used before, and which operations give the same bits on several processors."""

from collections.abc import Callable, Sequence

from ampsim import records
from figures import quantities as q
from figures.claims import CLAIMS, Claim
from figures.results import DATA, Result
from figures.verdicts import judge
from paper import sources
from paper.values import Cell, Formula, Number, Table

SEEDS = "cpu-new-seeds"  # with the common kernels, made after the claims
FOLDERS = {"": "seeds of the text", f"@{SEEDS}": "new seeds"}
COMMON = "COMPATIBLE"  # of the settings, the one that no processor chooses by itself


def digests() -> list[dict[str, str]]:
    """Return a digest per operation of each processor that was asked with the common kernels."""
    rows = map(records.decode, (DATA / "bits.jsonl").read_text(encoding="utf-8").splitlines())
    return [row["bits"] for row in rows if row["settings"].get("MKL_CBWR") == COMMON]


def same_operations() -> int:
    """Return how many operations have one digest on all of them."""
    found = digests()
    return sum(len({row[name] for row in found}) == 1 for name in found[0])


def crashes(run: Result) -> str:
    """Return how many seeds crashed at each of four learning rates."""
    return ", ".join(str(run.arm(f"fp16 lr={rate}").known("crash_step")) for rate in ("0.03", "0.035", "0.04", "0.05"))


def above_float32(run: Result, arm: str) -> float:
    """Return by how much an arm raises the mean loss."""
    return run.arm(arm).mean("test_loss") - run.arm("fp32").mean("test_loss")


def ends(values: Sequence[float], digits: int, factor: float = 1.0) -> str:
    """Return the lowest and the highest of some values, in words."""
    low, high = (f"{factor * value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def depth_4(run: Result, column: str, digits: int, factor: float = 1.0) -> str:
    """Return a mean at depth four, for the cumulative rule, the deduplicated one and the probe."""
    means = (run.arm(f"{rule} k=4").mean(column) for rule in ("cumulative", "deduplicated", "probe"))
    return ", ".join(f"{factor * mean:.{digits}f}" for mean in means)


ROWS: tuple[tuple[str, str, Callable[[Result], float | str], str], ...] = (
    ("crashes of five seeds at rates .03, .035, .04, .05", "scale_crash", crashes, "text"),
    ("sigmoid network, loss in float32", "sigmoid_underflow", lambda run: run.arm("fp32").mean("train_loss"), ".3f"),
    ("the same, dynamic, $G = 50$", "sigmoid_underflow", lambda run: run.arm("dynamic G=50").mean("train_loss"), ".3f"),
    ("residual network at $2^16$, loss above float32's", "static_sweep",
     lambda run: above_float32(run, "static 2^16"), ".3f"),
    ("the same, dynamic, $G = 50$", "static_sweep", lambda run: above_float32(run, "dynamic G=50"), ".3f"),
    ("error of a trained gradient, % of its norm", "gradient_histogram",
     lambda run: ends(q.at_share(run, "real_error", 2), 0, 100), "text"),
    ("late scale, nats lost at most", "staleness", lambda run: max(q.late_losses(run)), ".4f"),
    ("$k = 4$, bits unused: cumulative, deduplicated, probe", "staleness",
     lambda run: depth_4(run, "headroom", 2), "text"),
    ("the same, % of steps skipped", "staleness", lambda run: depth_4(run, "skip_rate", 2, 100), "text"),
    ("one bit of margin, bits unused", "policies",
     lambda run: ends([row["policies"]["headroom 1 bit"]["headroom"][0] for row in run.arm("digits")], 2), "text"),
    ("torch's default, bits unused", "policies",
     lambda run: ends([row["policies"]["backoff G=2000"]["headroom"][0] for row in run.arm("digits")], 2), "text"),
    ("steps to recover at $G = 50$", "policies",
     lambda run: ends(q.per_policy(run, "backoff G=50", "recovery"), 0), "text"),
)  # fmt: skip


def table() -> Table:
    """Return some results of each folder, side by side."""

    def cells(what: str, stem: str, value: Callable[[Result], float | str], form: str) -> tuple[Cell, ...]:
        numbers = (Number(f"{stem}{folder}", value, form) for folder in FOLDERS)
        return what, *(number if run_there(number.stem) else "–" for number in numbers)

    return Table(("", *FOLDERS.values()), tuple(cells(*row) for row in ROWS), "lrr")


def run_there(stem: str) -> bool:
    """Return whether an experiment was run where its stem says."""
    name, _, folder = stem.partition("@")
    return (DATA / (folder or "cpu") / f"{name}.jsonl").exists()


def claims() -> list[Claim]:
    """Return the claims of the text."""
    return [CLAIMS[name] for name in sources.named("holds") if name in CLAIMS]


def on_new_seeds() -> list[bool]:
    """Return what data of new seeds says of each claim that it can be asked."""
    stems = {path.stem for path in (DATA / SEEDS).glob("*.jsonl")}
    return [bool(judge(claim, DATA / SEEDS).holds) for claim in claims() if claim.stem in stems]


NUMBERS = {
    "claims": Formula(lambda: len(claims()), "d"),
    "seeds.experiments": Formula(lambda: len(list((DATA / SEEDS).glob("*.jsonl"))), "words"),
    "seeds.asked": Formula(lambda: len(on_new_seeds()), "d"),
    "seeds.held": Formula(lambda: sum(on_new_seeds()), "d"),
    "kernels.operations": Formula(lambda: len(digests()[0]), "d"),
    "kernels.equal": Formula(same_operations, "d"),
}
