"""Tables about logs: an example, all counts, public logs, and `explain` at first sight."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from math import inf
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
    Count("++undecided by the tool", "sight.problems.undecided"),
    Count("+healthy", "sight.healthy", part="sight.false", outcome="flagged"),
    Count("++undecided by the tool", "sight.healthy.undecided"),
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
ROUNDS = ("v0.5 and v0.6", "v0.7")  # of MLPerf; the last updates its scaler twice
SOURCES = {
    "log": "the log",
    "file": "a file beside it",
    "default": "the source",
}
PRINTING = ("prints each overflow", "does not")
GROWTHS = (0, 1, 3, 10, 40, 100, inf)  # ends of ranges
RIVALS = ("one more", "half", "twice")  # wrong intervals
APEX = "apex: prints decreases but not increases"
GNMT = "MLPerf's GNMT: prints changes without steps"
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
    outcome = f"{digits(row.part)} {row.outcome}".strip()
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


def flow() -> Table:
    """Return how many logs are left after each step of the study."""
    run = load("cuda_runs")
    steps: tuple[tuple[str, runs.Kind] | None, ...] = (
        ("public logs of CUDA runs", runs.is_any),
        ("+can be followed", runs.is_followed),
        None,
        ("consistent with the printed or default interval", has_default),
        ("+settings looked up in a file or the source", runs.is_looked_up),
        ("+half of the stated interval (MLPerf v0.7)", runs.is_halved),
        ("consistent in the end", runs.is_consistent),
        None,
        ("of these, refute three times $G$", runs.refutes_longer),
        ("half of $G$", partial(runs.refutes, interval="half")),
        ("$G + 1$", partial(runs.refutes, interval="one more")),
    )
    table: list[tuple[Cell, ...]] = []
    for step in steps:
        if step is None:
            table.append(())
            continue
        text, kind = step
        rows = runs.logs(run, kind)
        repositories = str(len(runs.repositories(rows)))
        unfollowed = any(map(runs.is_unfollowed, rows))
        programs = "" if unfollowed else str(len(runs.training_programs(rows)))
        title = text.replace("+", INDENT + "+ ", 1) if text[0] == "+" else text
        table.append((title, str(len(rows)), repositories, programs))
    head = ("", "logs", "repositories", "programs")
    return Table(head, tuple(table), "lrrr")


def has_default(row: Record) -> bool:
    """Return whether a consistent log agrees with the interval that it prints, or the default."""
    return runs.is_consistent(row) and runs.is_consistent_by_default(row)


def growths() -> Table:
    """Return which wrong intervals logs refute, by how often their scale grows."""
    rows = runs.logs(load("cuda_runs"), runs.is_consistent)
    table: list[tuple[Cell, ...]] = []
    for least, most in pairwise(GROWTHS):
        mine = [row for row in rows if least <= row["growths"] < most]
        as_many = sum(row["growths"] >= least for row in rows)
        rivals = [
            sum(runs.refutes(row, interval=name) for row in mine) for name in RIVALS
        ]
        longer = sum(map(runs.refutes_longer, mine))
        cells = (len(mine), as_many, *rivals, longer)
        table.append((span(least, most), *map(str, cells)))
    head = ("growths", "logs", "or more", *RIVALS, "3 times")
    return Table(head, tuple(table), "l" + "r" * 6, (("", 3), ("would refute", 4)))


def span(least: float, most: float) -> str:
    """Return a range of whole numbers, without its end."""
    if most == inf:
        return f"{least} or more"
    last = int(most) - 1
    return str(least) if least == last else f"{least} to {last}"


def followed_logs() -> Table:
    """Return the followed logs by program, by source of the interval, and by what they print."""
    rows = runs.logs(load("cuda_runs"), runs.is_followed)
    names = [name for _, name in runs.TRAINING_PROGRAMS]
    titles = [name for name in names if name != runs.MLPERF]
    titles += [f"{runs.MLPERF}, {part}" for part in ROUNDS]
    parts = (
        (program_of, titles),
        (source_of, [f"interval from {title}" for title in SOURCES.values()]),
        (printing_of, list(PRINTING)),
    )
    table: list[tuple[Cell, ...]] = []
    for part_of, groups in parts:
        for title in groups:
            mine = [row for row in rows if part_of(row) == title]
            table.append(of_logs(title, mine))
        table.append(())
    table.append(of_logs("all", rows))
    head = (
        *("", "logs", "repositories", "programs"),
        *("at first", "in the end", "no growth", "growths"),
    )
    groups_of_heads = (("", 4), ("consistent", 2), ("", 2), ("would refute", 4))
    return Table(
        (*head, *RIVALS, "3 times"), tuple(table), "l" + "r" * 11, groups_of_heads
    )


def program_of(row: Record) -> str:
    """Return the training program of a followed log, and the round if it is MLPerf's."""
    program = runs.training_program(row)
    if program != runs.MLPERF:
        return program
    return f"{program}, {ROUNDS[runs.is_updated_twice(row)]}"


def source_of(row: Record) -> str:
    """Return where the growth interval of a followed log is from, in words."""
    return f"interval from {SOURCES[runs.source_of(row)]}"


def printing_of(row: Record) -> str:
    """Return whether a followed log prints its overflows, in words."""
    return PRINTING[not runs.has_bound(row)]


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
        len(runs.training_programs(rows)),
        count(runs.is_consistent_by_default),
        count(runs.is_consistent),
        count(runs.is_still),
        median(row["growths"] for row in rows),
        *rivals,
        count(runs.refutes_longer),
    )
    return (title, *(f"{count:g}" for count in counts))


def sight() -> Table:
    """Return the verdicts of `ampsim explain` on logs that it had not seen, by truth and sample."""

    def cells(truth: str, verdict: str, logs: Collection[Record]) -> tuple[Cell, ...]:
        return (truth, verdict, *map(str, runs.by_sample(logs)))

    rows = [
        cells(truth, verdict, runs.of_verdict(truth, verdict))
        for truth, verdict in product(runs.TRUTHS, runs.VERDICTS)
    ]
    rows.append(())
    rows += [
        cells(truth, '"nan" or "inf"', runs.saying_nan(truth)) for truth in runs.TRUTHS
    ]
    samples = runs.samples()
    shares = (f"{100 * runs.undecided(sample):.0f}" for sample in samples)
    rows += [(), ("share undecided, %", "", *shares)]
    head = ("reader", "tool", *map(str, samples))
    groups = (("", 2), ("sample", len(samples)))
    return Table(head, tuple(rows), "ll" + "r" * len(samples), groups)
