"""Checks of the conformance table: the conformance suite's checks, run on scalers of other
frameworks.

`subject` wraps an adapter as a scaler with torch's names. `judging` selects the checks, runs them,
and decides who is responsible for a failure. `reports` links public threads about failures. `drift`
compares an adapter with its dialect. `ampsim.testing` covers tensors, several optimizers, threads,
and ranks.

>>> from ampsim.frameworks import load
>>> from ampsim.frameworks.checks import CHECKS, judge
>>> judge(load("torch")(), CHECKS["no_step_on_nonfinite_gradients"], examples=5).result.outcome
'passed'
>>> judge(load("torch")(), CHECKS["no_nonfinite_step_below_scale_one"], examples=5).result.outcome
'failed'
"""

from ampsim.frameworks.checks.judging import CHECKS, Verdict, judge

__all__ = ["CHECKS", "Verdict", "judge"]
