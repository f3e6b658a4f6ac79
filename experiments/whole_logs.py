"""Does the state machine reproduce whole public logs of fp16 training, and which constants fit?

The data are four training logs of DeepSpeed-Chat with five scalers, and two runs of Megatron-LM, all on
GPUs. `inputs/whole_logs.jsonl` has the printed numbers and their location. A log prints one line per
block of steps, with its count of skipped steps or with the scale. DeepSpeed also prints each overflow
with the scale before and after. Its fused optimizer names the step and prints growths. No network is
trained.

The position of an overflow in its block is not always printed, so the states of the state machine are
followed for every possible position. A rule reproduces a log if some positions give every printed
number. It is ruled out at the end of the first block that no positions explain. The experiment tries the
rule given by the program's settings, and rules that differ from it in one setting.

Device: cpu.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from ampsim.core import dialects
from ampsim.core.json_lines import Record
from ampsim.core.machine import Rule
from ampsim.core.quirks import StreakStartsAt
from ampsim.core.recorded_runs import with_current_names
from ampsim.core.state import State
from ampsim.core.theory import pathwise
from experiments import runner

DEVICES = ("cpu",)
INPUT = Path(__file__).parent / "inputs" / "whole_logs.jsonl"
LOGS: dict[str, dict[str, Any]] = {
    log["name"]: log for log in map(json.loads, INPUT.read_text().splitlines())
}
INTERVALS = (0.5, 0.9, 0.99, 1.01, 1.1, 2.0)  # of the growth interval that is set


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 10_000  # of a log, at most
    seeds: tuple[int, ...] = (0,)  # nothing is random


SMOKE = Config(steps=200)


@dataclass(frozen=True)
class Arm:
    """A scaler of a log, with the settings of its run."""

    name: str
    dialect: str
    growth_interval: int
    hysteresis: int


def arms(config: Config) -> Mapping[str, Arm]:
    rules = {name: rule_of(log) for name, log in LOGS.items()}
    return {
        name: Arm(name, LOGS[name]["dialect"], rule.growth_interval, rule.hysteresis)
        for name, rule in rules.items()
    }


def inputs() -> dict[str, str]:
    return {INPUT.name: hashlib.sha256(INPUT.read_bytes()).hexdigest()}


def rule_of(log: Mapping[str, Any]) -> Rule:
    """Return the rule that the run's settings name."""
    return dialects.get(log["dialect"], **with_current_names(log["dialect"], log["parameters"]))


class Event(NamedTuple):
    """A printed overflow or growth: log2 of the scale before and after it, and its step if that was printed."""

    step: int | None
    before: int
    after: int


class Block(NamedTuple):
    """The steps between two lines, and all that the log prints of them; None: it does not print such a thing."""

    first: int
    last: int
    skipped: int
    log2_scale: int | None  # after the last step
    events: list[Event] | None  # in order


def blocks(log: Mapping[str, Any], steps: int) -> Iterator[Block]:
    """Yield what a log prints of its blocks of steps, as far as they lie within so many steps."""
    every, printed = log["every"], log["events"]
    for line in range(min(log["lines"], steps // every)):
        yield Block(
            line * every + 1,
            (line + 1) * every,
            log["skipped"].get(str(line), 0),
            log["log2_scale"] and log["log2_scale"][line],
            None if printed is None else [Event(*each[2:]) for each in printed if each[1] == line],
        )


Ends = dict[State, set[State]]  # per state after a block the states before it that lead there


class Follower:
    """All that a rule may have done in a log, block by block."""

    def __init__(self, rule: Rule, *, growths_printed: bool) -> None:
        self._rule, self._growths_printed = rule, growths_printed
        self._next: dict[tuple[State, bool], State] = {}

    def follow(self, steps: Sequence[Block]) -> tuple[list[Ends], Block | None]:
        """Return what may have been in each block, and the first block that the rule cannot explain."""
        states = {self._rule.init()}
        found: list[Ends] = []
        for block in steps:
            ends: Ends = {}
            for state in states:
                for end in self._ends(state, block):
                    ends.setdefault(end, set()).add(state)
            if not ends:
                return found, block
            found.append(ends)
            states = set(ends)
        return found, None

    def _ends(self, start: State, block: Block) -> set[State]:
        """Return the states after a block, for every place of its overflows that gives what is printed of it."""
        reached = {(start, 0, 0)}  # the state, overflows and printed events so far
        for step in range(block.first, block.last + 1):
            reached = {
                after
                for at in reached
                for overflow in (False, True)
                if (after := self._after(at, block, step, overflow=overflow))
            }
        events = 0 if block.events is None else len(block.events)
        return {
            state
            for state, overflows, printed in reached
            if overflows == block.skipped
            and printed == events
            and (block.log2_scale is None or state.scale == 2.0**block.log2_scale)
        }

    def _after(
        self, at: tuple[State, int, int], block: Block, step: int, *, overflow: bool
    ) -> tuple[State, int, int] | None:
        """Return where one step leads, if the log does not say otherwise."""
        state, overflows, printed = at
        if overflows + overflow > block.skipped:
            return None
        if (after := self._next.get((state, overflow))) is None:
            after = self._next[state, overflow] = self._rule.update(state, overflow)
        if block.events is None or not (
            overflow or (self._growths_printed and after.scale > state.scale)
        ):
            return after, overflows + overflow, printed
        event = block.events[printed] if printed < len(block.events) else None
        said = event and (event.step in (None, step), 2.0**event.before, 2.0**event.after)
        return (
            (after, overflows + overflow, printed + 1)
            if said == (True, state.scale, after.scale)
            else None
        )


def others(rule: Rule) -> dict[str, Rule]:
    """Return the rule that was set, and those that differ from it in one thing, by what that is."""
    found = {"as set": rule}
    found |= {f"H={h}": rule.replace(hysteresis=h) for h in (1, 2, 3) if h != rule.hysteresis}
    intervals = sorted({round(share * rule.growth_interval) for share in INTERVALS})
    found |= {f"G={g}": rule.replace(growth_interval=g) for g in intervals}
    if rule.hysteresis > 1:
        found |= {
            f"refill: {at}": rule.replace(hysteresis_reset=frozenset({at}))
            for at in ("clean", "backoff")
        }
    plain = tuple(quirk for quirk in rule.quirks if not isinstance(quirk, StreakStartsAt))
    if plain != rule.quirks:
        return found | {"first growth one earlier": rule.replace(quirks=plain)}
    return found | {"first growth one later": rule.replace(quirks=(StreakStartsAt(-1), *plain))}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Judge one log; the columns are explained in `data/README.md`."""
    log = LOGS[arm.name]
    rule, steps = rule_of(log), list(blocks(log, config.steps))
    judged = {
        name: Follower(each, growths_printed=log["growths_printed"]).follow(steps)
        for name, each in others(rule).items()
    }
    found, _ = judged["as set"]
    tick(config.steps)
    return {
        **{name: log[name] for name in ("source", "sha256", "program", "model")},
        "steps": steps[-1].last,
        "skipped": sum(block.skipped for block in steps),
        "printed": sum(map(printed, steps)),
        "rules": {name: _verdict(steps, failed) for name, (_, failed) in judged.items()},
        "every": log["every"],
        "log2_scale": scales(found),
        "events": [[block.last, *event] for block in steps for event in block.events or ()],
        "bound": bound(rule, steps, found),
        "rate_bound": pathwise.hysteresis_skip_rate(rule),
    }


def printed(block: Block) -> int:
    """Return how many numbers of a block the machine has to repeat: its count, its scale, two scales per event."""
    return 1 + (block.log2_scale is not None) + 2 * len(block.events or ())


def _verdict(steps: Sequence[Block], failed: Block | None) -> Record:
    """Return by which step a rule was refuted, null: never, and how many printed numbers it repeated before."""
    before = [block for block in steps if failed is None or block.last < failed.last]
    return {"refuted": failed and failed.last, "repeated": sum(map(printed, before))}


def scales(found: Sequence[Ends]) -> list[list[int]]:
    """Return the lowest and the highest log2 of the scale after each block, of what explains the whole log."""
    states, ranges = set(found[-1]) if found else set(), []
    for ends in reversed(found):
        ranges.append([round(log2(pick(state.scale for state in states))) for pick in (min, max)])
        states = set[State]().union(*(ends[state] for state in states))
    return ranges[::-1]


def bound(rule: Rule, steps: Sequence[Block], found: Sequence[Ends]) -> float | None:
    """Return how many steps T1 lets a run of this length skip that ends where it may have ended highest.

    With H > 1 each growth and the start forgive H - 1 overflows more, as in T10.
    """
    if not found:
        return None
    descent = log2(rule.init_scale / max(state.scale for state in found[-1]))
    rate, free = pathwise.hysteresis_skip_rate(rule), rule.hysteresis - 1
    if free == 0:
        return pathwise.skips(rule, steps[-1].last, descent)
    return rate * steps[-1].last + (1 - rate) * (descent + free)


def table(rows: Sequence[Record]) -> Table:
    """Return a line per log: which rules repeat it, by which step others are refuted, and what T1 and T10 allow."""
    shown = Table(
        "log",
        "steps",
        "skipped",
        "at most",
        "rate / T10's",
        "printed",
        "repeated by",
        "refuted by step",
    )
    for row in rows:
        kept = [name for name, rule in row["rules"].items() if rule["refuted"] is None]
        refuted = [
            f"{name}: {rule['refuted']}" for name, rule in row["rules"].items() if rule["refuted"]
        ]
        shown.add_row(
            row["arm"], str(row["steps"]), str(row["skipped"]),
            "-" if row["bound"] is None else f"{row['bound']:.1f}",
            f"{row['skipped'] / row['steps']:.4f} / {row['rate_bound']:.4f}", str(row["printed"]),
            ", ".join(kept) or "none", ", ".join(refuted),
        )  # fmt: skip
    shown.caption = ", ".join(
        f"2^{scale}: {n}"
        for scale, n in sorted(Counter(low for row in rows for low, _ in row["log2_scale"]).items())
    )
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("whole_logs"))
