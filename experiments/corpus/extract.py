"""Write `inputs/cuda_runs.jsonl.gz` from fetched logs: numbers and places, no text of a log.

``python -m experiments.corpus.extract MIRRORS [OWNER/NAME ...] [--held-out OWNER/NAME ...]``

MIRRORS is a folder of git clones named ``owner+name``. The runs of the named repositories, or else
of all, are read again. `inputs/cuda_runs.md` explains the fields and the choice of runs.
"""

import argparse
import gzip
import hashlib
import json
import math
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from ampsim.core.files import write_atomically
from ampsim.core.json_lines import Record
from ampsim.runs import read_log
from ampsim.runs.read.history import Event, History, NothingReadError, Series
from experiments.corpus import runs

Row = list[Any]  # in one of the forms that the data sheet lists
Placed = tuple[int, Row]  # with the line of the log that it is from
REPEATS, MOST = 3, 80
FEWEST = 5  # printed scales or overflows of a run
LOSSES = 40
LOG = re.compile(
    r"\.(log|txt|out|err|json|jsonl|ipynb|md|csv)\"?$|(^|/)log[^/.]*$|\.[oe]\d+$", re.I
)
LATER_RANK = re.compile(r"rank[-_]?0*[1-9]")
PRINTED = re.compile(
    rb"(?:loss[ _]?scal\w*|grad[ _]scale|new scale)[^\d\n]{1,20}?(\d[\d.]*)", re.I
)
OTHER_RANK = re.compile(rb"rank[ :=_\]]*0*[1-9]\d*\b|^\s*[1-9]\d*: [A-Z]", re.I)
PROGRAMS = {  # the first whose text is in a log names its program
    "deepspeed": r"Attempted loss scale",
    "megatron": r"iteration +\d+/ *\d+ \|.*loss scale",
    "arcface": r"Fp16 Grad Scale",
    "gnmt": r"Upscaling, new scale|Skipped batch, new scale",
    "apex": r"loss scaler 0 reducing loss scale",
    "fairseq": r"\bwps[=:\" ].*loss_scale|overflow detected, setting loss scale",
    "guided-diffusion": r"lg_loss_scale",
    "swin": r"Train: \[.*loss_scale",
    "beit": r"train_loss_scale|loss_scale: [\d.]+ \(",
}
NUMBER = r"['\"]?[ .=:,]+(\d[\d.]*(?:e[-+]?\d+)?)"
SETTINGS = {  # field -> patterns; the first that a log has
    "gpus": [rf"(?:dist_)?world[_ ]size{NUMBER}", rf"num_gpus{NUMBER}", r"(?:on|Using) (\d+) (?:GPUs|devices)"],
    "data_parallel": [rf"data[-_]parallel[-_ ]size{NUMBER}"],
    "zero": [rf"zero_optimization_stage{NUMBER}", rf"zero_stage{NUMBER}"],
    "interval": [rf"(?:loss_scale|fp16_scale|scale)_window{NUMBER}", rf"upscale_interval{NUMBER}"],
    "hysteresis": [rf"delayed_shift{NUMBER}", rf"\bhysteresis{NUMBER}"],
    "update_freq": [r"update[-_]freq['\"]?[=:, ]+[\['\"(]*(\d+)"],
    "rate": [rf"learning_rate{NUMBER}", r"\blr['\"]?[=:] ?\[?(\d[\d.]*(?:e[-+]?\d+)?)"],
    "batch": [rf"(?<!max_train_)(?<!min_train_)micro_batch_size(?:_per_gpu)?{NUMBER}",
              rf"max_tokens{NUMBER}", rf"batch_size{NUMBER}"],
}  # fmt: skip
MODEL = re.compile(
    r"opt-[\d.]+[mb]|tr\d+[a-z]*-[\dB]+|gpt2?[-_][a-z\d]+|gnmt|maskrcnn|tacotron2|transformer(?:xl)?|bert[-_]?(?:base|large)?|rnnt|ssd"
    r"|eva\d*[-_][a-zA-Z]+|swin\w*?_(?:tiny|small|base|large)|vssm\w*|beit\w*|mae|hubert\w*|wav2vec\w*|videomae|resnet\d+|unet3d|deepcam"
    r"|(?<=_)(?:r\d+|vit_[a-z]|mbf)(?![a-z])|moe\w*|\d+(?:\.\d+)?b\b", re.I)  # fmt: skip
PRINTED_MODEL = re.compile(
    r"(?:facebook/|: network +)(opt-[\d.]+[mb]|(?:r|vit_|mbf)\w*)"
)
NODES = {"dgx1": 8, "dgx2": 16, "dgx2h": 16, "dgxa100": 8, "DSS8440": 8, "C4140": 4}
NODE = re.compile(rf"/(?:(\d+)x)?({'|'.join(NODES)})(?:_n(\d+))?[_/]")


def logs(clone: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of files that may be logs, those with the smallest object names first."""
    entries = (
        git(clone, "ls-tree", "-rlz", "HEAD").decode("utf8", "replace").split("\0")
    )
    objects = []
    for entry in entries[:-1]:
        head, _, path = entry.partition("\t")
        *_, name, size = head.split()
        # A snapshot lists files that it lacks, without a size.
        is_read = size.isdigit() and 500 < int(size) < 3e7
        if is_read and LOG.search(path) and not LATER_RANK.search(path):
            objects.append((name, path))
    for name, path in sorted(objects):
        yield path, git(clone, "cat-file", "blob", name)


def git(clone: Path, *arguments: str) -> bytes:
    """Return what a git command prints."""
    command = ["git", "-C", str(clone), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout  # noqa: S603


def extract(repository: str, clone: Path) -> Iterator[Record]:
    """Yield the runs of a repository."""
    commit = git(clone, "rev-parse", "HEAD").decode().strip()
    kept: dict[str, int] = {}
    for path, data in logs(clone):
        # Repeats differ in the number or the date at the end of the name.
        series = re.sub(r"[\d_.-]*$", "", str(Path(path).with_suffix("")))
        if kept.get(series, 0) == REPEATS or sum(kept.values()) == MOST:
            continue
        scales = PRINTED.findall(data)
        if (
            len(scales) < FEWEST
            or len({*scales}) < 2
            or (run := read(data, path)) is None
        ):
            continue
        kept[series] = kept.get(series, 0) + 1
        yield {
            "repository": repository,
            "commit": commit,
            "path": path,
            "sha256": hashlib.sha256(data).hexdigest(),
            **run,
        }


def read(data: bytes, path: str) -> Record | None:
    """Return the numbers of a log; None if it shows no loss scale that moves."""
    lines = data.splitlines(keepends=True)
    if not path.endswith(".ipynb"):
        data = b"".join(line for line in lines if not OTHER_RANK.search(line))
    text = data.decode("utf8", "replace")
    program = next(
        (name for name, mark in PROGRAMS.items() if re.search(mark, text)), "other"
    )
    with tempfile.NamedTemporaryFile(suffix=Path(path).suffix or ".log") as file:
        file.write(data)
        file.flush()
        try:
            history = read_log(file.name)
        except (NothingReadError, ValueError):
            return None
    rows = rows_of(history)
    shown = [row for row in rows if len(row) > 1]
    scales = {bits for row in shown for bits in scales_of(row)}
    if len(shown) < FEWEST or len(scales - {None}) < 2:
        return None
    rates = [rate for series in history.role("rate") for rate in series.finite]
    return {
        "program": program,
        **settings(text, path),
        **({"rate": float(f"{max(rates):.3g}")} if rates else {}),
        "printed": len(shown),
        "rows": shortened(rows),
        "loss": thinned(history.role("loss")),
    }


def rows_of(history: History) -> list[Row]:
    """Return the scales, the overflows, and the steps around these, in the order of the log.

    Overflows with the scales before and after them show all that moves. Other scales of such a log
    may be means or medians.
    """
    overflows = [event for event in history.events if event.kind == "skip"]
    complete = once(
        [event for event in overflows if event.before > 0 and event.after > 0]
    )
    counters = history.role("skips")
    series = scale_series(history) if len(complete) < FEWEST else None
    if series:
        placed = scale_rows(series, counters)
    else:
        overflows = complete or overflows
        placed = step_rows(counters or history.role("loss"))
    for event in overflows:
        row = [whole(event.step), log2(event.before), log2(event.after)]
        placed.append((event.line, row))
    # Of rows at one line, the overflow comes first.
    return [
        row for _, row in sorted(placed, key=lambda each: (each[0], len(each[1]) != 3))
    ]


def scale_rows(scales: Series, counters: Sequence[Series]) -> list[Placed]:
    """Return the rows of printed scales, with the skips since the line before where a log counts
    them.
    """
    counted = [each.values for each in counters if len(each) == len(scales)]
    skips = counted[0] if counted else np.zeros(len(scales))
    placed = []
    for line, step, scale, skipped in zip(
        scales.lines, scales.steps, scales.values, skips, strict=True
    ):
        row = [whole(step), log2(scale), 0, 1]
        if skipped:
            row.append(int(skipped))
        placed.append((int(line), row))
    return placed


def step_rows(clocks: Sequence[Series]) -> list[Placed]:
    """Return the rows of the steps that the longest series shows."""
    clock = max(clocks, key=len, default=None)
    if clock is None:
        return []
    steps = zip(clock.lines, clock.steps, strict=True)
    return [(int(line), [int(step)]) for line, step in steps if math.isfinite(step)]


def once(events: list[Event]) -> list[Event]:
    """Return the events without the reports of other ranks and log handlers, as far as steps tell
    them.
    """
    numbered = {
        (event.step, event.before): event for event in events if event.step >= 0
    }
    return sorted(numbered.values(), key=lambda event: event.line) or events


def scale_series(history: History) -> Series | None:
    """Return the longest series that moves and can be a dynamic loss scale."""
    moving = [
        series for series in history.role("scale") if len({*series.finite} - {0.0}) > 1
    ]
    return max(
        moving, key=lambda series: ("scal" in series.name, len(series)), default=None
    )


def log2(scale: float) -> float | None:
    """Return the logarithm of a scale, an int for a power of two; None where there is none."""
    if not (0 < scale < math.inf):
        return None
    bits = round(math.log2(scale), 3)
    return int(bits) if bits == int(bits) else bits


def whole(step: float) -> int | None:
    return int(step) if math.isfinite(step) else None


def shortened(rows: Sequence[Row]) -> list[Row]:
    """Join equal scales at equal distances, and drop steps that are not next to an overflow."""
    short: list[Row] = []
    for i, row in enumerate(rows):
        if len(row) == 1 and not any(
            len(near) == 3 for near in rows[max(0, i - 1) : i + 2]
        ):
            continue
        last = short[-1] if short else []
        if len(row) == len(last) == 4 and row[1] == last[1]:
            every = distance(last, row)
            if every is not None and (last[3] == 1 or every == last[2]):
                last[2:] = [every, last[3] + 1]
                continue
        short.append(row)
    return short


def distance(last: Row, row: Row) -> int | None:
    """Return the steps from the last of joined scales to the next; None if they do not increase."""
    if last[0] is None or row[0] is None:
        return 0 if last[0] is row[0] else None
    every = row[0] - (last[0] + last[2] * (last[3] - 1))
    return every if every > 0 else None


def scales_of(row: Row) -> list[Any]:
    """Return the scales of a row that shows some, as log2."""
    return row[1:3] if len(row) == 3 else row[1:2]


def settings(text: str, path: str) -> Record:
    """Return what the log, or else its path, says about the run; None where it says nothing."""
    found: Record = {
        field: first(patterns, text) for field, patterns in SETTINGS.items()
    }
    if node := NODE.search(f"/{path}"):
        found["gpus"] = NODES[node[2]] * int(node[3] or node[1] or 1)
    elif gpus := re.search(r"[_/](\d+)gpus?(?=[_/.])", path):
        found["gpus"] = int(gpus[1])
    elif total := first([rf"total_batch_size{NUMBER}"], text):
        found["gpus"] = int(total / found["batch"]) if found["batch"] else None
    names = PRINTED_MODEL.findall(text)[:1] or MODEL.findall(path)[-1:]
    return {**found, "model": names[0].strip("_").lower() if names else None}


def first(patterns: Iterable[str], text: str) -> float | None:
    """Return the first number that a pattern finds."""
    for pattern in patterns:
        if match := re.search(pattern, text):
            value = float(match[1].rstrip("."))
            return int(value) if value == int(value) else value
    return None


def thinned(series: Sequence[Series]) -> list[list[Any]]:
    """Return at most `LOSSES` of the longest series of losses, as [step, loss]."""
    longest = max(series, key=len, default=None)
    if longest is None:
        return []
    every = -(-len(longest) // LOSSES)
    numbers = zip(longest.steps[::every], longest.values[::every], strict=True)
    return [
        [whole(step), float(f"{loss:.4g}")]
        for step, loss in numbers
        if math.isfinite(loss)
    ]


def write(mirrors: Path, repositories: Mapping[str, bool]) -> None:
    """Extract the runs of repositories anew, and keep those of others.

    Args:
        mirrors: Folder of git clones.
        repositories: Whether each is held out.
    """
    found = [run for run in runs.load() if run["repository"] not in repositories]
    for repository, held_out in sorted(repositories.items()):
        extracted = extract(repository, mirrors / repository.replace("/", "+") / "repo")
        found += [{**run, "held_out": held_out} for run in extracted]
    # Of runs of the same model and size with the same numbers, all but the first are copies.
    distinct: dict[str, runs.Run] = {}
    for run in sorted(found, key=itemgetter("held_out")):
        numbers = json.dumps([run[name] for name in ("model", "gpus", "rows", "loss")])
        distinct.setdefault(numbers, run)
    lines = [json.dumps(run, separators=(",", ":")) + "\n" for run in distinct.values()]
    text = "".join(lines)
    write_atomically(runs.INPUT, gzip.compress(text.encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("repositories", nargs="*")
    parser.add_argument("--held-out", nargs="*", default=[])
    given = parser.parse_args()
    named = dict.fromkeys(given.repositories, False) | dict.fromkeys(
        given.held_out, True
    )
    present = {run["repository"]: run["held_out"] for run in runs.load()}
    write(given.mirrors, named or present)


if __name__ == "__main__":
    main()
