"""Every function is marked so that a compiled step splits where it does with torch's scaler, as test_gpu shows."""

import importlib
import pkgutil

import pytest
import torch

import ampsim.torch
from ampsim.torch import GradScaler, dynamo
from tests.torch.test_gpu import compiled


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_a_scaler_that_is_not_marked_splits_more_often() -> None:
    class Unmarked(GradScaler):
        def scale(self, outputs, ticket=None):
            return super().scale(outputs, ticket) * torch.ones(())

    theirs, ours = (compiled("cpu", make("cpu"), "plain SGD")[0] for make in (torch.amp.GradScaler, Unmarked))
    assert ours != theirs


MODULES = [module.name for module in pkgutil.walk_packages(ampsim.torch.__path__, "ampsim.torch.")]


@pytest.mark.parametrize("name", MODULES)
def test_every_function_of_every_module_is_marked_once_it_is_loaded(name) -> None:
    functions = [*dynamo.functions_of(importlib.import_module(name))]
    assert [f.__qualname__ for f in functions if not hasattr(f, "_torchdynamo_disable")] == []


def test_torch_still_has_the_call_that_marks() -> None:
    assert hasattr(dynamo.eval_frame, "set_code_exec_strategy"), "torch renamed it: see dynamo._skip"
