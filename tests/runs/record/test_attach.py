"""Whatever steps a model is watched: closures, threads, several optimizers, odd scalers, gradients
and processes.
"""

import math
import multiprocessing
import os
import signal
from contextlib import closing

import numpy as np
import pytest
import torch
from torch import nn

import ampsim.torch
from ampsim import Rule
from ampsim.core.pipeline import trajectory
from ampsim.runs import watch
from ampsim.runs.record.run_file import records

KINDS = [torch.amp.GradScaler, ampsim.torch.GradScaler]


def one(value=1.0, **options):
    """Return a parameter of one element, whose gradient is what a test says, and its optimizer."""
    param = nn.Parameter(torch.tensor([value], **options))
    return param, torch.optim.SGD([param], 1e-3)


def iterate(scaler, optimizer, param, grad=3.0, *, update=True):
    optimizer.zero_grad()
    (scaler.scale(param) * grad).abs().sum().backward()
    scaler.step(optimizer)
    if update:
        scaler.update()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("keyword", [True, False])
def test_closure_gradients_are_recorded(path, optimizer, keyword):
    param = nn.Parameter(torch.ones(1))
    optimizer, calls = optimizer([param], 0.1), []
    with watch({"w": param}, optimizer, to=path):
        for _ in range(2):

            def closure():
                optimizer.zero_grad()
                loss = param.square().sum()
                loss.backward()
                calls.append(2 * param.item())
                return loss

            calls.clear()
            assert (
                optimizer.step(closure=closure) if keyword else optimizer.step(closure)
            ).item() >= 0
            first = calls[0]
    assert [record["step"] for record in records(path)] == [0, 1]
    assert list(records(path))[-1]["grad_norm"] == pytest.approx(first)


@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_may_step_at_different_rates(path, kind):
    (a, slow), (b, fast) = one(), one()
    scaler = kind("cpu", init_scale=8.0)
    with watch({"a": a, "b": b}, [slow, fast], scaler, to=path, sample_every=0):
        for number in range(4):
            if number % 2:
                iterate(scaler, slow, a, math.inf, update=False)
            iterate(scaler, fast, b)
    found = list(records(path))
    assert [record["skipped"] for record in found] == [False, True] * 2
    assert found[1]["nonfinite"] == {"a": "has inf"}


def test_optimizer_steps_are_recorded(path):
    (a, first), (b, second), (c, last) = one(), one(), one()
    with watch(
        {"a": a, "b": b, "c": c}, [first, second, last], to=path, sample_every=0
    ):
        for number in range(5):
            a.grad = b.grad = c.grad = torch.tensor([3.0])
            first.step()
            second.step()
            if number == 1:
                last.step()
    assert [round(record["grad_norm"] ** 2) for record in records(path)] == [
        18,
        27,
        18,
        18,
        18,
    ]


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_steps_on_a_thread_are_recorded(path, depth):
    flags = [False, False, True, False, True, True, False, False]
    master, optimizer = one()
    with closing(ampsim.torch.OptimizerThread()) as thread:
        scaler = ampsim.torch.AsyncGradScaler(
            "cpu", init_scale=8.0, growth_interval=2, depth=depth, executor=thread
        )
        with watch({"w": master}, optimizer, scaler, to=path, sample_every=0) as run:
            for number, bad in enumerate(flags):
                weight, ticket = (
                    torch.ones(1, requires_grad=True),
                    scaler.begin_iteration(),
                )
                (
                    scaler.scale(weight, ticket) * (math.inf if bad else number + 1.0)
                ).sum().backward()

                def step(grad=weight.grad, ticket=ticket):
                    master.grad = grad
                    scaler.step(optimizer, ticket=ticket)

                run.log(number=number)
                thread.launch(step)
                scaler.update(ticket=ticket)
    found = list(records(path))
    assert (
        [record["step"] for record in found]
        == [record["number"] for record in found]
        == list(range(len(flags)))
    )
    assert [record["skipped"] for record in found] == flags
    assert [record["loss_scale"] for record in found] == trajectory(
        Rule(8.0, growth_interval=2), depth, flags
    )[: len(flags)]
    assert [record["grad_norm"] for record in found] == [
        math.inf if bad else i + 1.0 for i, bad in enumerate(flags)
    ]


def test_close_raises_the_threads_error(path):
    param, optimizer = one()
    thread = ampsim.torch.OptimizerThread()
    scaler = ampsim.torch.AsyncGradScaler("cpu", executor=thread)
    run = watch({"w": param}, optimizer, scaler, to=path)
    with pytest.raises(ZeroDivisionError):
        thread.launch(lambda: 1 / 0).result()
    with pytest.raises(RuntimeError, match="division by zero"):
        run.close()
    watch({"w": param}, optimizer, to=path).close()  # the file was closed
    with pytest.raises(RuntimeError, match="division by zero"):
        thread.close()


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_a_compiled_loop_is_recorded(path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watch(model, optimizer, scaler, to=path, stall_steps=1):

        @torch.compile(backend="eager")
        def step(x):
            optimizer.zero_grad()
            scaler.scale(model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        for _ in range(3):
            step(torch.ones(1, 2))
    assert [(each["loss_scale"], each["grad_norm"]) for each in records(path)] == [
        (8.0, pytest.approx(math.sqrt(3)))
    ] * 3


def test_grad_scale_attribute_is_divided_out(path):
    """As fused steps take it; a parameter of no name has its number."""
    param, other = one()[0], one()[0]
    optimizer = torch.optim.SGD([param, other], 1e-3, fused=True)
    optimizer.grad_scale = torch.tensor(4.0)
    with watch({"w": param}, optimizer, to=path, sample_every=1):
        param.grad, other.grad = torch.tensor([12.0]), torch.tensor([math.inf])
        optimizer.step()
        param.grad, other.grad = torch.tensor([12.0]), None
        optimizer.step()
    first, second = records(path)
    assert (first["loss_scale"], first["nonfinite"]) == (
        4.0,
        {"parameter 1": "has inf"},
    )
    assert (second["loss_scale"], second["grad_norm"]) == (4.0, 3.0)
    assert first["exponent_histograms"]["w"]["lowest"] == 1  # of 3


def test_a_wrapped_optimizer_is_found(path):
    """As accelerate's is: a child of torch's class whose ``__init__`` it does not call."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

        def step(self, closure=None):
            return self.optimizer.step(closure)

        param_groups = property(lambda self: self.optimizer.param_groups)

    param, optimizer = one()
    with watch({"w": param}, Wrapper(optimizer), to=path):
        param.grad = torch.ones(1)
        Wrapper(optimizer).step()
    assert [record["step"] for record in records(path)] == [0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replaced_scaler_warns_once(path, kind):
    param, optimizer = one()
    with watch({"w": param}, optimizer, scaler := kind("cpu"), to=path):
        iterate(scaler, optimizer, param)
        scaler = kind("cpu")
        with pytest.warns(
            RuntimeWarning, match="a step of SGD is not recorded: .* if it was replaced"
        ):
            iterate(scaler, optimizer, param)
        iterate(scaler, optimizer, param)
    assert len(list(records(path))) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_set_and_loaded_scales_are_recorded(path, kind):
    param, optimizer = one()
    scaler = kind("cpu", init_scale=8.0)
    with watch({"w": param}, optimizer, scaler, to=path) as run:
        iterate(scaler, optimizer, param)
        run.log(loss=2.0)
        scaler.update(2.0)
        iterate(scaler, optimizer, param)
        scaler.load_state_dict(kind("cpu", init_scale=4.0).state_dict())
        iterate(scaler, optimizer, param)
    assert [(record["loss_scale"], record.get("loss")) for record in records(path)] == [
        (8.0, None),
        (2.0, 2.0),
        (4.0, None),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64],
)
def test_every_dtype_has_a_norm(path, kind, dtype):
    param, optimizer = one(1.0, dtype=dtype)
    scaler = kind("cpu", init_scale=8.0, enabled=dtype == torch.float32)
    with watch({"w": param}, optimizer, scaler, to=path, sample_every=1, stall_steps=1):
        iterate(scaler, optimizer, param)
    [record] = records(path)
    assert record["grad_norm"] == 3.0
    assert "warning" not in record
    assert ("exponent_histograms" in record) == (dtype != torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_and_missing_gradients(path, kind):
    model = nn.ModuleDict(
        {"table": nn.Embedding(9, 2, sparse=True), "unused": nn.Linear(2, 2)}
    )
    model.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    model["unused"].bias.requires_grad_(False)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), kind("cpu")
    with watch(model, optimizer, scaler, to=path, sample_every=1):
        scaler.scale(
            model["table"](torch.tensor([1, 1, 5])).sum() + model.empty.sum()
        ).backward()
        scaler.step(optimizer)
        scaler.update()
    [record] = records(path)
    assert record["grad_norm"] == pytest.approx(math.sqrt(2**2 + 2**2 + 1 + 1))
    assert record["exponent_histograms"].keys() == {"table.weight"}
    assert record["exponent_histograms"]["table.weight"]["counts"] == [2, 2]


def test_norm_is_recorded_before_clipping(path):
    class Clipping(torch.amp.GradScaler):
        def step(self, optimizer, *args, **kwargs):
            self.unscale_(optimizer)
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
            return super().step(optimizer, *args, **kwargs)

    param, optimizer = one()
    with watch({"w": param}, optimizer, scaler := Clipping("cpu"), to=path):
        iterate(scaler, optimizer, param)
    assert param.grad.item() == pytest.approx(0.5)
    assert next(records(path))["grad_norm"] == 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_update_raises_on_skip_error(path, kind):
    def refuse(record):
        raise KeyError(record["step"])

    param, optimizer = one()
    scaler = kind("cpu", init_scale=8.0)
    with watch({"w": param}, optimizer, scaler, to=path, on_skip=refuse):
        for number in range(2):
            with pytest.raises(KeyError, match=str(number)):
                iterate(scaler, optimizer, param, math.inf)
        scaler.update(2.0)  # no optimizer has stepped since
    assert [record["loss_scale"] for record in records(path)] == [8.0, 4.0]
    assert scaler.get_scale() == 2.0


def test_late_log_changes_last_record(path):
    param, optimizer = one()
    run = watch({"w": param}, optimizer, to=path)
    run.log(loss=np.float32(1.5), right=torch.tensor([[True]]))
    optimizer.step()
    run.log(loss=2.0)
    with pytest.raises(TypeError, match="expected a real number"):
        run.log(loss=torch.tensor(1j))
    run.close()
    assert [(record["loss"], record["right"]) for record in records(path)] == [
        (2.0, True)
    ]


def forks(test):
    # JAX warns where another test has loaded it.
    test = pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning")(
        test
    )
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")(test)


def forked(child):
    """Return the exit code of a child process."""
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return process.exitcode


@forks
@pytest.mark.filterwarnings(
    "ignore:watching. this forked process is not recorded:RuntimeWarning"
)
@pytest.mark.parametrize("kind", KINDS)
def test_forked_process_writes_nothing(path, kind):
    param, optimizer = one()
    scaler = kind("cpu")
    with watch({"w": param}, optimizer, scaler, to=path) as run:
        iterate(scaler, optimizer, param)

        def child():
            iterate(scaler, optimizer, param)
            run.close()

        assert forked(child) == 0
        iterate(scaler, optimizer, param)
    assert [record["step"] for record in records(path)] == [0, 1]


@forks
def test_killed_run_loses_few_steps(path):
    param, optimizer = one()
    scaler = torch.amp.GradScaler("cpu")

    def child():
        watch({"w": param}, optimizer, scaler, to=path)
        for _ in range(70):
            iterate(scaler, optimizer, param)
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(child) == -signal.SIGKILL
    kept = len(list(records(path)))
    assert 70 - 32 < kept <= 70
    with (
        pytest.warns(RuntimeWarning, match=f"already has a run with {kept} steps"),
        watch({"w": param}, optimizer, scaler, to=path),
    ):
        iterate(scaler, optimizer, param)
    assert [record["step"] for record in records(path)] == list(range(kept + 1))


@forks
def test_killed_run_keeps_flushed_steps(path):
    param, optimizer = one()
    scaler = torch.amp.GradScaler("cpu")

    def child():
        run = watch({"w": param}, optimizer, scaler, to=path)
        for _ in range(3):
            iterate(scaler, optimizer, param)
        run.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(child) == -signal.SIGKILL
    assert [record["step"] for record in records(path)] == [0, 1, 2]


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # of torch.distributed, about itself
@pytest.mark.parametrize("kind", ["torch", "ours", "sharded"])
@pytest.mark.parametrize("wrap", ["ddp", "dtensor"])
def test_distributed_gradients_are_recorded(path, group, kind, wrap):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
    from torch.distributed.tensor import Replicate, distribute_module

    model = nn.Linear(2, 1)
    scaler = {"torch": KINDS[0], "ours": KINDS[1], "sharded": ShardedGradScaler}[kind](
        "cpu", init_scale=8.0
    )
    if wrap == "ddp":
        model, x = nn.parallel.DistributedDataParallel(model), torch.ones(1, 2)
    else:
        mesh = init_device_mesh("cpu", (1,))
        model = distribute_module(model, mesh)
        x = torch.distributed.tensor.distribute_tensor(
            torch.ones(1, 2), mesh, [Replicate()]
        )
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with watch(model, optimizer, scaler, to=path, sample_every=1, stall_steps=1):
        optimizer.zero_grad()
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    [record] = records(path)
    assert (record["loss_scale"], record["skipped"], record["grad_norm"]) == (
        8.0,
        False,
        pytest.approx(math.sqrt(3)),
    )
    assert len(record["exponent_histograms"]) == 2


def test_gradients_unscaled_before_watch_are_ignored(path):
    param, optimizer = one()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    (scaler.scale(param) * 3.0).sum().backward()
    scaler.unscale_(optimizer)
    with watch({"w": param}, optimizer, scaler, to=path):
        with pytest.warns(RuntimeWarning, match="is not recorded"):
            scaler.step(optimizer)
        scaler.update()
        iterate(scaler, optimizer, param)
    assert [record["grad_norm"] for record in records(path)] == [3.0]


def test_norm_is_nan_at_scale_zero(path):
    param, optimizer = one()
    with watch(
        {"w": param},
        optimizer,
        scaler := torch.amp.GradScaler("cpu", init_scale=0.0),
        to=path,
    ):
        iterate(scaler, optimizer, param)
    [record] = records(path)
    assert (record["loss_scale"], record["skipped"], record["nonfinite"]) == (
        0.0,
        False,
        {"w": "has nan"},
    )
    assert math.isnan(record["grad_norm"])
    assert param.isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_and_results_are_passed_through(path, kind):
    class Noting(torch.optim.SGD):
        def step(self, closure=None, *, times=1):
            super().step(closure)
            return times

    param = one()[0]
    optimizer, scaler = Noting([param], 1e-3), kind("cpu", init_scale=2.0)
    with watch({"w": param}, optimizer, scaler, to=path):
        scaler.scale(param.sum()).backward()
        assert scaler.step(optimizer, times=7) == 7
        scaler.update(new_scale=32.0)
    assert scaler.get_scale() == 32.0
