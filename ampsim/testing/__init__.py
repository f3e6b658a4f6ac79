"""Conformance tests for loss scalers and training loops.

``import ampsim`` does not load this package, and each name loads its module on first use:

* `check_scaler` runs the checks on a loss scaler, and `check_threads` those of threads. `Traits`
  declares intentional differences, `Subject` names a scaler, `FoundInfAdapter` adapts a scaler that
  takes a found_inf flag, and `known_failures` lists what torch's scalers fail.
* `check_loop` runs the checks on a training loop, given as a `Loop`, without a reference run.
* `check_script` runs a whole training script unchanged and checks what it does; `checked` does so
  in a block of code.
* `check_ranks` runs the checks on scalers that synchronize over several ranks.
* `parametrize_with_checks` makes a pytest test of each check of scalers or loops.
* `scheduler` runs threads one at a time in an order that the test chooses.

The modules, from what all share to what one kind of target needs:

* `check` (a check, a result, the texts of failures), `judge` (runs one check), `child` (in a process
  of its own), `alarm` (with a time limit), `examples` (generates), `report` (a table).
* ``scaler_checks``, ``ranks``, ``loop``, ``script_checks``: one package per kind of target. In each,
  ``check`` or ``checks`` has its checks, and ``run`` or ``judge`` the functions that run them.
* `lines` and ``scheduler`` watch a user's code and its threads, ``emit`` writes a failure as a test,
  and `parametrize` and `plugin` are for pytest.
"""

import importlib
from typing import TYPE_CHECKING

from ampsim.core.extras import missing

if TYPE_CHECKING:
    from ampsim.testing.loop.judge import check_loop as check_loop
    from ampsim.testing.loop.loop import Loop as Loop
    from ampsim.testing.loop.loop import LoopError as LoopError
    from ampsim.testing.parametrize import (
        parametrize_with_checks as parametrize_with_checks,
    )
    from ampsim.testing.ranks.judge import check_ranks as check_ranks
    from ampsim.testing.scaler_checks.found_inf_adapter import (
        FoundInfAdapter as FoundInfAdapter,
    )
    from ampsim.testing.scaler_checks.run import check_scaler as check_scaler
    from ampsim.testing.scaler_checks.run import check_threads as check_threads
    from ampsim.testing.scaler_checks.subject import Subject as Subject
    from ampsim.testing.scaler_checks.traits import Traits as Traits
    from ampsim.testing.script_checks.block import checked as checked
    from ampsim.testing.script_checks.run import check_script as check_script

_HOMES = {  # public name -> the module that holds it, or that it is
    "FoundInfAdapter": "ampsim.testing.scaler_checks.found_inf_adapter",
    "Loop": "ampsim.testing.loop.loop",
    "LoopError": "ampsim.testing.loop.loop",
    "Subject": "ampsim.testing.scaler_checks.subject",
    "Traits": "ampsim.testing.scaler_checks.traits",
    "check_loop": "ampsim.testing.loop.judge",
    "check_ranks": "ampsim.testing.ranks.judge",
    "check_scaler": "ampsim.testing.scaler_checks.run",
    "check_script": "ampsim.testing.script_checks.run",
    "check_threads": "ampsim.testing.scaler_checks.run",
    "checked": "ampsim.testing.script_checks.block",
    "scheduler": "ampsim.testing.scheduler",
    "known_failures": "ampsim.testing.known_failures",
    "parametrize_with_checks": "ampsim.testing.parametrize",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: expected one of {__all__}"
        )
    try:
        module = importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        raise missing(error) from error
    return module if module.__name__.endswith(f".{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
