"""Training runs: record, read, explain, and show what the loss scale did.

`watch` records each step of a loop; ``record/examples.md`` shows how with each framework. `explain`
diagnoses a log.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampsim.runs.data_frame import load as load
    from ampsim.runs.explain_log import Explanation as Explanation
    from ampsim.runs.explain_log import explain as explain
    from ampsim.runs.read.read import read_log as read_log
    from ampsim.runs.record.data_file import read_provenance as read_provenance
    from ampsim.runs.record.run_file import read_run as read_run
    from ampsim.runs.record.run_file import records as records
    from ampsim.runs.record.watch import Run as Run
    from ampsim.runs.record.watch import watch as watch

_MODULES = {  # public name -> its module, loaded when the name is first used
    "Explanation": "ampsim.runs.explain_log",
    "Run": "ampsim.runs.record.watch",
    "explain": "ampsim.runs.explain_log",
    "load": "ampsim.runs.data_frame",
    "read_log": "ampsim.runs.read.read",
    "read_provenance": "ampsim.runs.record.data_file",
    "read_run": "ampsim.runs.record.run_file",
    "records": "ampsim.runs.record.run_file",
    "watch": "ampsim.runs.record.watch",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}: expected one of {__all__}"
        )
    from ampsim.core.extras import needing

    with needing():
        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
