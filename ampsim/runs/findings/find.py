"""The list of findings, their order, and what follows from what."""

from collections.abc import Callable, Iterator

from ampsim.runs.findings import gradients, loss, program, scale
from ampsim.runs.findings.evidence import Evidence
from ampsim.runs.findings.finding import SEVERITIES, Finding, table

FINDINGS: list[Callable[[Evidence], Iterator[Finding]]] = [
    loss.loss_zero_hides_nan,
    scale.never_stepped,
    loss.loss_not_finite,
    scale.scale_collapse,
    scale.scale_at_minimum,
    program.known_error,
    scale.static_scale_overflows,
    scale.overflow_at_low_scale,
    scale.scale_endless_growth,
    gradients.norm_not_finite,
    gradients.norm_zero,
    gradients.carries_scale,
    scale.skips_too_often,
    loss.loss_diverged,
    loss.loss_leaped,
    loss.evaluation_not_finite,
    loss.all_not_finite,
    program.recorded_warning,
    program.reported,
    loss.loss_sometimes_not_finite,
    loss.loss_flat,
    scale.scale_low,
    scale.skipped_steps,
]
"""In the order of the report within a severity. A finding comes before what follows from it. Of the
findings of a function, the first counts.
"""


def find(run: Evidence) -> list[Finding]:
    """Return what a run shows, problems first, without what follows from another finding.

    Args:
        run: The run.

    Returns:
        Findings in the order in which a report shows them.
    """
    kept, explained = list[Finding](), set[str]()
    groups = table()["groups"]
    for check in FINDINGS:
        finding = next(check(run), None)
        if finding is None or finding.id in explained:
            continue
        kept.append(finding)
        row = table().get(finding.id, {})
        if finding.severity == "problem" or row.get("explains_always"):
            for name in row.get("explains", ()):
                explained.update(groups.get(name, [name]))
    return sorted(kept, key=lambda finding: SEVERITIES.index(finding.severity))
