"""Tables about logs: an example, all counts, public logs, and `explain` at first sight."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median

from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from ampsim.core.state import State
from paper.number_format import escaped
from paper.numbers import NUMBERS, runs
from paper.sources import load
from paper.values import Cell, Table

EXAMPLE_INTERVAL = 3
EXAMPLE_LOG = ((0, 16.0), (1, 16.0), (2, 32.0), (4, 64.0))  # step, printed scale
FLAGS = (False, True)  # a step is finite, or overflows
INDENT = "#h(1em)"
BREAK = r"\\u{200b}"  # a place where a line may end, for `re.sub`
POWER, FAIL = "refute three times $G$", "fail a check"


@dataclass(frozen=True)
class Count:
    """A row of the table of counts; numbers are names of numbers of the text.

    Attributes:
        what: What was counted; a plus for each level below the row that it is a part of.
        size: Its number.
        repositories: The number of repositories that it is of; empty for none.
        packages: The number of packages that it is of; empty for none.
        part: The number of those with an outcome; empty for none.
        outcome: The outcome.
    """

    what: str
    size: str
    repositories: str = ""
    packages: str = ""
    part: str = ""
    outcome: str = ""


COUNTS = (  # None is a line
    Count("dialects of scalers", "dialects", packages="dialects.packages"),
    Count("+recorded runs", "traces.count", part="traces.repeated", outcome="repeated"),
    None,
    Count("public CUDA logs", "cuda.runs", "cuda.runs.repositories"),
    Count("+followed", "cuda.followed", "cuda.followed.repositories"),
    Count("++consistent", "cuda.whole", part="cuda.longer", outcome=POWER),
    Count(
        "++with overflows",
        "cuda.bound",
        "cuda.bound.repositories",
        part="cuda.bound.within",
        outcome="within bound",
    ),
    Count("held-out CUDA logs", "cuda.held", "cuda.held.repositories"),
    Count(
        "+followed",
        "cuda.held.followed",
        "cuda.held.followed.repositories",
        part="cuda.held.whole",
        outcome="consistent",
    ),
    Count("logs read by eye", "sight.logs"),
    Count(
        "+with a problem",
        "sight.problems",
        part="sight.cleared",
        outcome="called healthy",
    ),
    Count("+healthy", "sight.healthy", part="sight.false", outcome="flagged"),
    None,
    Count("checks of the suite", "suite.checks"),
    Count("+for any scaler", "conformance.checks"),
    Count("installed scalers", "conformance.scalers", packages="conformance.packages"),
    Count(
        "+classes of these",
        "conformance.classes",
        part="conformance.gradient.classes",
        outcome="give wrong gradients",
    ),
    Count("training engines", "engines.count", part="engines.failed", outcome=FAIL),
    Count(
        "training loops",
        "loops.loops",
        packages="loops.frameworks",
        part="loops.failed",
        outcome=FAIL,
    ),
)
PROGRAMS = {  # of the corpus -> scaler
    "arcface": "torch's `GradScaler`",
    "swin": "torch's `GradScaler`",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron-LM",
    "fairseq": "fairseq",
}
SOURCES = {
    "log": "the log",
    "file": "a file beside it",
    "default": "source code",
}
RIVALS = ("one more", "half", "twice")  # wrong intervals
APEX, GNMT = "apex: falls and no growth", "MLPerf's GNMT: moves without steps"
NO_DIALECT = "no dialect for its scaler (MLPerf's MXNet, others)"
NO_RULE = {"apex": APEX, "gnmt": GNMT}  # programs that print too little
UNFIT = {
    "no steps": "no step numbers",
    "means": "means of several steps",
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
    head = ("sample", "size", "from", "outcome")
    return Table(head, tuple(of_count(row) for row in COUNTS), "lrll")


def of_count(row: Count | None) -> tuple[Cell, ...]:
    """Return a row of the table of counts."""
    if row is None:
        return ()
    text = row.what.lstrip("+")
    indent = INDENT * (len(row.what) - len(text))
    source = ""
    if row.repositories:
        source = f"{digits(row.repositories)} repos."
    elif row.packages:
        source = f"{digits(row.packages)} packages"
    outcome = f"{digits(row.part)} {row.outcome}"
    return (indent + text, digits(row.size), source, outcome)


def digits(name: str) -> str:
    """Return a number of the text in digits, which the text may show in words."""
    return f"{NUMBERS[name].compute():,}" if name else ""


def excluded() -> Table:
    """Return why logs are not followed, and how many, with the held-out ones apart."""
    developed, held = (
        runs.logs(load("cuda_runs"), runs.is_unfollowed, held_out=held_out)
        for held_out in (False, True)
    )
    table: list[tuple[Cell, ...]] = []
    for reason in (APEX, GNMT, *UNFIT.values(), NO_DIALECT):
        mine = [row for row in developed if reason_of(row) == reason]
        apart = [row for row in held if reason_of(row) == reason]
        repositories = len(runs.repositories(mine))
        table.append((reason, str(len(mine)), str(repositories), str(len(apart))))
    head = ("what the log prints", "logs", "repositories", "held out")
    return Table(head, tuple(table), "lrrr")


def reason_of(row: Record) -> str:
    """Return why a log is not followed."""
    if row["verdict"] in UNFIT:
        return UNFIT[row["verdict"]]
    return NO_RULE.get(row["program"], NO_DIALECT)


def followed_logs() -> Table:
    """Return the followed logs by scaler, and by source of the growth interval."""
    rows = runs.logs(load("cuda_runs"), runs.is_followed)
    table: list[tuple[Cell, ...]] = []
    for scaler in dict.fromkeys(PROGRAMS.values()):
        mine = [row for row in rows if PROGRAMS[row["program"]] == scaler]
        table.append(of_logs(scaler, mine))
    table.append(())
    for source, title in SOURCES.items():
        mine = [row for row in rows if runs.source_of(row) == source]
        table.append(of_logs(f"interval from {title}", mine))
    table += [(), of_logs("all", rows)]
    head = ("", "logs", "repositories", "consistent", "at defaults", "no growth")
    groups = (("", 6), ("median", 2), ("would refute", 4))
    return Table(
        (*head, "moves", "growths", *RIVALS, "3 times"),
        tuple(table),
        "l" + "r" * 11,
        groups,
    )


def repositories() -> Table:
    """Return the followed logs by repository, those with most logs first."""
    rows = runs.logs(load("cuda_runs"), runs.is_followed)
    counts = Counter(row["repository"] for row in rows)
    table = []
    for repository, count in counts.most_common():
        mine = [row for row in rows if row["repository"] == repository]
        consistent = sum(map(runs.is_consistent, mine))
        with_power = sum(map(runs.refutes_longer, mine))
        name = re.sub(r"(/|\\_)", r"\1" + BREAK, escaped(repository))
        table.append((name, str(count), str(consistent), str(with_power)))
    head = ("repository", "logs", "consistent", "3 times")
    return Table(head, tuple(table), "lrrr")


def of_logs(title: str, rows: Sequence[Record]) -> tuple[Cell, ...]:
    """Return a row about some followed logs."""

    def count(kind: runs.Kind) -> int:
        return sum(map(kind, rows))

    rivals = [count(partial(runs.refutes, interval=name)) for name in RIVALS]
    counts = (
        len(rows),
        len(runs.repositories(rows)),
        count(runs.is_consistent),
        count(runs.is_consistent_by_default),
        count(runs.is_still),
        median(row["moves"] for row in rows),
        median(row["growths"] for row in rows),
        *rivals,
        count(runs.refutes_longer),
    )
    return (title, *(f"{count:g}" for count in counts))


def sight() -> Table:
    """Return the verdicts of `ampsim explain` on logs that it had not seen, by truth and sample."""

    def cells(truth: str, verdict: str, logs: Collection[Record]) -> tuple[Cell, ...]:
        return (truth, verdict, *map(str, runs.by_sample(logs)), str(len(logs)))

    rows = [
        cells(truth, verdict, runs.of_verdict(truth, verdict))
        for truth, verdict in product(runs.TRUTHS, runs.VERDICTS)
    ]
    rows.append(())
    rows += [
        cells(truth, '"nan" or "inf"', runs.saying_nan(truth)) for truth in runs.TRUTHS
    ]
    samples = runs.samples()
    head = ("reader", "tool", *map(str, samples), "all")
    groups = (("", 2), ("sample", len(samples)), ("", 1))
    return Table(head, tuple(rows), "ll" + "r" * (len(samples) + 1), groups)
