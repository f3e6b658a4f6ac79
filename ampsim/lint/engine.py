"""The rules by code, and the function that runs them on one source."""

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ampsim.lint.events import Traces
from ampsim.lint.rules.index import OF_EVENTS, OF_FILE, OfEvents, OfFile
from ampsim.lint.source import Source, UnreadableError, parse
from ampsim.lint.walk import traces_of

PROSE = ("what", "why", "fix", "limits")  # texts of a rule that are wrapped in the file


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule of the lint: its texts are in `rules.toml`, its function is in `ampsim.lint.rules`.

    Attributes:
        code, name: the code, to print, ignore, or select; the name of the function, with hyphens.
        message: the text of a finding.
        severity: error (the step is wrong, or raises), warning (a run differs from what it should
            be), or note (a difference without a known consequence, or a choice).
        what, why, fix: what the rule checks for; why that is a problem; what to do.
        limits: what the rule does not see, or reports without need.
        wrong, right: a loop with the problem; the same loop without it.
        asks: returns whether an event, of one of the kinds `events`, is a finding; or None.
        finds: yields the nodes of a file that are findings; or None.
        check: the check of `ampsim.testing.check_loop` that such a loop fails; "" for none.
        thread: address of a public report; "" for none.
    """

    code: str
    name: str
    message: str
    severity: Literal["error", "warning", "note"]
    what: str
    why: str
    fix: str
    limits: str
    wrong: str
    right: str
    asks: OfEvents | None
    finds: OfFile | None
    events: Sequence[str] = ()
    check: str = ""
    thread: str = ""

    def find(self, source: Source, traces: Traces) -> Iterator[tuple[Any, str]]:
        """Yield each finding in a source: its node and its message."""
        within = source.wrapped and f" (with the fp16 scaler of {source.wrapped})"
        if self.finds:
            for node in self.finds(source, traces):
                yield node, self.message + within
        if self.asks is None:
            return
        for trace in traces:
            for event in trace.of(*self.events):
                if self.asks(source, trace, event):
                    place = source.place_of(event.on)
                    message = self.message.format(on=event.on, of=event.of, place=place)
                    yield event.node, message + within


@dataclass(frozen=True, order=True)
class Finding:
    """A finding of a rule in one file.

    Attributes:
        path: The file, as it was given.
        line, column: Place in the file; both count from 1.
        code: Code of the rule, such as `AMP101`.
        message: What was found, with the name of the object.
        severity: `error`, `warning`, or `note`.
    """

    path: str
    line: int
    column: int
    code: str
    message: str
    severity: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}"
        return f"{place}: {self.code} {self.severity}: {self.message}"


def _rule(code: str, text: Mapping[str, Any]) -> Rule:
    """Return a rule from its table in `rules.toml`."""
    prose = {key: " ".join(text[key].split()) for key in PROSE}
    name = text["name"].replace("-", "_")
    asks, finds = OF_EVENTS.get(name), OF_FILE.get(name)
    return Rule(code=code, asks=asks, finds=finds, **{**text, **prose})


TEXTS = tomllib.loads(
    (Path(__file__).parent / "rules.toml").read_text(encoding="utf-8")
)
RULES: Mapping[str, Rule] = {code: _rule(code, text) for code, text in TEXTS.items()}


def lint(
    source: str, path: str = "<source>", codes: Collection[str] = RULES.keys()
) -> list[Finding]:
    """Find loss-scaling problems in the source of a training loop, without running it.

    >>> text = "scaler = GradScaler(); scaler.scale(loss(x)).backward(); optimizer.step()"
    >>> lint(text)[0].code
    'AMP111'

    Args:
        source: Text of a Python file.
        path: Path of the file, for the findings.
        codes: Codes of the rules to run; by default all of `RULES`.

    Returns:
        The findings, sorted by place; without those that a comment ignores.

    Raises:
        UnreadableError: The text is not Python source.
    """
    return examine(source, path, codes)[0]


def examine(text: str, path: str, codes: Collection[str]) -> tuple[list[Finding], int]:
    """Return the findings in a text, and the number of training loops in it."""
    try:
        source = parse(text)
        if source is None:
            return [], 0
        traces = [*traces_of(source)]
        found = dict[tuple[int, int, str], Finding]()
        for code in () if source.disabled else sorted(codes):
            for node, message in RULES[code].find(source, traces):
                place = node.lineno, node.col_offset + 1
                finding = Finding(path, *place, code, message, RULES[code].severity)
                found.setdefault((*place, code), finding)
    except RecursionError as error:
        raise UnreadableError(
            "nested too deeply: expected source that Python can compile"
        ) from error
    kept = (each for each in found.values() if not source.ignores(each.line, each.code))
    return sorted(kept), loops_in(traces)


def loops_in(traces: Traces) -> int:
    """Return the number of loops in which losses are passed back; outside of any, of functions."""
    passes = set[object]()
    for trace in traces:
        events = trace.of("backward", "scale", "step")
        passes |= {event.loops[-1] if event.loops else trace.start for event in events}
    return len(passes)
