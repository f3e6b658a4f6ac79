"""Every test here leaves no thread behind, and stays on one core, where handing over is quicker."""

import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest

from ampsim.testing import scheduler


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.enumerate()
    with scheduler.one_core():
        yield
    assert threading.enumerate() == before


@pytest.fixture
def framework(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module `framework`, whose `Scaler` is exchanged."""
    module = ModuleType("framework")
    monkeypatch.setitem(sys.modules, "framework", module)
    return module


@pytest.fixture
def few_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave to the deep tests most of the orders in which the checks of threads are asked."""
    if os.environ.get("AMPSIM_DEEP") != "1":
        monkeypatch.setattr("ampsim.testing.kit.checks.threads.LIMIT", 20)
