"""Policies: machines outside the backoff family, each a pair of pure functions over a state of its own.

`base` is the queue and the bounds that they share, and the theory of operation; each other file is one policy.
A policy knows its own numbers and what it is told of one iteration, and neither tensors nor who asks.
"""

from ampsim.core.policies.base import Observation, Policy, PolicyState
from ampsim.core.policies.deduplicated import Deduplicated, Ratio
from ampsim.core.policies.floor_schedule import FloorSchedule
from ampsim.core.policies.headroom import Headroom
from ampsim.core.policies.log_max import LogMax
from ampsim.core.policies.probe import Probe

__all__ = [
    "Deduplicated",
    "FloorSchedule",
    "Headroom",
    "LogMax",
    "Observation",
    "Policy",
    "PolicyState",
    "Probe",
    "Ratio",
]
