"""The gallery, `figures/README.md`: every figure with its question, its data and the command that makes it."""

import ast
import importlib
from collections.abc import Sequence
from pathlib import Path

from figures import _style, claims, results

NAME = "README.md"
SECTIONS: dict[str, tuple[str, ...]] = {
    "What fp16 does to gradients": (
        "exponent_heatmap", "gradient_histogram", "sigmoid_underflow", "static_sweep", "formats",
    ),
    "What the loss scale does about it": (
        "gpt_fp16", "resnet_fp16", "init_scale", "growth_interval", "policies", "policies_closed", "replay_fidelity",
    ),
    "How it goes wrong": (
        "scale_crash", "crash_signals", "overflow_storm", "spikes", "adversary", "ranks", "ranks_training", "loops",
        "atlas", "device_claims", "explain_faults", "public_runs",
    ),
    "On more than one thread": ("threads", "staleness", "async_depth"),
    "Theory": ("state_machine", "theory", "theory_real"),
    "Cost": ("overhead", "probe_overhead", "kernels"),
}  # fmt: skip
HEAD = """# Figures

Made by `python -m figures` from the data files named here, which `make reproduce` makes anew. Each names the device
that it was measured on. SVG for the screen, PDF beside it for print. [`playground.html`](playground.html), made by
`ampsim playground`, plays every loss scaler over three of these runs. [`report.png`](report.png) is the page of the run
in `collapse_run`'s data; `python -m figures.screenshot` takes it anew.
"""


def page(stems: Sequence[str]) -> str:
    """Return the gallery of these figures, in Markdown; those that no section names come last."""
    others = sorted(set(stems) - {stem for part in SECTIONS.values() for stem in part})
    parts = [HEAD]
    for title, members in {**SECTIONS, "Others": others}.items():
        shown = [stem for stem in members if stem in stems]
        parts += [f"## {title}\n", *map(entry, shown)] if shown else []
    parts.append(claims.table())
    return "\n".join(parts)


def entry(stem: str) -> str:
    """Return the part of the gallery on one figure."""
    module = importlib.import_module(f"figures.{stem}")
    caption = " ".join((module.__doc__ or "").split("\n\n")[0].split())
    lines = [f"### {stem}\n"]
    lines += [f"*{question(name)}*\n" for name in module.DATA]
    names = [stem if data.name == "cpu" else f"{stem}.{data.name}" for data in results.folders(module.DATA)]
    lines += [*(f"![{caption}]({name}.svg)\n" for name in names), f"{caption}\n"]
    if hasattr(module, "markdown"):
        lines.append(module.markdown(*[results.load(name) for name in module.DATA]))
    lines += [source(name) for name in module.DATA] or ["Drawn from `ampsim.core` by enumeration.\n"]
    return "\n".join(lines)


def question(stem: str) -> str:
    """Return the first paragraph of the experiment's docstring, without importing it."""
    text = (_style.HERE.parent / "experiments" / f"{stem}.py").read_text(encoding="utf-8")
    return " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())


def source(stem: str) -> str:
    """Return command, data file, device and seeds."""
    run = results.load(stem)
    seeds = len(run.seeds)
    path = f"experiments/data/cpu/{stem}.jsonl"
    return (
        f"`python -m experiments.{stem}` → [`{path}`](../{path}): "
        f"{len(run.records)} records, {seeds} seed{'s' * (seeds > 1)}, {run.device}.\n"
    )


def write(folder: Path, stems: Sequence[str]) -> Path:
    """Write the gallery; returns its path."""
    path = folder / NAME
    path.write_text(page(stems), encoding="utf-8")
    return path
