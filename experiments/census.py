"""What share of public fp16 training loops fails a check of loss scaling, as far as the source
shows?

`ampsim lint` read the loops of public repositories, each at one commit. `inputs/census.jsonl` has
the findings and no source code: repository, commit, path, sha256, line, features of the loop, and
violated rules. A loop is the innermost `for` or `while` around the step of a scaler, or the
function if the loop is elsewhere. Copies of a loop count once. The shares cover only what lint
detects: `docs/evaluation-lint.md` has its precision and recall.

If AMPSIM_CENSUS names a folder with the files (`OWNER+NAME/PATH`), the files are read again.
Device: cpu.
"""

import ast
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from ampsim.core.files import write_atomically
from ampsim.core.json_lines import Record
from ampsim.lint.engine import RULES
from ampsim.lint.events import Event, Trace
from ampsim.lint.rules.checkpoint import saved_optimizers
from ampsim.lint.source import Source, UnreadableError, parse, read
from ampsim.lint.walk import traces_of
from experiments import runner

DEVICES = ("cpu",)
INPUT = Path(__file__).parent / "inputs" / "census.jsonl"
FOLDER = "AMPSIM_CENSUS"
# Rules that were not there when the loops were read.
LEFT_OUT = {"AMP129", "AMP130", "AMP132", "AMP133", "AMP134", "AMP135", "AMP136"}
EXAMPLE = re.compile(
    r"(^|/)(\w*examples?|tutorials?|recipes?|egs|references?|projects?|research|contrib)(/|$)",
    re.I,
)
KINDS = ("package", "example", "script")
HAS = {
    "schedule": "AMP101",
    "average": "AMP102",
    "clip": "AMP103",
    "checkpoint": "AMP112",
}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1
    seeds: tuple[int, ...] = (0,)  # nothing is random


SMOKE = Config()


@dataclass(frozen=True)
class Arm:
    """A kind of repository: with a package to install, and outside its examples; its examples;
    scripts alone.
    """

    kind: str


def arms(config: Config) -> Mapping[str, Arm]:
    return {kind: Arm(kind) for kind in KINDS}


def inputs() -> dict[str, str]:
    return {INPUT.name: hashlib.sha256(INPUT.read_bytes()).hexdigest()}


def files() -> list[Row]:
    """Return the files of the census, read again where there is a folder with them. ValueError: one
    has changed.
    """
    rows: list[Row] = [json.loads(line) for line in INPUT.read_text().splitlines()]
    folder = os.environ.get(FOLDER)
    return (
        rows
        if folder is None
        else [{**row, "loops": [*loops_at(Path(folder), row)]} for row in rows]
    )


def loops_at(folder: Path, row: Row) -> Iterator[Row]:
    """Yield the loops of a file in the folder."""
    path = folder / row["repository"].replace("/", "+", 1) / row["path"]
    if (now := hashlib.sha256(path.read_bytes()).hexdigest()) != row["sha256"]:
        raise ValueError(
            f"{path}: sha256 {now}, expected {row['sha256']}: fetch {row['commit']}"
        )
    yield from loops_in(read(path))


def loops_in(text: str) -> Iterator[Row]:
    """Yield the loops of a source: digest and line, what each has, and the lines on which it breaks
    a rule, by code.
    """
    source = parse(text)
    if source is None or source.disabled:
        return
    traces = [*traces_of(source)]
    found = {
        (code, getattr(node, "lineno", 0))
        for code in RULES.keys() - LEFT_OUT
        for node, _ in RULES[code].find(source, traces)
    }
    saved, seen = any(saved_optimizers(source)), set()
    for trace in traces:
        for step in trace.skippable():
            place = place_of(source, step)
            if place in seen:
                continue
            seen.add(place)
            inside = [
                each for each in trace if each.loops[: len(step.loops)] == step.loops
            ]
            lines = {getattr(each.node, "lineno", 0) for each in inside}
            within = range(
                getattr(place, "lineno", 0), (getattr(place, "end_lineno", 0) or 0) + 1
            )
            mine = sorted(
                (c, line)
                for c, line in found
                if c == "AMP112" or line in lines or line in within
            )
            yield {
                "digest": hashlib.sha256(ast.unparse(place).encode()).hexdigest()[:16],
                "line": getattr(place, "lineno", 0),
                "has": [*had(trace, step, inside), *["checkpoint"] * saved],
                "codes": {
                    code: [line for other, line in mine if other == code]
                    for code in sorted({c for c, _ in mine})
                },
            }


def place_of(source: Source, step: Event) -> ast.AST:
    """Return the innermost loop around a step, or the innermost function, or the file."""
    if step.loops:
        return step.loops[-1]
    line = getattr(step.node, "lineno", 0)
    around = [
        each
        for each in source.functions
        if each.lineno <= line <= (each.end_lineno or 0)
    ]
    return max(around, key=lambda each: each.lineno) if around else source.tree


def had(trace: Trace, step: Event, inside: Sequence[Event]) -> Iterator[str]:
    """Yield what a loop has: a schedule or an average that goes on with the steps, a clipping."""
    for kind in ("schedule", "average", "clip"):
        deep = kind == "clip"
        if any(
            each.kind == kind
            and (deep or each.loops == step.loops)
            and not each.apart(step)
            for each in inside
        ):
            yield kind


def write(folder: Path) -> None:
    """Write the input from a folder with an `index.jsonl`; its tests are no loops.

    Args:
        folder: of the files; its index has repository, commit, path, sha256 and packaged, whether
            it can be installed.
    """
    rows: list[Row] = []
    for known in map(json.loads, (folder / "index.jsonl").read_text().splitlines()):
        if re.search(r"(^|/)(tests?|testing)(/|_)", known["path"]):
            continue
        kind = (
            "example"
            if EXAMPLE.search(known["path"])
            else "package"
            if known.pop("packaged")
            else "script"
        )
        row = {
            **{key: known[key] for key in ("repository", "commit", "path", "sha256")},
            "kind": kind,
        }
        try:
            loops = [*loops_at(folder, row)]
        except UnreadableError:
            continue  # Python 2, or a template
        rows += [{**row, "loops": loops}] * bool(loops)
    rows.sort(key=lambda row: (row["repository"], row["path"]))
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    write_atomically(INPUT, text.encode())


def run(
    config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]
) -> Record:
    """Count the loops of one kind; the columns are explained in `data/README.md`."""
    loops = {
        loop["digest"]: {**loop, "repository": file["repository"], "kind": file["kind"]}
        for file in reversed(files())
        for loop in file["loops"]
    }
    mine = [loop for loop in loops.values() if loop["kind"] == arm.kind]
    tick(config.steps)
    broken = [{RULES[code].check for code in faults(loop)} for loop in mine]
    checks = sorted({rule.check for rule in RULES.values() if rule.check})
    return {
        "loops": len(mine),
        "repositories": sorted({loop["repository"] for loop in mine}),
        "wrong": count(mine, map(bool, broken)),
        "checks": {
            check: count(mine, (check in each for each in broken)) for check in checks
        },
        "rules": {
            code: count(mine, (code in loop["codes"] for loop in mine))
            for code in sorted(RULES.keys() - LEFT_OUT)
        },
        "of": {
            name: share([loop for loop in mine if name in loop["has"]], code)
            for name, code in HAS.items()
        },
    }


def faults(loop: Row) -> set[str]:
    """Return the rules that a loop breaks, but for those that have left since."""
    return {code for code in loop["codes"] if code in RULES}


def count(loops: Sequence[Row], broken: Iterable[bool]) -> Record:
    """Return how many loops break something, and which repositories have one."""
    found = [loop for loop, breaks in zip(loops, broken, strict=True) if breaks]
    return {
        "loops": len(found),
        "repositories": sorted({loop["repository"] for loop in found}),
    }


def share(loops: Sequence[Row], code: str) -> Record:
    """Return how many loops there are, and how many break a rule."""
    return {"loops": len(loops), "wrong": sum(code in loop["codes"] for loop in loops)}


def table(rows: Sequence[Record]) -> Table:
    """Return one line per kind: how many loops break a check, and how many of those that have
    something get it wrong.
    """
    shown = Table("kind", "loops", "repositories", "break a check", *HAS)
    for row in rows:
        parts = [f"{each['wrong']} of {each['loops']}" for each in row["of"].values()]
        shown.add_row(
            row["arm"],
            str(row["loops"]),
            str(len(row["repositories"])),
            str(row["wrong"]["loops"]),
            *parts,
        )
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("census"))
