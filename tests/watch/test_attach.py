"""Whatever steps a model is watched: closures, threads, several optimizers, odd scalers, gradients and processes."""

import math
import multiprocessing
import os
import signal
import threading
from contextlib import closing, nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import ampsim.torch
from ampsim import Rule
from ampsim.core.pipeline import trajectory
from ampsim.run_file import records
from ampsim.watch import watch
from ampsim.watch.run_header import optimizers_of
from ampsim.watch.step import Step

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
def test_gradients_that_a_closure_makes_are_read_when_they_are_complete(path, optimizer, keyword):
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
            assert (optimizer.step(closure=closure) if keyword else optimizer.step(closure)).item() >= 0
            first = calls[0]
    assert [record["step"] for record in records(path)] == [0, 1]
    assert list(records(path))[-1]["norm"] == pytest.approx(first)


@pytest.mark.parametrize("kind", KINDS)
def test_optimizers_of_several_frequencies_are_told_apart(path, kind):
    (a, slow), (b, fast) = one(), one()
    scaler = kind("cpu", init_scale=8.0)
    with watch({"a": a, "b": b}, [slow, fast], scaler, to=path, every=0):
        for number in range(4):
            if number % 2:
                iterate(scaler, slow, a, math.inf, update=False)
            iterate(scaler, fast, b)
    found = list(records(path))
    assert [record["optimizers"] for record in found] == [[None, False], [True, False]] * 2
    assert [record["skipped"] for record in found] == [False, True] * 2
    assert found[1]["bad"] == {"a": "has inf"}


def test_without_a_scaler_no_step_of_any_optimizer_is_lost(path):
    (a, first), (b, second), (c, last) = one(), one(), one()
    with watch({"a": a, "b": b, "c": c}, [first, second, last], to=path, every=0):
        for number in range(5):
            a.grad = b.grad = c.grad = torch.tensor([3.0])
            first.step()
            second.step()
            if number == 1:
                last.step()
    assert [round(record["norm"] ** 2) for record in records(path)] == [18, 27, 18, 18, 18]


def test_of_gradients_that_are_told_again_the_first_count(path):
    (a, first), (b, second) = one(), one()
    with watch({"a": a, "b": b}, [first, second], to=path) as run:
        a.grad = b.grad = torch.tensor([3.0])
        for optimizer in (first, second, first):
            run.gradients("step", optimizer, torch.ones(()))
            a.grad = torch.tensor([5.0])  # as a clip changes it
        run.closing("step")
        run.closed("step", [(first, []), (second, [])])
    assert [round(record["norm"] ** 2) for record in records(path)] == [18]


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_steps_on_another_thread_are_recorded_in_order_and_to_the_last(path, depth):
    flags = [False, False, True, False, True, True, False, False]
    master, optimizer = one()
    with closing(ampsim.torch.OptimizerThread()) as thread:
        scaler = ampsim.torch.GradScaler("cpu", init_scale=8.0, growth_interval=2, depth=depth, launch=thread.launch)
        with watch({"w": master}, optimizer, scaler, to=path, every=0) as run:
            for number, bad in enumerate(flags):
                weight, ticket = torch.ones(1, requires_grad=True), scaler.begin()
                (scaler.scale(weight, ticket) * (math.inf if bad else number + 1.0)).sum().backward()

                def step(grad=weight.grad, ticket=ticket):
                    master.grad = grad
                    scaler.step(optimizer, ticket=ticket)

                run.log(number=number)
                thread.launch(step)
                scaler.update(ticket=ticket)
    found = list(records(path))
    assert [record["step"] for record in found] == [record["number"] for record in found] == list(range(len(flags)))
    assert [record["skipped"] for record in found] == flags
    assert [record["scale"] for record in found] == trajectory(Rule(8.0, growth_interval=2), depth, flags)[: len(flags)]
    assert [record["norm"] for record in found] == [math.inf if bad else i + 1.0 for i, bad in enumerate(flags)]


@pytest.mark.parametrize("before", [True, False])
def test_what_fails_on_the_thread_comes_out_of_close_and_the_file_is_closed(path, before):
    """Whether it has failed when close() launches its own work, or runs then: the error is told once of each job."""
    param, optimizer = one()
    thread, closing_now, failed = ampsim.torch.OptimizerThread(), threading.Event(), threading.Event()

    def launch(work, *args):
        job = thread.launch(work, *args)
        closing_now.set()
        return job

    scaler = ampsim.torch.GradScaler("cpu", launch=launch)
    run = watch({"w": param}, optimizer, scaler, to=path)
    if not before:
        closing_now.clear()
    thread.launch(lambda: closing_now.wait() and 1 / 0).add_done_callback(lambda _: failed.set())
    if before:
        failed.wait()
    with pytest.raises(RuntimeError) as caught:
        run.close()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    watch({"w": param}, optimizer, to=path).close()
    with nullcontext() if before else pytest.raises(RuntimeError, match="division by zero"):
        thread.close()


def test_a_wrapper_that_is_an_optimizer_in_name_only_gives_way_to_the_optimizer_in_it(path):
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
def test_a_scaler_that_was_replaced_is_told_once(path, kind):
    param, optimizer = one()
    with watch({"w": param}, optimizer, scaler := kind("cpu"), to=path):
        iterate(scaler, optimizer, param)
        scaler = kind("cpu")
        with pytest.warns(RuntimeWarning, match="a step of SGD is not recorded: .* if it was replaced"):
            iterate(scaler, optimizer, param)
        iterate(scaler, optimizer, param)
    assert len(list(records(path))) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_that_is_set_or_loaded_is_seen_and_makes_no_record(path, kind):
    param, optimizer = one()
    scaler = kind("cpu", init_scale=8.0)
    with watch({"w": param}, optimizer, scaler, to=path) as run:
        iterate(scaler, optimizer, param)
        run.log(loss=2.0)
        scaler.update(2.0)
        iterate(scaler, optimizer, param)
        scaler.load_state_dict(kind("cpu", init_scale=4.0).state_dict())
        iterate(scaler, optimizer, param)
    assert [(record["scale"], record.get("loss")) for record in records(path)] == [(8.0, None), (2.0, 2.0), (4.0, None)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_gradients_of_every_dtype_have_a_norm(path, kind, dtype):
    param, optimizer = one(1.0, dtype=dtype)
    scaler = kind("cpu", init_scale=8.0, enabled=dtype == torch.float32)
    with watch({"w": param}, optimizer, scaler, to=path, every=1, still=1):
        iterate(scaler, optimizer, param)
    [record] = records(path)
    assert record["norm"] == 3.0
    assert "alarm" not in record
    assert ("by_parameter" in record) == (dtype != torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_sparse_empty_and_missing_gradients_are_read_as_what_they_are(path, kind):
    model = nn.ModuleDict({"table": nn.Embedding(9, 2, sparse=True), "unused": nn.Linear(2, 2)})
    model.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    model["unused"].bias.requires_grad_(False)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), kind("cpu")
    with watch(model, optimizer, scaler, to=path, every=1):
        scaler.scale(model["table"](torch.tensor([1, 1, 5])).sum() + model.empty.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    [record] = records(path)
    assert record["norm"] == pytest.approx(math.sqrt(2**2 + 2**2 + 1 + 1))
    assert record["by_parameter"].keys() == {"table.weight"}
    assert record["by_parameter"]["table.weight"]["counts"] == [2, 2]


def test_a_subclass_with_a_step_of_its_own_is_read_before_it_clips(path):
    class Clipping(torch.amp.GradScaler):
        def step(self, optimizer, *args, **kwargs):
            self.unscale_(optimizer)
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)
            return super().step(optimizer, *args, **kwargs)

    param, optimizer = one()
    with watch({"w": param}, optimizer, scaler := Clipping("cpu"), to=path):
        iterate(scaler, optimizer, param)
    assert param.grad.item() == pytest.approx(0.5)
    assert next(records(path))["norm"] == 3.0


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_loop_and_a_model_that_changes_dtype_are_recorded(path, kind):
    model = nn.Linear(2, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), kind("cpu", init_scale=8.0)
    with watch(model, optimizer, scaler, to=path, still=1):
        model.double()
        compiled = torch.compile(model, backend="eager")

        @torch.compile(backend="eager")
        def step(x):
            optimizer.zero_grad()
            scaler.scale(compiled(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()

        for _ in range(3):
            step(torch.ones(1, 2, dtype=torch.float64))
    assert [(each["scale"], each["norm"]) for each in records(path)] == [(8.0, pytest.approx(math.sqrt(3)))] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_what_on_skip_raises_comes_out_of_update_and_nothing_is_lost(path, kind):
    def refuse(record):
        raise KeyError(record["step"])

    param, optimizer = one()
    scaler = kind("cpu", init_scale=8.0)
    with watch({"w": param}, optimizer, scaler, to=path, on_skip=refuse):
        for number in range(2):
            with pytest.raises(KeyError, match=str(number)):
                iterate(scaler, optimizer, param, math.inf)
        scaler.update(2.0)  # no optimizer has stepped since
    assert [record["scale"] for record in records(path)] == [8.0, 4.0]
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_closed_in_the_middle_leaves_the_loop_alone(path, kind):
    param, optimizer = one()
    scaler = kind("cpu", init_scale=8.0)
    run = watch({"w": param}, optimizer, scaler, to=path, on_skip=lambda _: run.close())
    for _ in range(2):
        iterate(scaler, optimizer, param, math.inf)
    assert [record["scale"] for record in records(path)] == [8.0]
    assert scaler.get_scale() == 2.0
    with watch({"w": param}, optimizer, scaler, to=path):
        run.close()
        iterate(scaler, optimizer, param)
    assert [record["scale"] for record in records(path)] == [8.0, 2.0]


def test_what_is_logged_too_late_is_told(path):
    param, optimizer = one()
    run = watch({"w": param}, optimizer, to=path)
    run.log(loss=np.float32(1.5), right=torch.tensor([[True]]))
    optimizer.step()
    run.log(loss=2.0)
    with pytest.raises(TypeError, match="expected a real number"):
        run.log(loss=torch.tensor(1j))
    with pytest.warns(RuntimeWarning, match=r"loss: log before update\(\)"):
        run.close()
    assert [(record["loss"], record["right"]) for record in records(path)] == [(1.5, True)]


def test_flags_of_several_devices_stay_with_their_optimizer():
    step = Step(sampled=False)
    step.flags = [[torch.tensor(1.0), torch.tensor(1.0)], [torch.tensor(0.0)], []]
    step.fetch()
    assert step.on_host()[0]["optimizers"] == [True, False, None]


def forks(test):
    # JAX warns where another test has loaded it.
    test = pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning")(test)
    return pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")(test)


def forked(child):
    """Return the exit code of a child process."""
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return process.exitcode


@forks
@pytest.mark.filterwarnings("ignore:watching. nothing of this fork is recorded:RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_process_writes_nothing_into_its_parents_run(path, kind):
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
def test_a_killed_run_keeps_every_step_and_goes_on_in_the_same_file(path):
    param, optimizer = one()
    scaler = torch.amp.GradScaler("cpu")

    def child():
        watch({"w": param}, optimizer, scaler, to=path)
        for _ in range(3):
            iterate(scaler, optimizer, param)
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(child) == -signal.SIGKILL
    assert [record["step"] for record in records(path)] == [0, 1, 2]
    with watch({"w": param}, optimizer, scaler, to=path):
        iterate(scaler, optimizer, param)
    assert [record["step"] for record in records(path)] == [0, 1, 2, 3]


@pytest.fixture
def group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # of torch.distributed, about itself
@pytest.mark.parametrize("kind", ["torch", "ours", "sharded"])
@pytest.mark.parametrize("wrap", ["ddp", "dtensor"])
def test_gradients_of_distributed_models_are_read(path, group, kind, wrap):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
    from torch.distributed.tensor import Replicate, distribute_module

    model = nn.Linear(2, 1)
    scaler = {"torch": KINDS[0], "ours": KINDS[1], "sharded": ShardedGradScaler}[kind]("cpu", init_scale=8.0)
    if wrap == "ddp":
        model, x = nn.parallel.DistributedDataParallel(model), torch.ones(1, 2)
    else:
        mesh = init_device_mesh("cpu", (1,))
        model = distribute_module(model, mesh)
        x = torch.distributed.tensor.distribute_tensor(torch.ones(1, 2), mesh, [Replicate()])
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with watch(model, optimizer, scaler, to=path, every=1, still=1):
        optimizer.zero_grad()
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    [record] = records(path)
    assert (record["scale"], record["skipped"], record["norm"]) == (8.0, False, pytest.approx(math.sqrt(3)))
    assert len(record["by_parameter"]) == 2


def test_a_watch_that_begins_after_unscale_takes_no_divided_gradient_for_a_scaled_one(path):
    param, optimizer = one()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    (scaler.scale(param) * 3.0).sum().backward()
    scaler.unscale_(optimizer)
    with watch({"w": param}, optimizer, scaler, to=path):
        with pytest.warns(RuntimeWarning, match="is not recorded"):
            scaler.step(optimizer)
        scaler.update()
        iterate(scaler, optimizer, param)
    assert [record["norm"] for record in records(path)] == [3.0]


def test_a_division_that_is_left_to_the_fused_step_is_made_for_the_norm(path):
    (a, _), (b, last) = one(), one()
    fused, scale = torch.optim.SGD([a], 1e-3, fused=True), torch.tensor(4.0)
    with watch({"a": a, "b": b}, [fused, last], to=path):
        fused.grad_scale, a.grad, b.grad = scale, torch.tensor([12.0]), torch.tensor([4.0])
        fused.step()
        scale.fill_(8.0)  # a scaler's update, before the other optimizer's step ends the record
        last.step()
    assert next(records(path))["norm"] == 5.0


def test_gradients_at_a_scale_of_zero_have_no_norm_and_are_told_though_torch_steps(path):
    param, optimizer = one()
    with watch({"w": param}, optimizer, scaler := torch.amp.GradScaler("cpu", init_scale=0.0), to=path):
        iterate(scaler, optimizer, param)
    [record] = records(path)
    assert (record["scale"], record["skipped"], record["bad"]) == (0.0, False, {"w": "has nan"})
    assert math.isnan(record["norm"])
    assert param.isnan().all()


def test_a_gradient_that_is_conjugated_lazily_has_a_norm(path):
    param, optimizer = one(1.0, dtype=torch.complex64)
    with watch({"w": param}, optimizer, to=path):
        param.grad = torch.tensor([3 + 4j]).conj()
        optimizer.step()
    assert next(records(path))["norm"] == 5.0


def test_a_closure_is_called_as_the_optimizer_calls_it(path):
    class Searching(torch.optim.SGD):  # as line searches do, which want the loss alone
        def step(self, closure):
            return closure(2.0, backward=True)

    def closure(factor, *, backward):
        loss = model(torch.ones(1, 2)).sum() * factor
        if backward:
            loss.backward()
        return loss.item()

    model = nn.Linear(2, 1)
    optimizer = Searching(model.parameters(), 0.1)
    with watch(model, optimizer, to=path):
        assert optimizer.step(closure) == pytest.approx(2 * model(torch.ones(1, 2)).item())
    [record] = records(path)
    assert record["norm"] == pytest.approx(math.sqrt(12))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_scalers_calls_are_given_and_return_is_passed_on(path, kind):
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


def test_optimizers_come_in_whatever_can_be_gone_through():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    given = ([optimizer], {"a": optimizer}.values(), (each for each in [optimizer]))
    assert [optimizers_of(each) for each in given] == [[optimizer]] * 3
