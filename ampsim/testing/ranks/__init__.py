"""The ranks of a process group that train together, each with a scaler, step and scale as one.

`scenario` is what every rank does, and what was seen of it on one rank. `gradients` is where a
rank's gradients come from. `threads` runs ranks as threads under the scheduler, each first or late,
in milliseconds; `processes` runs them as processes with gloo, in the one order that comes. `checks`
states what must hold for the records of all ranks, and `judge` runs the checks.
"""
