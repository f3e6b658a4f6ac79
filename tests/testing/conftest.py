"""Every test here leaves no thread behind, and stays on one core, where handing over is quicker."""

import os
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import Phase, settings

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
def brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Do not shrink a failure, and look for no trait that excuses it: that takes half the time."""
    monkeypatch.setattr("ampsim.testing.scaler_checks.check.suggestion", lambda *_: [])
    before = settings.get_current_profile_name()
    settings.register_profile("brief", settings.default, phases=[Phase.generate])
    settings.load_profile("brief")
    yield
    settings.load_profile(before)


@pytest.fixture
def few_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave to the deep tests most of the orders in which the checks of threads are asked."""
    if os.environ.get("AMPSIM_DEEP") != "1":
        monkeypatch.setattr("ampsim.testing.scaler_checks.threads.LIMIT", 20)
