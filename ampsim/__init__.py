"""ampsim: a testbed for dynamic loss scaling.

Start with `ampsim.core.machine`, the reference state machine of a loss scaler. Importing this
package loads only the standard library; numpy is loaded when one of its names is first used.

>>> from ampsim import Rule, replay
>>> replay(Rule(init_scale=1024.0, growth_interval=2), [False, False, True, False]).tolist()
[1024.0, 2048.0, 1024.0, 1024.0]
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampsim.core import dialects as dialects
    from ampsim.core.machine import Rule as Rule
    from ampsim.core.machine import State as State
    from ampsim.core.machine import init as init
    from ampsim.core.machine import update as update
    from ampsim.core.replay.fold import replay as replay
    from ampsim.core.replay.thresholds import replay_thresholds as replay_thresholds
    from ampsim.runs.data_frame import load as load

_MODULES = {  # public name -> its module, loaded when the name is first used
    "Rule": "ampsim.core.machine",
    "State": "ampsim.core.machine",
    "dialects": "ampsim.core.dialects",
    "init": "ampsim.core.machine",
    "load": "ampsim.runs.data_frame",
    "replay": "ampsim.core.replay.fold",
    "replay_thresholds": "ampsim.core.replay.thresholds",
    "update": "ampsim.core.machine",
}

__all__ = [*_MODULES]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: expected one of {__all__}"
        )
    module = importlib.import_module(_MODULES[name])
    return module if module.__name__.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
