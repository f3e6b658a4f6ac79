"""One torch thread, and the lockstep machine as a fixture: test files are not importable from one another."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def lockstep() -> ModuleType:
    name = "ampsim_tests_lockstep"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("lockstep.py"))
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
