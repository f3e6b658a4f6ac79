"""The gallery, `figures/README.md`: each figure with its question, data, and command."""

import ast
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from ampsim.core.files import write_atomically
from figures import _style, results
from figures.tables import TABLES

NAME = "README.md"
SECTIONS: dict[str, tuple[str, ...]] = {
    "Effects of fp16 on gradients": (
        "exponent_heatmap",
        "gradient_histogram",
        "needs_scale",
    ),
    "Loss scaling in training": ("rules_trained",),
    "Failures and conformance": (
        "scale_crash",
        "overflow_storm",
        "ranks_cells",
        "ranks_training",
        "loops",
        "conformance",
        "cuda_runs",
        "log_power",
        "emulated_cuda",
    ),
    "Threads": ("threads",),
    "Theory": ("theory_real",),
}
HEAD = """# Figures

`python -m figures` makes these figures and tables from the committed data files. Each figure names the device on which
its data was computed.

- `make reproduce` computes the data again in `build/here`.
- [`playground.html`](playground.html) replays three of the recorded runs under two loss scalers. `ampsim playground`
  writes this page.
- [`report.png`](report.png) shows the report of `docs/examples/run.jsonl`. `python -m figures.screenshot` takes the
  picture.
"""


def page(stems: Sequence[str], *data: Path, folder: Path = _style.HERE) -> str:
    """Return the gallery of these figures in Markdown; figures without a section come last.

    Args:
        stems: Names of the figures.
        data: Folders of data files, as for `rendering.render`.
        folder: Folder of the page, for its links.
    """
    others = sorted(set(stems) - {stem for part in SECTIONS.values() for stem in part})
    parts = [HEAD]
    for title, members in {**SECTIONS, "Others": others}.items():
        shown = [stem for stem in members if stem in stems or stem in TABLES]
        parts += (
            [f"## {title}\n", *(entry(stem, folder, *data) for stem in shown)]
            if shown
            else []
        )
    return "\n".join(parts)


def entry(stem: str, folder: Path, *data: Path) -> str:
    """Return the part of the gallery on one figure or table."""
    if stem in TABLES:
        table = TABLES[stem](results.load(stem, *data)).markdown()
        return "\n".join(
            [
                f"### {stem}\n",
                f"*{question(stem)}*\n",
                table,
                source(stem, folder, *data),
            ]
        )
    module = importlib.import_module(f"figures.{stem}")
    paragraphs = [
        " ".join(part.split()) for part in (module.__doc__ or "").split("\n\n")
    ]
    lines = [f"### {stem}\n"]
    lines.append(f"*{question(module.DATA[0])}*\n")
    lines.append(f"![{module.ALT}]({stem}.svg)\n")
    lines += [f"{paragraph.strip()}\n" for paragraph in paragraphs]
    lines += [source(name, folder, *data) for name in module.DATA]
    return "\n".join(lines)


def question(stem: str) -> str:
    """Return the first paragraph of the experiment's docstring, without importing it."""
    text = (_style.HERE.parent / "experiments" / f"{stem}.py").read_text(
        encoding="utf-8"
    )
    return " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())


def source(stem: str, folder: Path, *data: Path) -> str:
    """Return command, data file, device and seeds."""
    run = results.load(stem, *data)
    records = len(run.records)
    seeds = len(run.seeds)
    path, link = (
        Path(os.path.relpath(run.path, place)).as_posix()
        for place in (_style.HERE.parent, folder)
    )
    return (
        f"`python -m experiments.{stem}` → [`{path}`]({link}): "
        f"{records} record{'s' * (records > 1)}, {seeds} seed{'s' * (seeds > 1)}, computed on {run.device}.\n"
    )


def write(folder: Path, stems: Sequence[str], *data: Path) -> Path:
    """Write the gallery of the committed data or of other folders; return its path."""
    path = folder / NAME
    text = page(stems, *data, folder=folder if data else _style.HERE)
    write_atomically(path, text.encode())
    return path
