"""A compiled training step splits at the scaler exactly where it splits at torch's."""

import importlib
import pkgutil

import pytest
import torch
import torch._dynamo

import ampsim.torch
from ampsim.torch import GradScaler, dynamo

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "fused AdamW": lambda params: torch.optim.AdamW(params, fused=True),
}


def graphs(scaler, make_optimizer) -> tuple[list[int], list[torch.Tensor]]:
    """Nodes of each graph that a compiled step is made of, and the parameters after three steps."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = make_optimizer(model.parameters())
    found: list[int] = []

    def backend(graph, _):
        found.append(len(graph.graph.nodes))
        return graph.forward

    def step(x):
        optimizer.zero_grad()
        loss = scaler.scale(model(x).square().mean())
        loss.backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss

    compiled = torch.compile(step, backend=backend)
    for _ in range(3):
        compiled(torch.ones(3, 4))
    torch._dynamo.reset()
    return found, [p.detach().clone() for p in model.parameters()]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_no_graph_break_that_torchs_scaler_has_not(make_optimizer) -> None:
    theirs, parameters = graphs(torch.amp.GradScaler("cpu"), make_optimizer)
    ours, same = graphs(GradScaler("cpu"), make_optimizer)
    assert ours == theirs
    assert all(map(torch.equal, parameters, same))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_a_scaler_that_is_not_marked_splits_more_often() -> None:
    class Unmarked(GradScaler):
        def scale(self, outputs, ticket=None):
            return super().scale(outputs, ticket) * torch.ones(())

    theirs, _ = graphs(torch.amp.GradScaler("cpu"), OPTIMIZERS["sgd"])
    ours, _ = graphs(Unmarked("cpu"), OPTIMIZERS["sgd"])
    assert ours != theirs


MODULES = [module.name for module in pkgutil.walk_packages(ampsim.torch.__path__, "ampsim.torch.")]


@pytest.mark.parametrize("name", MODULES)
def test_every_function_of_every_module_is_marked_once_it_is_loaded(name) -> None:
    functions = [*dynamo.functions_of(importlib.import_module(name))]
    assert [f.__qualname__ for f in functions if not hasattr(f, "_torchdynamo_disable")] == []


def test_torch_still_has_the_call_that_marks() -> None:
    assert hasattr(dynamo.eval_frame, "set_code_exec_strategy"), "torch renamed it: see dynamo._skip"
