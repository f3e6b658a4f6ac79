"""Tables about logs: an example, all counts, public logs, and `explain` at first sight."""

from collections.abc import Collection, Sequence
from statistics import median

from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from ampsim.core.state import State
from figures.derived_numbers import cuda_runs, followed
from paper.numbers import NUMBERS, runs
from paper.sources import load
from paper.values import Cell, Table

EXAMPLE_INTERVAL = 3
EXAMPLE_LOG = ((0, 16.0), (1, 16.0), (2, 32.0), (4, 64.0))  # step, printed scale
FLAGS = (False, True)  # a step is finite, or overflows
INDENT = "#h(1em)"
REPOSITORIES, PACKAGES = "repos.", "packages"
# What, its number, the number and kind of its sources, the number with an outcome, the outcome.
COUNTS: tuple[tuple[str, ...], ...] = (  # an empty row is a line
    ("dialects of scalers", "dialects", "dialects.packages", PACKAGES, "", ""),
    ("+recorded runs", "traces.count", "", "", "traces.repeated", "repeated"),
    (),
    ("public CUDA logs", "cuda.runs", "cuda.repositories", REPOSITORIES, "", ""),
    ("+followed", "cuda.followed", "cuda.followed.repositories", REPOSITORIES, "", ""),
    ("++consistent", "cuda.whole", "", "", "cuda.both", "refute three times $G$"),
    ("++with a growth", "cuda.growing", "", "", "", ""),
    ("++with overflows", "cuda.bound.logs", "cuda.bound.repositories", REPOSITORIES,
     "cuda.bound.within", "within bound"),
    ("held-out CUDA logs", "cuda.held.runs", "cuda.held.found.repositories", REPOSITORIES, "", ""),
    ("+followed", "cuda.held.followed", "cuda.held.repositories", REPOSITORIES,
     "cuda.held.whole", "consistent"),
    ("logs read by eye", "sight.logs", "", "", "", ""),
    ("+with a problem", "sight.problems", "", "", "sight.cleared", "called healthy"),
    ("+healthy", "sight.healthy", "", "", "sight.false", "flagged"),
    (),
    ("checks of the suite", "suite.checks", "", "", "", ""),
    ("+for any scaler", "conformance.checks", "", "", "", ""),
    ("installed scalers", "conformance.scalers", "conformance.packages", PACKAGES, "", ""),
    ("+classes of these", "conformance.classes", "", "", "conformance.gradient.classes",
     "give wrong gradients"),
    ("training engines", "engines.count", "", "", "engines.failed", "fail a check"),
    ("training loops", "loops.loops", "loops.frameworks", PACKAGES, "loops.failed", "fail a check"),
)  # fmt: skip
PROGRAMS = {  # of the corpus -> scaler
    "arcface": "torch's `GradScaler`",
    "swin": "torch's `GradScaler`",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron-LM",
    "fairseq": "fairseq",
}
SOURCES = {
    "log": "the log prints it",
    "file": "a file beside the log",
    "default": "the program's default",
}
NO_RULE = {  # programs of the corpus that are not followed, and why
    "apex": "prints falls and no growth (apex)",
    "gnmt": "prints moves without steps (MLPerf's GNMT)",
    "other": "has no dialect here (MLPerf's MXNet and others)",
}
UNFIT = {
    "no steps": "prints no steps",
    "means": "prints means of several steps",
}


def example() -> Table:
    """Return a log of four lines, and the states of torch's rule that agree with each line."""
    rule = Rule(growth_interval=EXAMPLE_INTERVAL)
    now, first = EXAMPLE_LOG[0]
    states = {State(first, count) for count in range(rule.growth_interval)}
    rows = [(str(now), f"{first:g}", counts_of(states))]
    for step, scale in EXAMPLE_LOG[1:]:
        for _ in range(step - now):
            states = {rule.update(state, flag) for state in states for flag in FLAGS}
        states = {state for state in states if state.scale == scale}
        now = step
        rows.append((str(step), f"{scale:g}", counts_of(states)))
    return Table(
        ("step", "printed scale", "possible growth trackers"), tuple(rows), "rrl"
    )


def counts_of(states: Collection[State]) -> str:
    """Return the growth trackers of some states."""
    trackers = sorted({state.growth_tracker for state in states})
    return ", ".join(map(str, trackers)) or "none: the log refutes the scaler"


def counts() -> Table:
    """Return all counts of the paper, and what each is a part of."""
    rows: list[tuple[Cell, ...]] = []
    for row in COUNTS:
        if not row:
            rows.append(())
            continue
        what, whole, places, kind, part, outcome = row
        text = what.lstrip("+")
        indent = INDENT * (len(what) - len(text))
        found = f"{digits(places)} {kind}", f"{digits(part)} {outcome}"
        rows.append((indent + text, digits(whole), *found))
    return Table(("sample", "size", "from", "outcome"), tuple(rows), "lrll")


def digits(name: str) -> str:
    """Return a number of the text in digits, which the text may show in words."""
    return f"{NUMBERS[name].compute():,}" if name else ""


def excluded() -> Table:
    """Return why logs are not followed, and how many."""
    rows = [row for row in cuda_runs(load("cuda_runs")) if "breaks" not in row]
    reasons: list[tuple[str, list[Record]]] = []
    for program, reason in NO_RULE.items():
        known = [row for row in rows if row["program"] == program]
        reasons.append((reason, [row for row in known if row["verdict"] == "no rule"]))
    for verdict, reason in UNFIT.items():
        reasons.append((reason, [row for row in rows if row["verdict"] == verdict]))
    table = tuple(
        (reason, str(len(mine)), str(len(runs.repositories(mine))))
        for reason, mine in reasons
    )
    return Table(("the program", "logs", "repositories"), table, "lrr")


def followed_logs() -> Table:
    """Return the followed logs by scaler, and by source of the growth interval."""
    rows = followed(load("cuda_runs"))
    scalers = dict.fromkeys(PROGRAMS.values())
    table: list[tuple[Cell, ...]] = [
        of_logs(scaler, [row for row in rows if PROGRAMS[row["program"]] == scaler])
        for scaler in scalers
    ]
    table.append(())
    for source, title in SOURCES.items():
        mine = [row for row in rows if runs.source_of(row) == source]
        table.append(of_logs(f"interval: {title}", mine))
    table += [(), of_logs("all", rows)]
    head = ("", "logs", "repositories", "consistent", "no growth", "moves", "growths")
    rivals = ("one more", "half", "twice", "three times")
    groups = (("", 5), ("median", 2), ("would refute the interval", 4))
    return Table((*head, *rivals), tuple(table), "l" + "r" * 10, groups)


def of_logs(title: str, rows: Sequence[Record]) -> tuple[Cell, ...]:
    """Return a row about some followed logs."""
    consistent = [row for row in rows if not row["breaks"]]
    powers = [
        sum(row["rivals"][name] > 0 for row in consistent)
        for name in ("one more", "half", "twice")
    ]
    powers.append(sum(row["control"] > 0 for row in consistent))
    counts = (
        len(rows),
        len(runs.repositories(rows)),
        len(consistent),
        sum(not row["growths"] for row in rows),
        median(row["moves"] for row in rows),
        median(row["growths"] for row in rows),
        *powers,
    )
    return (title, *(f"{count:g}" for count in counts))


def sight() -> Table:
    """Return the verdicts of `ampsim explain` on logs that it had not seen, by truth and sample."""
    samples = runs.samples()

    def cells(truth: str, verdict: str) -> tuple[Cell, ...]:
        counts = [runs.verdicts(sample)[truth, verdict] for sample in samples]
        return (truth, verdict, *map(str, counts), str(sum(counts)))

    def words(truth: str) -> tuple[Cell, ...]:
        counts = [runs.says_nan(truth, sample) for sample in samples]
        return (truth, '"nan" or "inf"', *map(str, counts), str(sum(counts)))

    rows = [cells(truth, verdict) for truth in runs.TRUTHS for verdict in runs.VERDICTS]
    rows += [(), *map(words, runs.TRUTHS)]
    head = ("reader", "tool", *map(str, samples), "all")
    groups = (("", 2), ("sample", len(samples)), ("", 1))
    return Table(head, tuple(rows), "ll" + "r" * (len(samples) + 1), groups)
