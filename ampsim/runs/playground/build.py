"""Build the playground: recorded runs, and a script that replays torch's rule on them.

The overflow thresholds of a run come from its record: the largest gradient at the sampled steps, to
a factor of two, and whether each step was skipped at its scale. With the run's own rule, a replay
skips the recorded steps.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ampsim.core.dialects import get
from ampsim.core.formats import FP16
from ampsim.core.json_lines import Record
from ampsim.runs.record.data_file import read
from ampsim.runs.report.page import assemble

HERE = Path(__file__).parent
DATA = (
    HERE / "exponent_heatmap.jsonl"
)  # in a checkout a link to experiments/data, in a wheel the file
RUNS = {
    "gpt dynamic": (
        "Transformer, 384 steps",
        "Without a loss scale, fp16 rounds half of the gradient elements to zero at first and "
        "more later.",
    ),
    "sigmoid dynamic": (
        "Deep sigmoid network, 1,024 steps",
        "At first, 3% of the gradient elements are below 2⁻³⁰. This share falls during training.",
    ),
    "residual dynamic": (
        "Residual network that diverges, 128 steps",
        "From step 60 on, no gradient element is finite in fp16, so each step overflows at any "
        "scale.",
    ),
}
"""Arm of the experiment -> title and description of its run."""
SCRIPTS = ("rule.js", "chart.js", "playground.js")
SETTINGS = (
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "min_scale",
    "max_scale",
)
TOP = round(math.log2(FP16.overflow_threshold))


def playground() -> str:
    """Return the page of the recorded runs; it needs no network and no other file."""
    _, rows = read(DATA)
    kept = {row["arm"]: row for row in rows if row["counts"]}
    runs = [run_data(title, said, kept[arm]) for arm, (title, said) in RUNS.items()]
    body = f"<style>{_text('playground.css')}</style>\n{_text('playground.html')}"
    scripts = [_text(name) for name in SCRIPTS]
    return assemble(
        "Loss scaler playground", scripts, {"runs": runs, "torch": settings()}, body
    )


def settings(**changes: float) -> dict[str, float | None]:
    """Return the settings that have sliders: the defaults of torch with these changes."""
    rule = get("torch.amp.GradScaler")
    return {name: getattr(rule, name) for name in SETTINGS} | changes


def run_data(title: str, said: str, record: Record) -> dict[str, object]:
    """Return a run in the form that the script reads."""
    own = {name: record["settings"][name] for name in ("init_scale", "growth_interval")}
    return {
        "title": title,
        "said": said,
        "settings": settings(**own),
        "every": record["every"],
        "counts": record["counts"],
        "thresholds": thresholds(record),
    }


def thresholds(record: Record) -> list[float]:
    """Return for each step the largest scale at which the record allows finite gradients.

    The largest element of a sample lies in [2^e, 2^(e+1)), so its threshold is 2^(15-e). Other
    steps take the threshold of the nearest sample. A step that was not skipped at scale S has at
    least S, a skipped step at most S / 2, and 0 if no element of its gradient was finite: the
    forward pass overflowed.
    """
    every, skipped = record["every"], set(record["found_inf"])
    sampled = [
        2.0 ** (TOP - counts[0] - len(counts) + 1) if counts else 0.0
        for counts in record["counts"]
    ]
    found = []
    for step, scale in enumerate(
        _scales(record["scale_changes"], every * len(sampled))
    ):
        sample = min(round(step / every), len(sampled) - 1)
        if step not in skipped:
            found.append(max(sampled[sample], scale))
        elif record["not_finite"][sample] == 1.0:
            found.append(0.0)
        else:
            found.append(min(sampled[sample], scale / 2))
    return found


def _scales(changes: Sequence[tuple[int, float]], steps: int) -> list[float]:
    begins, scales = zip(*changes, strict=True)
    return [
        scales[i] for i in np.searchsorted(begins, np.arange(steps), side="right") - 1
    ]


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
