"""Every function is marked so that a compiled step splits where it does with torch's scaler, as test_gpu shows."""

import importlib
import pkgutil
from types import SimpleNamespace

import pytest
import torch

import ampsim.torch
from ampsim.torch import GradScaler, dynamo
from ampsim.torch.gradients import kernels
from tests.torch.test_gpu import compiled


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_a_scaler_that_is_not_marked_splits_more_often() -> None:
    class Unmarked(GradScaler):
        def scale(self, outputs, ticket=None):
            return super().scale(outputs, ticket) * torch.ones(())

    theirs, ours = (compiled("cpu", make("cpu"), "plain SGD")[0] for make in (torch.amp.GradScaler, Unmarked))
    assert ours != theirs


MODULES = ["ampsim"] + [module.name for module in pkgutil.walk_packages(ampsim.torch.__path__, "ampsim.torch.")]


@pytest.mark.parametrize("name", MODULES)
def test_every_function_of_every_module_is_marked_once_it_is_loaded(name) -> None:
    functions = [*dynamo.functions_of(importlib.import_module(name))]
    assert [f.__qualname__ for f in functions if not hasattr(f, "_torchdynamo_disable")] == []


def test_what_reads_a_property_is_marked_too() -> None:
    assert hasattr(GradScaler.last_step.fget, "_torchdynamo_disable")


class Launch:
    """In the place of a kernel: what Triton does to launch it is plain Python of another project."""

    def __getitem__(self, grid):
        return lambda *args, **options: [arg for arg in args if isinstance(arg, torch.Tensor)][-1].zero_()


def test_what_a_launch_calls_is_not_compiled_nor_a_function_below_a_cache(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_check", Launch())
    monkeypatch.setattr(kernels, "tl", SimpleNamespace(float32=None))  # Triton need not be there
    kernels._table.cache_clear()
    graphs = []

    @torch.compile(backend=lambda graph, _: graphs.append([str(node) for node in graph.graph.nodes]) or graph.forward)
    def step(x):
        return kernels.norm_and_flag([x * 2])

    for size in (3, 4):  # other addresses, other tables
        step(torch.ones(3)[:size])
    assert graphs == [["l_x_", "mul", "output"]]
    assert [*dynamo.functions_of(kernels)].count(kernels._table.__wrapped__) == 1


def test_torch_still_has_the_call_that_marks() -> None:
    assert hasattr(dynamo.eval_frame, "set_code_exec_strategy"), "torch renamed it: see dynamo._skip"
