"""The laws of the atlas: what every loss scaler should do, asked of other projects' scalers as they are.

A law is one function over a `Trial`; `judging` says what it came to, `emit` writes it as a test in the peer's own
words, `drift` asks whether a peer still equals its dialect. What tensors, several optimizers, threads and ranks add is
asked by `ampsim.testing`, of scalers that are objects in this process.

>>> from ampsim.peers import load
>>> from ampsim.peers.laws import LAWS, judge
>>> judge(load("torch")(), LAWS["overflow_is_never_stepped_into"], examples=5).outcome
'passed'
>>> judge(load("torch")(), LAWS["subnormal_scales_apply_nothing_infinite"], examples=5).outcome
'defect'
"""

from ampsim.peers.laws import constants, gradients, scales, states
from ampsim.peers.laws.judging import Verdict, judge
from ampsim.peers.laws.law import LAWS, Law

__all__ = ["LAWS", "Law", "Verdict", "constants", "gradients", "judge", "scales", "states"]
