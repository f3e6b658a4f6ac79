"""The gallery, `figures/README.md`: every figure with its question, its data and the command that makes it."""

import ast
import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from figures import _style, claim_results, results
from figures.claims import CLAIMS

NAME = "README.md"
SECTIONS: dict[str, tuple[str, ...]] = {
    "What fp16 does to gradients": (
        "exponent_heatmap", "gradient_histogram", "sigmoid_underflow", "static_sweep",
    ),
    "What the loss scale does about it": (
        "gpt_fp16", "resnet_fp16", "rules_trained", "policies",
    ),
    "How it goes wrong": (
        "scale_crash", "overflow_storm", "ranks_cells", "ranks_training",
        "loops", "conformance", "device_claims", "explain_faults", "public_runs", "whole_logs",
        "census",
    ),
    "On more than one thread": ("threads", "staleness", "async_depth"),
    "Theory": ("state_machine", "theory", "theory_real"),
    "Cost": ("overhead",),
}  # fmt: skip
HEAD = """# Figures

Made by `python -m figures` from the data files named here, which `make reproduce` makes anew. Each names the device
that it was measured on. `python -m figures --pdf` writes PDFs for print. [`playground.html`](playground.html), made by
`ampsim playground`, replays three of these runs under two loss scalers. [`report.png`](report.png) is the page of
`docs/examples/run.jsonl`; `python -m figures.screenshot` takes the picture again.
"""


def page(stems: Sequence[str], *data: Path, folder: Path = _style.HERE) -> str:
    """Return the gallery of these figures, in Markdown; those that no section names come last.

    Args:
        stems: the figures.
        data: folders of data files, as for `rendering.render`.
        folder: where the page will lie, for its links.
    """
    others = sorted(set(stems) - {stem for part in SECTIONS.values() for stem in part})
    parts = [HEAD]
    for title, members in {**SECTIONS, "Others": others}.items():
        shown = [stem for stem in members if stem in stems]
        parts += [f"## {title}\n", *(entry(stem, folder, *data) for stem in shown)] if shown else []
    parts.append(trials(*data))
    return "\n".join(parts)


def entry(stem: str, folder: Path, *data: Path) -> str:
    """Return the part of the gallery on one figure."""
    module = importlib.import_module(f"figures.{stem}")
    caption = " ".join((module.__doc__ or "").split("\n\n")[0].split())
    lines = [f"### {stem}\n"]
    lines += [f"*{question(name)}*\n" for name in module.DATA]
    devices = (
        []
        if data
        else [place.name for place in results.folders(module.DATA) if place.name != "cpu"]
    )
    names = [stem, *(f"{stem}.{device}" for device in devices)]
    lines += [*(f"![{caption}]({name}.svg)\n" for name in names), f"{caption}\n"]
    if hasattr(module, "markdown"):
        lines.append(module.markdown(*[results.load(name, *data) for name in module.DATA]))
    lines += [source(name, folder, *data) for name in module.DATA] or [
        "Drawn from `ampsim.core` by enumeration.\n"
    ]
    return "\n".join(lines)


def question(stem: str) -> str:
    """Return the first paragraph of the experiment's docstring, without importing it."""
    text = (_style.HERE.parent / "experiments" / f"{stem}.py").read_text(encoding="utf-8")
    return " ".join((ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0].split())


def source(stem: str, folder: Path, *data: Path) -> str:
    """Return command, data file, device and seeds."""
    run = results.load(stem, *data)
    seeds = len(run.seeds)
    path, link = (
        Path(os.path.relpath(run.path, place)).as_posix() for place in (_style.HERE.parent, folder)
    )
    return (
        f"`python -m experiments.{stem}` → [`{path}`]({link}): "
        f"{len(run.records)} records, {seeds} seed{'s' * (seeds > 1)}, {run.device}.\n"
    )


def trials(*data: Path) -> str:
    """Return what became of the claims that had been tried before, as a table in Markdown."""
    lines = [
        "## What trials had said, and what the data says\n",
        "Now: the mean over the seeds of the data file (lowest to highest).\n",
        "| claim | trial | now | the trial is | data |",
        "|---|---|---|---|---|",
    ]
    for claim in filter(lambda claim: claim.trial, CLAIMS.values()):
        found = claim_results.judge(claim, *data)
        said = claim.verdict if found.holds else "the claim does not hold"
        lines.append(
            f"| {claim.sentence} | {claim.trial} | {found.now} | **{said}** | `{claim.stem}` |"
        )
    return "\n".join(lines) + "\n"


def write(folder: Path, stems: Sequence[str], *data: Path) -> Path:
    """Write the gallery of the committed data, or of other folders; returns its path."""
    path = folder / NAME
    path.write_text(page(stems, *data, folder=folder if data else _style.HERE), encoding="utf-8")
    return path
