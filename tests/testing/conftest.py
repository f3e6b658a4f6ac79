"""Every test here leaves no thread behind, and stays on one core, where handing over is quicker."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from hypothesis import Phase, settings

from ampsim.testing import scheduler
from ampsim.testing.examples import DEFAULT


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


@contextmanager
def profile(**values: Any) -> Iterator[None]:
    """Load a hypothesis profile that differs from the current one in these settings."""
    before = settings.get_current_profile_name()
    name = f"{before}, {values}"
    settings.register_profile(name, settings.default, **values)
    settings.load_profile(name)
    try:
        yield
    finally:
        settings.load_profile(before)


@pytest.fixture(autouse=True)
def _same_examples() -> Iterator[None]:
    """Run the checks on the examples of a user without a profile, whichever one these tests have."""
    number = max(DEFAULT, settings.default.max_examples)
    with profile(derandomize=True, max_examples=number, database=None):
        yield


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch, _same_examples: None) -> Iterator[None]:
    """Do not shrink a failure, and look for no trait that excuses it: that takes half the time."""
    monkeypatch.setattr("ampsim.testing.scaler_checks.check.suggestion", lambda *_: [])
    with profile(phases=[Phase.generate]):
        yield


@pytest.fixture
def few_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave to the deep tests most of the orders in which the checks of threads are asked."""
    if os.environ.get("AMPSIM_DEEP") != "1":
        monkeypatch.setattr("ampsim.testing.scaler_checks.threads.LIMIT", 20)
