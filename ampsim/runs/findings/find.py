"""The list of findings, their order, and what follows from what."""

from collections.abc import Callable

from ampsim.runs.findings import gradients, loss, program, recorded, scale
from ampsim.runs.findings.evidence import Evidence
from ampsim.runs.findings.finding import Finding

FINDINGS: list[Callable[[Evidence], Finding | None]] = [
    loss.loss_zero_hides_nan,
    scale.never_stepped,
    loss.loss_not_finite,
    loss.nan_iterations,
    scale.scale_at_minimum,
    program.known_error,
    scale.static_scale_overflows,
    scale.scale_collapse,
    scale.overflow_at_low_scale,
    scale.skipped_to_the_end,
    scale.scale_endless_growth,
    gradients.norm_not_finite,
    gradients.norm_zero,
    gradients.carries_scale,
    gradients.norm_looks_scaled,
    scale.skips_too_often,
    loss.loss_diverged,
    loss.evaluation_not_finite,
    recorded.recorded_warning,
    recorded.dead_parameters,
    program.overflow_not_skipped,
    program.reported_not_finite,
    loss.loss_sometimes_not_finite,
    loss.loss_flat,
    scale.scale_low,
    program.known_warning,
    scale.scale_search,
    loss.loss_spike,
    scale.overflow_burst,
    scale.skipped_steps,
]
"""In the order in which they are reported within a severity. A finding comes before what follows from it."""

SYMPTOMS = frozenset(
    """scale-collapse scale-at-minimum overflow-at-low-scale skipped-to-the-end norm-not-finite evaluation-not-finite
    scale-low loss-sometimes-not-finite scale-search skips-too-often loss-reported-not-finite static-scale-overflows
    overflow-burst""".split()  # noqa: SIM905 - a list of 13 names
)
"""What follows from a loss that is not finite, and from a run whose steps are all skipped."""
CONSEQUENCES: dict[str, frozenset[str]] = {
    "loss-never-finite": SYMPTOMS | {"loss-not-finite"},
    "loss-not-finite": SYMPTOMS,
    "never-stepped": SYMPTOMS
    | {"loss-flat", "loss-constant", "loss-not-finite", "loss-never-finite"},
} | {
    cause: frozenset(follows.split())
    for cause, follows in {
        "loss-zero-hides-nan": "norm-not-finite evaluation-not-finite loss-flat loss-constant loss-diverged loss-rose "
        "never-stepped loss-sometimes-not-finite",
        "skipped-to-the-end": "skips-too-often norm-not-finite overflow-burst",
        "scale-at-minimum": "skipped-to-the-end scale-search scale-collapse scale-low skips-too-often "
        "overflow-at-low-scale error-scale-at-its-minimum error-scale-at-its-minimum-fairseq "
        "error-scale-too-small",
        "overflow-at-low-scale": "scale-low scale-search",
        "scale-collapse": "skipped-to-the-end scale-low overflow-at-low-scale scale-search skips-too-often "
        "overflow-burst",
        "norm-not-finite": "evaluation-not-finite",
        "scale-endless-growth": "norm-zero loss-constant loss-flat",
        "scaled-loss": "loss-diverged loss-rose loss-flat",
        "static-scale-overflows": "norm-not-finite skips-too-often",
    }.items()
}
"""Finding -> findings that follow from it, which are not reported beside it."""
SEVERITIES = ("problem", "warning", "info")


def find(run: Evidence) -> list[Finding]:
    """Return what a run shows, problems first, without what follows from another finding.

    Args:
        run: The run.

    Returns:
        Findings in the order in which a report shows them.
    """
    made = [finding for check in FINDINGS if (finding := check(run)) is not None]
    if any(finding.id == "loss-not-finite" for finding in made):
        # A loss that was finite before shows that steps were taken.
        made = [finding for finding in made if finding.id != "never-stepped"]
    kept, explained = list[Finding](), set[str]()
    for finding in made:
        if finding.id in explained:
            continue
        kept.append(finding)
        if finding.severity == "problem" or finding.id == "scaled-loss":
            explained |= CONSEQUENCES.get(finding.id, frozenset())
    return sorted(kept, key=lambda finding: SEVERITIES.index(finding.severity))
