"""The checks of the atlas: those of the kit that any scaler can be asked, asked of other projects' scalers as they are.

`subject` makes of a peer a scaler with torch's names, which the kit's checks drive; `judging` says
which checks those are, whose promise each is, and what it came to; `reports` has what public
threads say of a broken one; `drift` asks whether a peer still equals its dialect. What tensors,
several optimizers, threads and ranks add is asked by `ampsim.testing`.

>>> from ampsim.peers import load
>>> from ampsim.peers.checks import CHECKS, judge
>>> judge(load("torch")(), CHECKS["no_step_on_nonfinite_gradients"], examples=5).result.outcome
'passed'
>>> judge(load("torch")(), CHECKS["no_nonfinite_step_at_subnormal_scale"], examples=5).result.outcome
'failed'
"""

from ampsim.peers.checks.judging import CHECKS, Verdict, judge

__all__ = ["CHECKS", "Verdict", "judge"]
