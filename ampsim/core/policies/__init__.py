"""Policies: machines outside the backoff family, each a pair of pure functions over a state of its own."""

from ampsim.core.policies.base import Observation as Observation
from ampsim.core.policies.base import Policy as Policy
from ampsim.core.policies.base import PolicyState as PolicyState
from ampsim.core.policies.machines import Deduplicated as Deduplicated
from ampsim.core.policies.machines import FloorSchedule as FloorSchedule
from ampsim.core.policies.machines import Headroom as Headroom
from ampsim.core.policies.machines import LogMax as LogMax
from ampsim.core.policies.machines import Probe as Probe
from ampsim.core.policies.machines import Ratio as Ratio
