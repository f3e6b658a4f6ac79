"""Code that was written against torch's scaler and its private names sees of ours what it sees of torch's.

Trainers read and write such names, copy torch's methods into subclasses, and patch them. Each test runs a few
iterations with torch's scaler and with ours; everything that it returns must be the same, to the last bit.
"""

import copy
import io
import pickle
from collections import defaultdict
from enum import Enum
from functools import partial
from unittest import mock

import pytest
import torch
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from ampsim.torch import GradScaler, roundpipe
from tests.torch.helpers import INF, an_optimizer, bits, told

STEPS, OVERFLOWS = 9, (2, 5, 6)  # iterations, and those whose gradient is inf
CPU = torch.device("cpu")
Theirs = torch.amp.GradScaler


class Exact(GradScaler):
    """Ours, where it does exactly what torch's does."""

    def __init__(self, *args, **constants):
        super().__init__(*args, exact_torch=True, **constants)


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
        flag, inverse = torch.zeros(()), self.scaler._scale.double().reciprocal().float()
        torch._amp_foreach_non_finite_check_and_unscale_([self.param.grad], flag, inverse)
        return flag

    def numbers(self):
        return [*bits(self.param), self.scaler.get_scale(), self.scaler._get_growth_tracker()]


def plain(run, i):
    """One iteration without anything special, but for the update."""
    run.backward(i)
    return run.scaler.step(run.optimizer)


@pytest.fixture(params=[GradScaler, Exact], ids=["ours", "exact"])
def agree(request):
    """Call `iteration(run, i)`, then update, with torch's scaler and with ours; all is the same."""

    def check(iteration, of=lambda base: base, **options):
        seen = []
        for base in (Theirs, request.param):
            run = Run(of(base), **options)
            for i in range(STEPS):
                seen.append([iteration(run, i)])
                run.scaler.update()
                seen[-1] += [*run.numbers(), list(map(str, run.log))]
        assert seen[:STEPS] == seen[STEPS:]

    return check


@pytest.fixture(params=[GradScaler, Exact], ids=["ours", "exact"])
def same(request):
    """Run a whole program, a generator, with torch's scaler and with ours; it yields the same."""

    def check(program):
        assert [*program(request.param)] == [*program(Theirs)]

    return check


def test_scalers_are_torch_grad_scalers():
    # Trainers that ask this would otherwise call loss.backward() unscaled.
    disabled = GradScaler("cpu", enabled=False)
    for scaler in (GradScaler("cpu"), disabled, GradScaler("cpu", depth=2), roundpipe.GradScaler()):
        for like in (scaler, copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):  # noqa: S301
            assert isinstance(like, Theirs)


# ------------------------------------------------------------------------------ the state of one optimizer


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


def test_stage_is_reset_for_second_pass(agree):
    def iteration(run, i):
        run.backward(i)
        run.scaler.unscale_(run.optimizer)
        first = run.found
        run.state["stage"] = OptState.READY
        run.backward(0 if first else i)
        run.scaler.unscale_(run.optimizer)
        run.scaler.step(run.optimizer)
        return first, run.found

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


def test_flag_without_optimizer_counts_once(agree):
    def iteration(run, i):
        if i in OVERFLOWS:
            run.scaler._per_optimizer_states[0]["found_inf_per_device"] = {CPU: torch.ones(())}
        plain(run, 0)

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
        return told(lambda: run.scaler.step(run.optimizer)) if stage is OptState.STEPPED else None

    agree(iteration)


def test_optimizer_states_behave_as_dict(same):
    def program(base):
        states = Run(base).scaler._per_optimizer_states
        yield told(lambda: states.pop(5)), states.pop(5, "none"), states.get(5, "none"), len(states)

    same(program)


def test_ineffective_state_write_raises():
    run = Run(GradScaler, fused=True)
    run.backward(0)
    run.scaler.unscale_and_clip_(run.optimizer, 1.0)  # leaves the division to `step`
    for stage in (0, OptState.STEPPED):
        with pytest.raises(RuntimeError, match="expected"):
            run.state["stage"] = stage
    with pytest.raises(RuntimeError, match="lost 'stage'"):
        del run.state["stage"]
    assert run.state["stage"] is OptState.UNSCALED


# --------------------------------------------------------------------- subclasses that copy torch's methods


def copied_step(self, optimizer, *args, **kwargs):
    self._check_scale_growth_tracker("step")
    state = self._per_optimizer_states[id(optimizer)]
    if state["stage"] is OptState.STEPPED:
        raise RuntimeError("step() has already been called since the last update().")
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        if state["stage"] is OptState.READY:
            self._check_inf_per_device(optimizer)
        scale = self._get_scale_async()
        optimizer.grad_scale = None if state["stage"] == OptState.UNSCALED else scale * 1
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
    flags = [flag for state in states for flag in state["found_inf_per_device"].values()]
    constants = self._growth_factor, self._backoff_factor, self._growth_interval
    torch._amp_update_scale_(scale, tracker, sum(flags), *constants)
    self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)


COPIES = {"step": copied_step, "unscale_": copied_unscale, "update": copied_update}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("names", [("step",), ("unscale_",), ("update",), tuple(COPIES)], ids=str)
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
    methods = {name: method for name, method in vars(ShardedGradScaler).items() if name in names}
    with mock.patch("torch.distributed.all_reduce"):
        agree(plain, of=lambda base: type("Sharded", (base,), {**methods, "process_group": None}))


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


@pytest.mark.parametrize("before", [True, False])
def test_min_scale_around_update(agree, before):
    def update(self):
        if before:
            self._scale.clamp_(min=4.0)
        super(type(self), self).update()
        if not before:
            self._scale.clamp_(min=4.0)

    agree(plain, of=lambda base: type("Floored", (base,), {"update": update}))


def test_clamp_without_effect_is_accepted(agree):
    def iteration(run, i):
        run.backward(i)
        run.scaler._scale.clamp_(min=2.0**-20)
        run.scaler.step(run.optimizer)
        run.scaler._growth_tracker.clamp_(min=0)

    agree(iteration)


@pytest.mark.parametrize("name", ["_check_inf_per_device", "_get_scale_async", "_growth_factor"])
def test_override_never_called_raises(name):
    odd = type("Odd", (GradScaler,), {name: lambda self, *_: 1.0})
    with pytest.raises(TypeError, match=f"Odd overrides {name}"):
        odd("cpu")


def test_steps_without_update_collect_gradients(agree):
    # As in training among frameworks: their update forgets the states and leaves the scale alone.
    def update(self):
        if self.due:
            return super(type(self), self).update()
        for key in [*self._per_optimizer_states]:
            self._per_optimizer_states[key] = _refresh_per_optimizer_state()
        return None

    def iteration(run, i):
        run.scaler.due = i % 3 == 1
        plain(run, i)

    agree(iteration, of=lambda base: type("Seldom", (base,), {"update": update}))


def test_closure_resets_stage_each_call(agree):
    # Trainers with L-BFGS or sharpness-aware minimization scale, check, and divide within the closure.
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
                return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)

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
        if base is not Theirs:
            with pytest.raises(RuntimeError, match="_unscale_grads_"):  # which this would not call
                scaler.unscale_and_clip_(optimizer, 1.0)
        scaler.step(optimizer)
        yield bits(param, param.grad)

    same(program)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["unscale_", "_maybe_opt_step", "_unscale_grads_", "get_scale"])
def test_instance_method_patch_is_called(agree, name, fused):
    def iteration(run, i):
        original = getattr(type(run.scaler), name).__get__(run.scaler)
        setattr(run.scaler, name, lambda *args: [run.log.append(name), original(*args)][1])
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


# -------------------------------------------------------------------------------------- scale and count


WRITES = {
    "filled": lambda s: s._scale.fill_(4.0),
    "put": lambda s: setattr(s, "_scale", torch.tensor(4.0)),
    "parked": lambda s: setattr(s, "_scale", s._scale.to("cpu")),
    "begun again": lambda s: (
        [setattr(s, name, None) for name in ("_scale", "_growth_tracker")] and None
    ),
    "the count zeroed": lambda s: s._growth_tracker.zero_(),
    "the count filled": lambda s: s._growth_tracker.fill_(1),
    "the count put": lambda s: setattr(s, "_growth_tracker", s._growth_tracker + 1),
}


@pytest.mark.parametrize("write", WRITES)
def test_scale_written_between_iterations(agree, write):
    def iteration(run, i):
        if i in (4, 5, 8):
            told(lambda: WRITES[write](run.scaler))
        plain(run, i)
        return run.scaler._scale.item(), run.scaler._growth_tracker.item()

    agree(iteration, interval=3)


def test_numbers_written_before_first_scale(same):
    def program(base):
        run = Run(base)
        run.scaler._init_scale, run.scaler._init_growth_tracker, run.scaler._growth_interval = (
            4.0,
            6,
            8,
        )
        for i in range(2):
            plain(run, i)
            run.scaler.update()
            yield run.numbers()
        run.scaler._init_scale = 2.0  # too late
        yield run.numbers(), run.scaler._growth_factor, run.scaler._backoff_factor

    same(program)


def test_numpy_cannot_write_scale():
    scaler = Run(GradScaler).scaler
    scaler.scale(torch.ones(()))
    with pytest.raises(ValueError, match="read-only"):
        scaler._scale.numpy()[...] = 2.0
    assert scaler.get_scale() == 8.0


def test_subclass_without_super_init_raises():
    odd = type("Odd", (GradScaler,), {"__init__": lambda self: setattr(self, "_enabled", True)})
    with pytest.raises(AttributeError, match="Odd was created without"):
        odd().scale(torch.ones(()))


def test_held_scale_shows_current_value(same):
    def program(base):
        run = Run(base)
        run.scaler._lazy_init_scale_growth_tracker(CPU)
        yield told(lambda: run.scaler._lazy_init_scale_growth_tracker(CPU))
        scale, count = run.scaler._scale, run.scaler._growth_tracker
        for i in range(STEPS):
            plain(run, i)
            run.scaler.update()
            yield scale.item(), count.item(), run.scaler._get_scale_async().item(), run.numbers()

    same(program)


# ------------------------------------------------------------------------------------------- checkpoints


def test_numbers_are_saved_as_plain_tensors(agree):
    def iteration(run, i):
        plain(run, i)
        file = io.BytesIO()
        torch.save({"scale": run.scaler._scale, "count": run.scaler._growth_tracker}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        return [(type(value), value.item()) for value in loaded.values()]

    agree(iteration)


@pytest.mark.parametrize(
    "copier",
    [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))],  # noqa: S301
)
def test_copy_keeps_attributes_and_numbers(agree, copier):
    def iteration(run, i):
        run.scaler.overflows = i
        run.scaler = copier(run.scaler)
        plain(run, i)
        return run.scaler.overflows

    agree(iteration)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("when", [0, 1, 2])
def test_state_loads_within_iteration(agree, when, fused):
    def iteration(run, i):
        run.backward(i)
        calls = [run.scaler.unscale_, run.scaler.step, lambda _: None]
        for at, call in enumerate(calls):
            if at == when and i % 3 == 0:
                scale = {"scale": torch.tensor(64.0)} if when else {}  # tensors are taken
                run.scaler.load_state_dict(run.scaler.state_dict() | scale)
            call(run.optimizer)
        return run.param.grad.tolist(), run.state["stage"].name, run.found

    agree(iteration, fused=fused)


# ----------------------------------------------------------------------------------- objects of others


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
        return result, hasattr(run.optimizer, "grad_scale"), hasattr(run.optimizer, "found_inf")

    agree(iteration, kind=kind)


def test_own_grad_scale_divides_gradients(agree):
    def iteration(run, i):
        run.backward(i)
        run.optimizer.grad_scale = torch.tensor(4.0)
        return run.scaler.step(run.optimizer)

    agree(iteration, kind=torch.optim.SGD, fused=True)


def test_failure_keeps_own_grad_scale():
    run, own = Run(GradScaler, fused=True), torch.tensor(4.0)
    run.backward(0)
    run.optimizer.grad_scale = own
    with pytest.raises(TypeError, match="nonsense"):
        run.scaler.step(run.optimizer, nonsense=1)
    assert run.optimizer.grad_scale is own


class Keyed(torch.optim.SGD):
    """A client's, whose step has a keyword that ours has too."""

    def step(self, closure=None, *, ticket=None):
        super().step()
        return ticket


def test_optimizer_keyword_is_passed_through(agree):
    def iteration(run, i):
        run.backward(i)
        return run.scaler.step(run.optimizer, ticket=i)

    agree(iteration, kind=Keyed)


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_receive_flag_and_scale(agree, register):
    def iteration(run, i):
        seen = []
        note = lambda optimizer, *_: seen.append((optimizer.found_inf.item(), optimizer.grad_scale))  # noqa: E731
        handle = getattr(run.optimizer, register)(note)
        plain(run, i)
        handle.remove()
        return seen

    agree(iteration, fused=True)


# -------------------------------------------------------------------------------------------- whole loops


def test_validation_scales_in_inference_mode(agree):
    def iteration(run, i):
        plain(run, i)
        with torch.inference_mode():
            return run.scaler.scale(torch.ones(2)).tolist()

    agree(iteration)


def test_layer_without_gradients_in_iteration(same):
    # Two models with one update for both; each loss of the first reaches one of its two layers.
    def program(base):
        scaler = base("cpu", init_scale=8.0, growth_interval=1)
        params = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
        first, second = torch.optim.SGD(params[:2], lr=0.125), torch.optim.SGD(params[2:], lr=0.125)
        for i in range(4):
            for optimizer, param in ((first, params[i % 2]), (second, params[2])):
                scaler.scale((param * param).sum()).backward()
                scaler.step(optimizer)
                optimizer.zero_grad(set_to_none=False)
            scaler.update()
            yield bits(*params), scaler.get_scale()

    same(program)


def test_temporarily_disabled_scaler_matches_torch(same):
    def program(base):
        run = Run(base)
        for i in range(STEPS):
            run.scaler._enabled = i not in (3, 4)
            if i == 4:
                run.scaler = copy.deepcopy(run.scaler)
            plain(run, i)
            run.scaler.update()
            yield run.scaler._growth_interval, run.numbers()

    same(program)


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
