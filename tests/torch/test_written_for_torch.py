"""Code that was written against torch's scaler and its private names sees of ours what it sees of
torch's.

Trainers read and write such names, copy torch's methods into subclasses, and patch them. Each test
runs a few iterations with torch's scaler and with ours; everything that it returns must be the
same, to the last bit.
"""

import copy
from collections import defaultdict
from enum import Enum
from functools import partial
from unittest import mock

import pytest
import torch
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from ampsim.torch import GradScaler
from tests.torch.helpers import INF, an_optimizer, bits, told

STEPS, OVERFLOWS = 9, (2, 5, 6)  # iterations, and those whose gradient is inf
CPU = torch.device("cpu")
Theirs = torch.amp.GradScaler


class Run:
    """A parameter, its optimizer and its scaler, whose scale falls at each overflow and grows."""

    def __init__(self, base, kind=torch.optim.AdamW, interval=2, **options):
        self.scaler = base("cpu", init_scale=8.0, growth_interval=interval)
        self.param = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        self.optimizer = kind([self.param], **{"lr": 0.25, **options})
        self.log = []

    @property
    def state(self):
        return self.scaler._per_optimizer_states[id(self.optimizer)]

    @property
    def found(self):
        return sum(flag.item() for flag in self.state["found_inf_per_device"].values())

    def backward(self, i):
        self.param.grad = None
        factor = torch.tensor([INF if i in OVERFLOWS else i + 1.0, 0.5])
        self.scaler.scale((self.param * factor).sum()).backward()

    def divided(self):
        """Divide and check by torch's kernel, as a client's own code does; return the flag."""
        flag, inverse = (
            torch.zeros(()),
            self.scaler._scale.double().reciprocal().float(),
        )
        torch._amp_foreach_non_finite_check_and_unscale_(
            [self.param.grad], flag, inverse
        )
        return flag

    def numbers(self):
        return [
            *bits(self.param),
            self.scaler.get_scale(),
            self.scaler._get_growth_tracker(),
        ]


def plain(run, i):
    """One iteration without anything special, but for the update."""
    run.backward(i)
    return run.scaler.step(run.optimizer)


@pytest.fixture
def agree():
    """Call `iteration(run, i)`, then update, with torch's scaler and with ours; all is the same."""

    def check(iteration, of=lambda base: base, **options):
        seen = []
        for base in (Theirs, GradScaler):
            run = Run(of(base), **options)
            for i in range(STEPS):
                seen.append([iteration(run, i)])
                run.scaler.update()
                seen[-1] += [*run.numbers(), list(map(str, run.log))]
        assert seen[:STEPS] == seen[STEPS:]

    return check


@pytest.fixture
def same():
    """Run a whole program, a generator, with torch's scaler and with ours; it yields the same."""

    def check(program):
        assert [*program(GradScaler)] == [*program(Theirs)]

    return check


# ----------------------------------------------------------------------- the state of one optimizer


def test_weights_change_between_unscale_and_step(agree):
    # Sharpness-aware minimization climbs where the first pass found no overflow.
    def iteration(run, i):
        run.backward(i)
        state = run.state
        run.scaler.unscale_(run.optimizer)
        if not run.found:
            run.param.data.add_(run.param.grad)
        run.scaler.step(run.optimizer)
        return state["stage"].name, run.found

    agree(iteration)


def test_flag_is_written_before_step(agree):
    # For a loss that is NaN, or by an all-reduce over ranks.
    def iteration(run, i):
        run.backward(0)
        run.scaler.unscale_(run.optimizer)
        if i in OVERFLOWS:
            run.state["found_inf_per_device"] = {CPU: torch.ones(())}
        run.scaler.step(run.optimizer)

    agree(iteration)


class OwnState(Enum):
    """A client's copy of torch's enum, as fairscale has one."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


@pytest.mark.parametrize("stage", [OptState.STEPPED, OwnState.STEPPED])
def test_client_steps_within_backward(agree, stage):
    # The client divides, checks, and steps by itself, then says so.
    def iteration(run, i):
        run.backward(i)
        flag = run.divided()
        run.state["found_inf_per_device"] = {CPU: flag}
        run.state["stage"] = stage
        if not flag:
            run.param.data.sub_(0.1 * run.param.grad)
        return (
            told(lambda: run.scaler.step(run.optimizer))
            if stage is OptState.STEPPED
            else None
        )

    agree(iteration)


# ------------------------------------------------------------- subclasses that copy torch's methods


def copied_step(self, optimizer, *args, **kwargs):
    self._check_scale_growth_tracker("step")
    state = self._per_optimizer_states[id(optimizer)]
    if state["stage"] is OptState.STEPPED:
        raise RuntimeError("step() has already been called since the last update().")
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        if state["stage"] is OptState.READY:
            self._check_inf_per_device(optimizer)
        scale = self._get_scale_async()
        optimizer.grad_scale = (
            None if state["stage"] == OptState.UNSCALED else scale * 1
        )
        optimizer.found_inf = sum(state["found_inf_per_device"].values())
        result = optimizer.step(*args, **kwargs)
        del optimizer.grad_scale, optimizer.found_inf
    else:
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        result = self._maybe_opt_step(optimizer, state, *args, **kwargs)
    state["stage"] = OptState.STEPPED
    return result


def copied_unscale(self, optimizer):
    self._check_scale_growth_tracker("unscale_")
    state = self._per_optimizer_states[id(optimizer)]
    inverse = self._scale.double().reciprocal().float()
    found = self._unscale_grads_(optimizer, inverse, torch.zeros(()), False)
    state["found_inf_per_device"], state["stage"] = found, OptState.UNSCALED


def copied_update(self, new_scale=None):
    scale, tracker = self._check_scale_growth_tracker("update")
    states = self._per_optimizer_states.values()
    flags = [
        flag for state in states for flag in state["found_inf_per_device"].values()
    ]
    constants = self._growth_factor, self._backoff_factor, self._growth_interval
    torch._amp_update_scale_(scale, tracker, sum(flags), *constants)
    self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)


COPIES = {"step": copied_step, "unscale_": copied_unscale, "update": copied_update}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    "names", [("step",), ("unscale_",), ("update",), tuple(COPIES)], ids=str
)
def test_methods_copied_from_torch(agree, names, early, fused):
    def iteration(run, i):
        run.backward(i)
        if early:
            run.scaler.unscale_(run.optimizer)
        run.scaler.step(run.optimizer)
        twice = told(lambda: run.scaler.step(run.optimizer))
        return twice, run.state["stage"].name, run.found

    copies = {name: COPIES[name] for name in names}
    agree(iteration, of=lambda base: type("Copied", (base,), copies), fused=fused)


def test_sharded_grad_scaler_methods(agree):
    names = {"scale", "unscale_", "_unscale_grads_", "_amp_update_scale_cpu_", "update"}
    methods = {
        name: method
        for name, method in vars(ShardedGradScaler).items()
        if name in names
    }
    with mock.patch("torch.distributed.all_reduce"):
        agree(
            plain,
            of=lambda base: type(
                "Sharded", (base,), {**methods, "process_group": None}
            ),
        )


def test_subclass_with_hysteresis(agree):
    # As scalers with hysteresis do: the first one is skipped, and the count starts again.
    def update(self):
        found = sum(
            flag
            for s in self._per_optimizer_states.values()
            for flag in s["found_inf_per_device"].values()
        )
        self.patience = getattr(self, "patience", 2) - 1 if found else 2
        if found and self.patience:
            self._growth_tracker.fill_(0)
            self._per_optimizer_states.clear()
        else:
            copied_update(self)

    agree(plain, of=lambda base: type("Patient", (base,), {"update": update}))


def test_closure_resets_stage_each_call(agree):
    # Trainers with L-BFGS or sharpness-aware minimization scale, check, and divide within the
    # closure.
    def step(self, optimizer, closure):
        for _ in range(2):
            state = self._per_optimizer_states[id(optimizer)]
            state["stage"] = OptState.READY
            closure()
            self.unscale_(optimizer)
            if not sum(state["found_inf_per_device"].values()):
                optimizer.step()

    def iteration(run, i):
        run.scaler.step(run.optimizer, partial(run.backward, i))
        return run.state["stage"].name

    agree(iteration, of=lambda base: type("Closing", (base,), {"step": step}))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("early", [False, True])
def test_overrides_are_called_as_in_torch(agree, early, fused):
    def watching(base):
        class Watching(base):
            def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
                calls.append((inv_scale.item(), found_inf.item(), allow_fp16))
                return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)

            def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
                calls.append((optimizer_state["stage"], args, kwargs))
                return super()._maybe_opt_step(
                    optimizer, optimizer_state, *args, **kwargs
                )

        return Watching

    def iteration(run, i):
        calls.clear()
        run.backward(i)
        if early:
            run.scaler.unscale_(run.optimizer)
        run.scaler.step(run.optimizer)
        return [*calls]

    calls = []
    agree(iteration, of=watching, fused=fused)


def test_override_allows_float16(same):
    def program(base):
        class TakesHalf(base):
            def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
                return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)

        scaler, (param, optimizer) = (
            TakesHalf("cpu", init_scale=8.0),
            an_optimizer(dtype=torch.float16),
        )
        scaler.scale((param * 3).sum()).backward()
        scaler.step(optimizer)
        yield bits(param, param.grad)

    same(program)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "name", ["unscale_", "_maybe_opt_step", "_unscale_grads_", "get_scale"]
)
def test_instance_method_patch_is_called(agree, name, fused):
    def iteration(run, i):
        original = getattr(type(run.scaler), name).__get__(run.scaler)
        setattr(
            run.scaler, name, lambda *args: [run.log.append(name), original(*args)][1]
        )
        return plain(run, i)

    agree(iteration, fused=fused)


@pytest.mark.parametrize("name", ["scale", "get_scale", "is_enabled"])
def test_public_method_override_is_used(agree, name):
    methods = {
        "scale": lambda self, outputs: super(type(self), self).scale(outputs * 2),
        "get_scale": lambda self: min(super(type(self), self).get_scale(), 2.0),
        "is_enabled": lambda self: False,
    }

    def iteration(run, i):
        plain(run, i)
        return run.scaler.state_dict(), copy.deepcopy(run.scaler.state_dict())

    agree(iteration, of=lambda base: type("Own", (base,), {name: methods[name]}))


# -------------------------------------------------------------------------------- objects of others


class Fused:
    """The least that a fused optimizer of one's own is: no base class, no `state`."""

    _step_supports_amp_scaling = True

    def __init__(self, params, lr):
        self.param_groups = [{"params": list(params), "lr": lr}]

    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            scale = 1.0 if self.grad_scale is None else self.grad_scale
            if not self.found_inf:
                param.data.sub_(0.1 * (param.grad / scale))
        return 1 - self.found_inf.item()


class Generators:
    """A wrapper whose groups, and their parameters, can be read once."""

    def __init__(self, params, lr):
        self.inner = torch.optim.SGD(params, lr=lr)

    @property
    def param_groups(self):
        return ({"params": iter(group["params"])} for group in self.inner.param_groups)

    def step(self):
        self.inner.step()


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", [Fused, Generators])
def test_non_torch_optimizer_matches_torch(agree, kind, early):
    def iteration(run, i):
        run.backward(i)
        if early:
            run.scaler.unscale_(run.optimizer)
        result = run.scaler.step(run.optimizer)
        return (
            result,
            hasattr(run.optimizer, "grad_scale"),
            hasattr(run.optimizer, "found_inf"),
        )

    agree(iteration, kind=kind)


def test_own_grad_scale_divides_gradients(agree):
    def iteration(run, i):
        run.backward(i)
        run.optimizer.grad_scale = torch.tensor(4.0)
        return run.scaler.step(run.optimizer)

    agree(iteration, kind=torch.optim.SGD, fused=True)


@pytest.mark.parametrize(
    "register", ["register_step_pre_hook", "register_step_post_hook"]
)
def test_hooks_receive_flag_and_scale(agree, register):
    def iteration(run, i):
        seen = []
        note = lambda optimizer, *_: seen.append(  # noqa: E731
            (optimizer.found_inf.item(), optimizer.grad_scale)
        )
        handle = getattr(run.optimizer, register)(note)
        plain(run, i)
        handle.remove()
        return seen

    agree(iteration, fused=True)


# -------------------------------------------------------------------------------------- whole loops


def test_validation_scales_in_inference_mode(agree):
    def iteration(run, i):
        plain(run, i)
        with torch.inference_mode():
            return run.scaler.scale(torch.ones(2)).tolist()

    agree(iteration)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
def test_compiled_step_graphs_match_torch():
    # The compiler is kept out of the scaler: what it tried there would split the step once more.
    seen = []
    for base in (Theirs, GradScaler):
        torch._dynamo.reset()
        run, graphs = Run(base, torch.optim.SGD), []

        def backend(graph, _, graphs=graphs):
            graphs.append(len(graph.graph.nodes))
            return graph.forward

        def step(x, run=run):
            run.optimizer.zero_grad()
            run.scaler.scale((run.param * x).sum()).backward()
            run.scaler.unscale_(run.optimizer)
            run.scaler.step(run.optimizer)
            run.scaler.update()

        compiled = torch.compile(step, backend=backend)
        for value in (1.0, 2.0, INF, 1.0):
            compiled(torch.full((2,), value))
        torch._dynamo.reset()
        seen.append([graphs, run.numbers()])
    assert seen[0] == seen[1]
    assert seen[0][0]
