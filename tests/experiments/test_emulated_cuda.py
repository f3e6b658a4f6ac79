"""CUDA's autocast lists on the CPU, and the experiment that trains under them."""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip(
    "numba", reason="the kernels are compiled: pip install 'ampsim[experiments]'"
)
from experiments import emulated_cuda
from experiments.emulation.autocast_lists import cuda_ops, listed, registered
from experiments.training import fp16, small_runs, tasks
from tests.experiments.runs import fresh

# Operators whose results have another dtype under CUDA's lists, forward and backward.
LOG_SOFTMAX = {"aten._log_softmax.default", "aten._log_softmax_backward_data.default"}
DIFFERING = {
    "vit": set(),
    "gpt": LOG_SOFTMAX,
    "sigmoid": LOG_SOFTMAX,
    "residual": LOG_SOFTMAX,
    "residual12": LOG_SOFTMAX,
    "resnet": LOG_SOFTMAX
    | {
        "aten.native_group_norm.default", "aten.native_group_norm_backward.default",
        "aten.relu.default", "aten.threshold_backward.default", "aten.add.Tensor",
        "aten.mean.dim", "aten.div.Scalar",
    },
}  # fmt: skip
VIEWS = ("detach", "unsqueeze", "expand", "_to_copy", "t", "view")


def autocast(
    operators: AbstractContextManager[None], function: object, *inputs: Tensor
) -> Tensor:
    with operators, torch.autocast("cpu", torch.float16):
        return function(*inputs)  # type: ignore[operator, no-any-return]


def test_group_norm_is_float32_on_cuda() -> None:
    x = torch.ones(2, 4).half()
    assert autocast(cuda_ops(), functional.group_norm, x, 2).dtype == torch.float32
    assert autocast(nullcontext(), functional.group_norm, x, 2).dtype == torch.float16


def test_sum_is_float32_unless_asked() -> None:
    x = torch.full((2,), 60000.0).half()
    assert autocast(cuda_ops(), torch.sum, x).item() == 120000.0
    assert (
        autocast(cuda_ops(), lambda x: x.sum(dtype=torch.float16), x).dtype
        == torch.float16
    )
    assert autocast(nullcontext(), torch.sum, x).dtype == torch.float16


def test_cross_entropy_rounds_log_probabilities() -> None:
    # CUDA's lists lack cross_entropy_loss, which asks log_softmax for the dtype of the logits.
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).half()
    y = torch.arange(5)
    rounded = functional.nll_loss(x.log_softmax(1).float(), y)
    assert torch.equal(autocast(cuda_ops(), functional.cross_entropy, x, y), rounded)
    exact = functional.cross_entropy(x.float(), y)
    assert torch.equal(autocast(nullcontext(), functional.cross_entropy, x, y), exact)
    assert not torch.equal(rounded, exact)


def test_lists_name_registered_operators() -> None:
    for macro in (
        "AT_FORALL_LOWER_PRECISION_FP",
        "AT_FORALL_FP32",
        "AT_FORALL_FP32_SET_OPT_DTYPE",
    ):
        assert len(listed(macro)) > 10
        assert listed(macro) <= registered("AutocastCUDA")
    with pytest.raises(RuntimeError, match="has no AT_FORALL_FP8"):
        listed("AT_FORALL_FP8")


class Dtypes(TorchDispatchMode):
    """Notes each operator with the dtypes of its results."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, tuple[torch.dtype, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if str(func).split(".")[1] not in VIEWS:
            dtypes = tuple(x.dtype for x in tree_leaves(out) if isinstance(x, Tensor))
            self.rows.append((str(func), dtypes))
        return out


@pytest.mark.parametrize("name", DIFFERING)
def test_lists_change_known_operators(name: str) -> None:
    seen = []
    for operators in (nullcontext(), cuda_ops()):
        task = tasks.make(name, 0, "cpu", 2)
        x, y = task.draw()
        with operators, Dtypes() as dtypes:
            with fp16.autocast("cpu", fp16=True):
                loss = task.criterion(task.model(x), y)
            loss.backward()
        seen.append(dtypes.rows)
    pairs = list(zip(*seen, strict=True))
    assert all(here[0] == there[0] for here, there in pairs)
    assert {here[0] for here, there in pairs if here != there} == DIFFERING[name]


def test_cpu_arm_equals_its_reference() -> None:
    row = fresh(emulated_cuda, "resnet, cpu, cpu")
    assert row["differing"] == []
    assert all(a == b for a, b in row["thresholds"] + row["activation_zeros"])
    assert row["gradient_error"][0] == 0


def test_emulated_arm_rounds_otherwise() -> None:
    row = fresh(emulated_cuda, "resnet, cuda, fp16 accumulator")
    assert 1e-3 < row["gradient_error"][0] < 0.1


def test_steps_move_every_parameter() -> None:
    parameters = [
        torch.nn.Parameter(torch.zeros(2, 3)),
        torch.nn.Parameter(torch.zeros(4)),
    ]
    small_runs.assign(parameters, torch.arange(10.0))
    assert [p.grad.flatten().tolist() for p in parameters if p.grad is not None] == [
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
        [6.0, 7.0, 8.0, 9.0],
    ]
