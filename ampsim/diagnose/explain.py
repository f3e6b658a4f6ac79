"""Explain a run's loss scale: the statements that its log supports, a verdict, and both in words."""

from dataclasses import dataclass

import numpy as np

from ampsim.diagnose.evidence import Evidence
from ampsim.diagnose.formats import LIMITS, TABLE
from ampsim.diagnose.history import History
from ampsim.diagnose.remarks import facts, remarks, share
from ampsim.diagnose.statements import Statement

VERDICTS = {  # here -> for programs
    "healthy": "no problem found",
    "wrong": "problem",
    "cannot tell": "too little to tell",
}
STATUS = {"healthy": 0, "wrong": 1, "cannot tell": 3}  # verdict -> exit status


@dataclass(frozen=True)
class Explanation:
    """An explanation of one log: its statements and the verdict."""

    verdict: str  # "healthy", "wrong" or "cannot tell"
    why: str  # the verdict in a sentence
    statements: list[Statement]  # what is wrong, then notes, then facts
    notes: list[str]  # what the reader left out or took for granted

    @property
    def wrong(self) -> list[Statement]:
        """What is wrong, the first thing first."""
        return [each for each in self.statements if each.verdict == "wrong"]

    def to_json(self) -> dict[str, object]:
        """Return the data of the statements, with the version of their table."""
        said = [each.to_json() for each in self.statements]
        return {
            "version": TABLE["version"],
            "verdict": VERDICTS[self.verdict],
            "summary": self.why,
            "findings": said,
        }


def explain(history: History) -> Explanation:
    """Return what a log shows, including its other ranks and engines."""
    main, *others = runs = [Evidence(**vars(one)) for one in (history, *history.others)]
    with np.errstate(all="ignore"):  # numbers that no run has
        statements = [
            *remarks(main),
            *facts(main),
            *(each for other in others for each in remarks(other)),
        ]
        if any((run.status == 1).any() for run in runs):  # what one rank shows is so of all
            statements = [each for each in statements if each.kind != "no-step-seen"]
        covered = {
            kind for each in statements for kind in TABLE["statement"][each.kind].get("covers", ())
        }
        statements = [each for each in statements if each.kind not in covered]
        order = {"wrong": 0, "note": 1, "fact": 2}
        statements.sort(
            key=lambda each: (order[each.verdict], each.first if each.verdict == "wrong" else 0.0)
        )
        words = TABLE["verdict"]
        if statements and statements[0].verdict == "wrong":
            causes = {each.why for each in statements if each.verdict == "wrong"}
            verdict, why = (
                "wrong",
                words["both" if causes == {"scale", "other"} else statements[0].why],
            )
        else:
            verdicts = [_verdict(run, statements) for run in runs]
            verdict, why = min(verdicts, key=lambda each: each[0] == "healthy")
            why = words[why]
    return Explanation(verdict, words[verdict].replace("{why}", why), statements, history.notes)


def _verdict(run: Evidence, statements: list[Statement]) -> tuple[str, str]:
    """Return the verdict on a history in which nothing is wrong, and the name of its reason."""
    values, says = run.points[0], run.says
    norms = run.norm[~np.isnan(run.norm)]
    good, bad = run.status == 1, run.status == -1
    skips, steps, _ = share(run)
    shown = len(values) or (~np.isnan(run.counted)).any() or len(norms) or good.any() or says
    many = skips > LIMITS.often * steps if steps else bad.sum() >= 5 and bad.mean() > LIMITS.skipped
    told = [
        line for line in says.get("told", ()) if line > run.line[good].max(initial=0.0)
    ]  # and nobody counts
    ends = len(told) > 2 >= (run.line > told[-1]).sum()
    ends = ends or (run.weight(run.tail) > 2 and (good.any() or not run.goes_on(run.tail)))
    late = slice(-max(2, len(good) // 3), None)
    kinds = {each.kind for each in statements}
    doubts = {
        "no-fp16": "no-fp16" in says and not len(values),
        "searching": "searching" in kinds,
        "zero": bool({"last-losses-0", "loss-0-throughout"} & kinds),
        "ending": ends or np.isinf(norms[-1:]).any(),
        "lost": "last-losses" in kinds,
        "whole": "whole-run" in says,
        "left-out": "left-out" in says,
        "rises": run.rises,
        "needless": "needless-scale" in kinds,
        "nothing": not shown,
        "cut": run.settings.get("cut"),
        "often": many and (not steps or skips >= 3),
        "low": len(values) and values[-1] < 1 and values[-1] <= values[0] / 4,
        "unguarded": "unguarded" in says,
        "short": 0 < good.sum() < LIMITS.short and not run.holds and run.updates < LIMITS.short,
        "evaluation": "evaluation" in says,
        "still": run.program == "HF Trainer" and not len(norms) and not len(values),
        "taken": not (good[late].any() or (len(values) and _falls(run))),
    }
    if doubt := next((name for name, holds in doubts.items() if holds), ""):
        return "cannot tell", doubt
    return "healthy", _reason(run, len(norms), late) if good[late].any() else "loss"


def _reason(run: Evidence, norms: int, late: slice) -> str:
    total = run.total[~np.isnan(run.total)]
    if not run.unsaid and (run.progress[late] | (run.counts[late] == 0)).any():
        few = max(total.max(), run.least()) if len(total) else run.skips[1]
        if few == 0:
            return "none"
        return (
            "counted"
            if few is not None and few <= LIMITS.often * (run.step[-1] - run.step[0])
            else "searched"
        )
    if norms > LIMITS.often * len(run.step):
        finite = "medians" if run.format.get("norm") == "median" else "norms"
        return "some-norms" if np.isinf(run.norm).any() else finite
    if (run.moves > 0).any():
        return "grew"
    return "updates" if run.format.get("updates") else "rate"


def _falls(history: Evidence) -> bool:
    """Return whether the last third of the losses is lower than what was before, by a tenth than the first third.

    Of a run whose scale has fallen far and not risen again, of the losses since then.
    """
    since = history.loss
    for start, end in history.descents[-1:]:
        if (
            history.halvings(start, end) >= LIMITS.fallen
            and not (history.moves[end + 1 :] > 0).any()
        ):
            since = since[history.points[1][end] :]
    losses = since[~np.isnan(since)]
    ends, losses = losses[-1:], losses[np.isfinite(losses)]
    part = len(losses) // 3
    if history.mixed or "loss" in history.settings:  # one of several
        return False
    if part < LIMITS.falling or losses.min() <= 0 or np.isinf(ends).any():
        return False
    first, middle, last = losses[:part], np.sort(losses[part:-part]), losses[-part:]
    above = np.searchsorted(middle, last).mean() > (1 - LIMITS.noise) * len(middle)
    return bool(not above and np.median(last) < 0.9 * np.median(first))


def in_words(explanation: Explanation, *, lines: bool = False) -> str:
    """Return an explanation as text; `lines`: each statement with the lines of the log that show it."""

    def line(each: Statement) -> str:
        where = ", ".join(map(str, each.lines[:12])) + (", ..." if len(each.lines) > 12 else "")
        return each.what + (f" [lines {where}]" if lines and where else "")

    wrong = [f"{each.heading.upper()}: {line(each)}" for each in explanation.wrong]
    rest = [line(each) for each in explanation.statements if each.verdict != "wrong"]
    fixes = dict.fromkeys(each.fix for each in explanation.statements if each.fix)
    tries = ["", "Fix:", *(f"- {fix}" for fix in fixes)] if fixes else []
    return "\n".join([explanation.why, *wrong, "", *rest, *explanation.notes, *tries])


def findings(history: History) -> list[Statement]:
    """Return what is wrong in a run, the first thing first."""
    return explain(history).wrong


def least_skips(history: History) -> int:
    """Return the skips that a log proves at least."""
    return Evidence(**vars(history)).skips[0]
