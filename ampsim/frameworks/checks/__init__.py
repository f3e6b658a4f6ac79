"""The checks of the conformance table: those of the kit that any scaler can be asked, asked of
other projects' scalers as they are.

`subject` makes of an adapter a scaler with torch's names, which the kit's checks drive; `judging` says
which checks those are, whose promise each is, and what it came to; `reports` has what public
threads say of a broken one; `drift` asks whether an adapter still equals its dialect. What tensors,
several optimizers, threads and ranks add is asked by `ampsim.testing`.

>>> from ampsim.frameworks import load
>>> from ampsim.frameworks.checks import CHECKS, judge
>>> judge(load("torch")(), CHECKS["no_step_on_nonfinite_gradients"], examples=5).result.outcome
'passed'
>>> judge(load("torch")(), CHECKS["no_nonfinite_step_at_subnormal_scale"], examples=5).result.outcome
'failed'
"""

from ampsim.frameworks.checks.judging import CHECKS, Verdict, judge

__all__ = ["CHECKS", "Verdict", "judge"]
