"""ampsim: a testbed for dynamic loss scaling.

Start with `ampsim.core.machine`, the page that says what a loss scaler does. Importing this package loads
the standard library and numpy, nothing else.

>>> from ampsim import Rule, replay
>>> replay(Rule(init_scale=1024.0, growth_interval=2), [False, False, True, False]).tolist()
[1024.0, 2048.0, 1024.0, 1024.0]
"""

from ampsim.core import dialects
from ampsim.core.machine import Rule, State, init, update
from ampsim.core.replay.ceilings import replay_ceilings
from ampsim.core.replay.fold import replay

__all__ = ["Rule", "State", "dialects", "init", "replay", "replay_ceilings", "update"]

__version__ = "0.1.0.dev0"
