"""Build the playground: committed runs, every dialect as data, and the scripts that play one over the other.

A run's ceilings (see `ampsim.core.replay.ceilings`) come from what was recorded of it: the largest gradient at the
sampled steps, to a binade, and what each step showed: clean at its scale, or not. So the run's own rule, played
over them, skips the steps that were really skipped.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ampsim.core import dialects
from ampsim.core.dialects import Dialect
from ampsim.core.formats import FP16
from ampsim.core.machine import Rule
from ampsim.core.vectors import as_data
from ampsim.diagnose.formats import NUMBER, TABLE
from ampsim.diagnose.page.page import assemble
from ampsim.records import Record, read

HERE = Path(__file__).parent
DATA = HERE / "exponent_heatmap.jsonl"  # in a checkout a link to experiments/data, in a wheel the file
RUNS = {
    "gpt dynamic": ("Transformer, 384 steps", "Its loss is a small share of a large batch's, so that its gradients "
                    "lie far below what fp16 holds; the scale began at 1."),
    "sigmoid dynamic": ("Deep sigmoid network, 1,024 steps", "Its first layers' gradients lie at 2⁻³⁰ and below, and "
                        "they grow as it learns."),
    "residual dynamic": ("Residual network that diverges, 128 steps", "In the end its forward pass overflows, so that "
                         "every step is skipped whatever the scale."),
}  # fmt: skip
SCRIPTS = ("machine.js", "run.js", "words.js", "reader.js", "log.js", "picture.js", "playground.js")
READ = {
    "program": ("name", "mark"),
    "spelling": ("word", "pattern", "as"),
    "sentence": ("word", "pattern", "before", "skips", "says", "logarithm", "repeats", "ranks"),
}
FORMATS = {
    "number": NUMBER,
    "names": TABLE["fields"],
    "pattern": TABLE["pattern"],
    **{name: TABLE["names"][name].split() for name in ("not_training", "alone")},
    **{name: [{key: row[key] for key in keys if key in row} for row in TABLE[name]] for name, keys in READ.items()},
}
"""What the page needs of the table of formats to read a log."""
TOP = round(math.log2(FP16.overflow_threshold))


def playground(data: Path = DATA) -> str:
    """Return the page of some records of ``experiments.exponent_heatmap``."""
    _, rows = read(data)
    kept = {row["arm"]: row for row in rows if row["counts"]}
    runs = [run_data(title, said, kept[arm]) for arm, (title, said) in RUNS.items() if arm in kept]
    body = f"<style>{_text('playground.css')}</style>\n{_text('playground.html')}"
    given = {"runs": runs, "dialects": all_dialects(), "table": FORMATS}
    return assemble(
        "ampsim playground: move the knobs of a loss scaler", [_text(name) for name in SCRIPTS], given, body
    )


def run_data(title: str, said: str, record: Record) -> dict[str, object]:
    """Return a run as the page takes it; ceilings as log2, None where every scale overflows."""
    ceilings = [math.log2(ceiling) if ceiling > 0 else None for ceiling in ceilings_of(record)]
    settings = {name: record["settings"][name] for name in ("init_scale", "growth_interval")}
    given = {name: record[name] for name in ("every", "counts", "found_inf")}
    return {"title": title, "said": said, "log2ceilings": ceilings, "settings": settings, **given}


def ceilings_of(record: Record) -> list[float]:
    """Return for each step a scale at which it is taken to be finite, the largest that the record lets us assume.

    A sample's largest element lies in [2^e, 2^(e+1)): its ceiling is 2^(15-e). Other steps take that of the nearest
    sample. A step that was clean at S has a ceiling of at least S, one that was skipped of at most S / 2. It is 0
    where no element of the gradient was finite: the forward pass overflowed.
    """
    every, skipped = record["every"], set(record["found_inf"])
    scales = _in_force(record["scale_changes"], every * len(record["counts"]))
    sampled = [2.0 ** (TOP - counts[0] - len(counts) + 1) if counts else math.inf for counts in record["counts"]]
    ceilings = []
    for step, scale in enumerate(scales):
        sample = min(round(step / every), len(sampled) - 1)
        if record["not_finite"][sample] == 1.0 and step in skipped:
            ceilings.append(0.0)
        else:
            ceilings.append(min(sampled[sample], scale / 2) if step in skipped else max(sampled[sample], scale))
    return ceilings


def _in_force(changes: Sequence[tuple[int, float]], steps: int) -> list[float]:
    begins, scales = zip(*changes, strict=True)
    return [scales[i] for i in np.searchsorted(begins, np.arange(steps), side="right") - 1]


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def rule_data(rule: Rule) -> dict[str, object]:
    """Return a rule as JSON can hold it: field -> number, text, list, or an object of these."""
    return as_data(rule, lambda x: "inf" if x == math.inf else x)


def dialect_data(dialect: Dialect) -> dict[str, object]:
    """Return a dialect: its default rule, its parameters, and what becomes of an interval and a first scale in it."""
    data: dict[str, object] = {"name": dialect.name, "source": dialect.source, "parameters": dict(dialect.parameters)}
    data["rule"] = rule_data(dialect())
    data["clamps_init"] = "init" not in dialect.parameters or dialect(init=2.0**60).init_scale < 2.0**60
    if "interval" in dialect.parameters:
        made = dialect(interval=7)
        data["interval"] = "spread" if made.growth_factor != dialect().growth_factor else made.growth_interval - 7
    return data


def all_dialects() -> list[dict[str, object]]:
    """Return every dialect, in alphabetical order."""
    return [dialect_data(dialects.ALL[name]) for name in dialects.names()]
