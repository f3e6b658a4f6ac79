"""Code that was written against torch's scaler and its private names: what it does with ours, bit for bit."""

import copy
import io
from collections import defaultdict
from contextlib import closing
from enum import Enum
from functools import partial
from unittest import mock

import pytest
import torch
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from ampsim.core.policies.log_max import LogMax
from ampsim.torch import GradScaler, OptimizerThread
from ampsim.torch.shown import OptimizerStates
from ampsim.torch.step.records import StepRecords
from tests.torch.helpers import INF, bits

STEPS, BAD = 9, (2, 5, 6)  # iterations, and those whose gradient is inf
CPU = torch.device("cpu")
CLIENTS = []


def client(run):
    """Register a generator of what a client sees, run with a class of scalers."""
    CLIENTS.append(pytest.param(run, id=run.__name__))
    return run


def each_iteration(see):
    """Register what a client does and sees in each iteration of a run."""

    def run_it(base):
        run = Run(base)
        for i in range(STEPS):
            yield from see(run, i)

    run_it.__name__ = see.__name__
    client(run_it)
    return see


class Run:
    """A model of one parameter, its optimizer and its scaler, whose scale falls at each planted inf and grows."""

    def __init__(self, base, kind=torch.optim.AdamW, interval=2, **options):
        self.scaler = base("cpu", init_scale=8.0, growth_interval=interval)
        self.param = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        self.optimizer = kind([self.param], **{"lr": 0.25, **options})

    @property
    def state(self):
        return self.scaler._per_optimizer_states[id(self.optimizer)]

    def backward(self, i, again=False):
        self.param.grad = None
        factor = torch.tensor([INF if i in BAD and not again else i + 1.0, 0.5])
        self.scaler.scale((self.param * factor).sum()).backward()

    def seen(self):
        return [*bits(self.param), self.scaler.get_scale(), self.scaler._get_growth_tracker()]

    def end(self):
        self.scaler.update()
        return self.seen()


def found(state):
    return sum(flag.item() for flag in state["found_inf_per_device"].values())


# ------------------------------------------------------------------------------------ the state of one optimizer


@each_iteration
def a_state_held_over_unscale(run, i):
    run.backward(i)
    state = run.state
    run.scaler.unscale_(run.optimizer)
    yield state["stage"].name, found(state)
    if not found(state):  # a trainer with sharpness-aware minimization climbs here
        run.param.data.add_(run.param.grad)
    run.scaler.step(run.optimizer)
    yield state["stage"].name, run.end()


@each_iteration
def a_state_held_from_the_top_of_the_loop(run, i):
    state = run.state
    run.backward(i)
    run.scaler.step(run.optimizer)
    yield state["stage"].name, found(state), run.end()


@each_iteration
def a_second_backward_pass_after_the_stage_is_put_back(run, i):
    run.backward(i)
    run.scaler.unscale_(run.optimizer)
    first = found(run.state)
    run.state["stage"] = OptState.READY
    run.backward(i, again=not first)
    run.scaler.unscale_(run.optimizer)
    run.scaler.step(run.optimizer)
    yield first, found(run.state), run.end()


def divided(run):
    """Divide and check by torch's kernel, as a client's own hand does; return the flag."""
    flag = torch.zeros(())
    inverse = run.scaler._scale.double().reciprocal().float()
    torch._amp_foreach_non_finite_check_and_unscale_([run.param.grad], flag, inverse)
    return flag


@each_iteration
def updates_fused_into_the_backward_pass(run, i):
    run.backward(i)
    flag = divided(run)
    run.state["found_inf_per_device"] = {CPU: flag}
    run.state["stage"] = OptState.STEPPED
    if not flag:
        run.param.data.sub_(0.1 * run.param.grad)
    yield run.end()


@each_iteration
def a_check_of_its_own_then_step(run, i):
    run.backward(i)
    state = run.state
    state["found_inf_per_device"], state["stage"] = {CPU: divided(run)}, OptState.UNSCALED
    run.scaler.step(run.optimizer)
    yield state["stage"].name, run.end()


@each_iteration
def a_flag_put_in_for_a_loss_that_is_no_number(run, i):
    run.backward(i, again=True)
    run.scaler.unscale_(run.optimizer)
    if i in BAD:
        run.state["found_inf_per_device"][CPU] = torch.ones(())
    run.scaler.step(run.optimizer)
    yield run.end()


@each_iteration
def a_flag_from_before_unscale_is_replaced(run, i):
    run.backward(i, again=True)
    run.state["found_inf_per_device"] = {CPU: torch.ones(())}
    run.scaler.unscale_(run.optimizer)
    run.scaler.step(run.optimizer)
    yield run.end()


@client
def all_states_held_over_the_iteration(base):
    run = Run(base)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.5)
    for i in range(STEPS):
        states = run.scaler._per_optimizer_states
        assert (len(states), states.get(id(other)), id(other) in states) == (0, None, False)
        run.backward(i)
        other.param_groups[0]["params"][0].grad = torch.ones(2)
        for optimizer in (run.optimizer, other):
            run.scaler.unscale_(optimizer)
        yield [(state["stage"].name, found(state)) for state in states.values()]
        for state in states.values():  # what one stage of a pipeline found all skip
            for flag in state["found_inf_per_device"].values():
                flag.fill_(max(map(found, states.values())))
        for optimizer in (run.optimizer, other):
            run.scaler.step(optimizer)
        yield run.end(), bits(*other.param_groups[0]["params"])


@each_iteration
def a_step_by_hand_that_is_told(run, i):
    run.backward(i)
    run.scaler.unscale_(run.optimizer)
    if not found(run.state):
        run.optimizer.step()
    run.state["stage"] = OptState.STEPPED
    with pytest.raises(RuntimeError) as told:
        run.scaler.step(run.optimizer)
    yield str(told.value), run.end()


@client
def a_state_read_after_update(base):
    run = Run(base)
    last = []
    for i in range(STEPS):
        yield [(state["stage"].name, found(state)) for state in last]
        run.backward(i)
        run.scaler.step(run.optimizer)
        last = [run.state]
        yield run.end()
        last[0]["stage"] = OptState.UNSCALED  # of an iteration that has ended
        yield run.state["stage"].name, dict(run.state["found_inf_per_device"])


# --------------------------------------------------------------------------- subclasses that copy torch's methods


def copying(base):
    """Return a scaler with torch's `unscale_` and `step` copied."""

    class Copied(base):
        def unscale_(self, optimizer):
            self._check_scale_growth_tracker("unscale_")
            state = self._per_optimizer_states[id(optimizer)]
            if state["stage"] is not OptState.READY:
                raise RuntimeError("not again")
            inverse = self._scale.double().reciprocal().float()
            found_inf = torch.full((), 0.0)
            state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, found_inf, False)
            state["stage"] = OptState.UNSCALED

        def step(self, optimizer, *args, **kwargs):
            return copied_step(self, optimizer, *args, **kwargs)

    return Copied


def copied_step(self, optimizer, *args, **kwargs):
    self._check_scale_growth_tracker("step")
    state = self._per_optimizer_states[id(optimizer)]
    if state["stage"] is OptState.STEPPED:
        raise RuntimeError("step() has already been called since the last update().")
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        if state["stage"] is OptState.READY:
            self._check_inf_per_device(optimizer)
        scaler = self._get_scale_async()
        optimizer.grad_scale = None if state["stage"] == OptState.UNSCALED else scaler * 1
        optimizer.found_inf = sum(flag.to(scaler.device) for flag in state["found_inf_per_device"].values())
        result = optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        del optimizer.grad_scale, optimizer.found_inf
        return result
    if state["stage"] is OptState.READY:
        self.unscale_(optimizer)
    if len(state["found_inf_per_device"]) == 0:
        raise AssertionError("No inf checks were recorded for this optimizer.")
    result = self._maybe_opt_step(optimizer, state, *args, **kwargs)
    state["stage"] = OptState.STEPPED
    return result


def of_copies(name, make, early=False, **options):
    def run_it(base):
        run = Run(make(base), **options)
        for i in range(STEPS):
            run.backward(i)
            if early:
                run.scaler.unscale_(run.optimizer)
            run.scaler.step(run.optimizer)
            with pytest.raises(RuntimeError, match="has already been called"):
                run.scaler.step(run.optimizer)
            yield run.state["stage"].name, found(run.state), run.end()

    run_it.__name__ = name
    client(run_it)


def only_step(base):
    return type("OnlyStep", (base,), {"step": copied_step})


def only_unscale(base):
    return type("OnlyUnscale", (base,), {"unscale_": vars(copying(base))["unscale_"]})


def skipping_too(base):
    """Return a scaler whose override of `_maybe_opt_step` writes a flag into the state that it is given."""

    class Skipping(only_step(base)):
        def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
            grad = optimizer.param_groups[0]["params"][0].grad
            if grad.abs().max() > 3:
                optimizer_state["found_inf_per_device"][CPU].fill_(1.0)
            return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)

    return Skipping


def marking(base):
    """Return a scaler whose override of `_maybe_opt_step` writes the stage itself."""

    class Marking(base):
        def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
            result = super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
            optimizer_state["stage"] = OptState.STEPPED
            return result

    return Marking


of_copies("a_copied_step", only_step)
of_copies("a_copied_step_after_unscale", only_step, early=True)
of_copies("a_copied_step_of_a_fused_optimizer", only_step, fused=True)
of_copies("a_copied_step_of_a_fused_optimizer_after_unscale", only_step, early=True, fused=True)
of_copies("a_copied_unscale", only_unscale)
of_copies("a_copied_unscale_that_is_called", only_unscale, early=True)
of_copies("both_copied", copying)
of_copies("both_copied_and_fused", copying, early=True, fused=True)
of_copies("a_copied_step_whose_override_writes_a_flag", skipping_too)
of_copies("an_override_that_writes_the_stage", marking)


@client
def a_closure_that_is_called_again_and_again(base):
    class Closing(base):  # as trainers with closures do it: each call of the closure is ready anew
        def step(self, optimizer, closure):
            def scaled():
                state = self._per_optimizer_states[id(optimizer)]
                state["stage"] = OptState.READY
                closure()
                self.unscale_(optimizer)
                return None if found(state) else 1.0

            for _ in range(2):
                if scaled() is not None:
                    optimizer.step()

    run = Run(Closing)
    for i in range(STEPS):
        run.scaler.step(run.optimizer, partial(run.backward, i))
        yield run.state["stage"].name, run.end()


# ------------------------------------------------------------------------------ scale and count, parked and written


def of_writes(name, write, within=None):
    def run_it(base):
        run = Run(base, interval=3)
        for i in range(STEPS):
            run.backward(i)
            if within:
                within(run.scaler)
            run.scaler.step(run.optimizer)
            yield run.end()
            write(run.scaler, i)
            yield run.seen()

    run_it.__name__ = name
    client(run_it)


def park(scaler, *_):
    scaler._scale = scaler._scale.to("cpu")
    scaler._growth_tracker = scaler._growth_tracker.to("cpu")


of_writes("parked_between_iterations", park)
of_writes("parked_within_an_iteration", park, within=park)
of_writes("the_count_starts_again", lambda s, i: s._growth_tracker.fill_(0) if i == 1 else None)
of_writes("the_count_is_zeroed_each_epoch", lambda s, i: s._growth_tracker.zero_() if i % 4 == 0 else None)
of_writes("the_count_is_one_more", lambda s, i: setattr(s, "_growth_tracker", s._growth_tracker + (i == 3)))
of_writes("the_count_is_copied", lambda s, i: s._growth_tracker.copy_(torch.tensor(1)))
of_writes("the_count_is_added_to", lambda s, i: s._growth_tracker.add_(int(i == 0)))
of_writes("the_states_are_cleared_after_update", lambda s, i: s._per_optimizer_states.clear())
of_writes(
    "the_states_are_replaced_after_update",
    lambda s, i: setattr(s, "_per_optimizer_states", defaultdict(_refresh_per_optimizer_state)),
)


def both_written(scaler, i):
    scaler._scale.fill_(4.0)
    scaler._growth_tracker = torch.tensor(i % 2, dtype=torch.int32)


of_writes("both_are_written", both_written)


@client
def what_starts_is_written_as_tensors(base):
    run = Run(base)
    run.scaler._lazy_init_scale_growth_tracker(CPU)
    run.scaler._growth_tracker.fill_(1)
    for i in range(STEPS):
        run.backward(i)
        run.scaler.step(run.optimizer)
        yield run.end()


of_writes("the_first_scale_is_written_late", lambda s, i: setattr(s, "_init_scale", 2.0 * i))
of_writes("the_scale_is_multiplied", lambda s, i: setattr(s, "_scale", s._scale.__imul__(4.0 if i == 3 else 1.0)))
of_writes("the_scale_is_an_output", lambda s, i: torch.mul(s._scale, 0.5, out=s._scale) if i == 3 else None)
of_writes("the_scale_is_one_of_a_list", lambda s, i: torch._foreach_mul_([s._scale], 0.5) if i == 3 else None)
of_writes("the_scale_is_copied", lambda s, i: s._get_scale_async().copy_(torch.tensor(16.0)) if i == 3 else None)
of_writes("a_view_is_written", lambda s, i: s._scale.view(1).mul_(0.5) if i == 3 else None)
of_writes("the_data_is_written", lambda s, i: s._scale.data.fill_(2.0) if i == 3 else None)
of_writes("the_data_is_replaced", lambda s, i: setattr(s._growth_tracker, "data", torch.tensor(i % 2).int()))
of_writes("a_result_is_written_again", lambda s, i: s._scale.fill_(2.0).mul_(2.0) if i == 3 else None)


@client
def numbers_that_are_held(base):
    run = Run(base)
    run.scaler.scale(torch.ones(()))
    scale, count = run.scaler._scale, run.scaler._growth_tracker
    for i in range(STEPS):
        run.backward(i)
        run.scaler.step(run.optimizer)
        yield run.end(), scale.item(), count.item(), scale.view(1).tolist(), scale.reshape(1, 1).shape
        if i == 4:
            scale.fill_(4.0)
        if i == 7:
            count.fill_(1)


@each_iteration
def numbers_that_are_saved(run, i):
    run.backward(i)
    run.scaler.step(run.optimizer)
    yield run.end()
    file = io.BytesIO()
    torch.save({"scale": run.scaler._scale, "growth_tracker": run.scaler._growth_tracker}, file)
    file.seek(0)
    yield {name: (type(value), value.item()) for name, value in torch.load(file, weights_only=True).items()}


@client
def a_scale_that_a_compiled_function_takes(base):
    torch._dynamo.reset()
    run = Run(base)
    run.scaler._lazy_init_scale_growth_tracker(CPU)
    scaled = torch.compile(lambda param, factor, scale: (param * factor).sum() * scale, backend="eager")
    for i in range(3):
        run.param.grad = None
        scaled(run.param, torch.tensor([INF if i == 1 else 1.0, 0.5]), run.scaler._scale).backward()
        run.scaler.step(run.optimizer)
        yield run.end()


# ------------------------------------------------------------------------------------ iterations of a client's own


def copied_update(self, new_scale=None):
    scale, tracker = self._check_scale_growth_tracker("update")
    if new_scale is not None:
        self._scale.fill_(new_scale)
    else:
        flags = [
            flag for state in self._per_optimizer_states.values() for flag in state["found_inf_per_device"].values()
        ]
        constants = self._growth_factor, self._backoff_factor, self._growth_interval
        torch._amp_update_scale_(scale, tracker, sum(flags), *constants)
    self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)


def patient_update(self):
    """Back off at the second overflow only, as scalers with hysteresis do."""
    found = sum(
        sum(flag.item() for flag in s["found_inf_per_device"].values()) for s in self._per_optimizer_states.values()
    )
    if found and self._overflows_left > 1:
        self._overflows_left -= 1
        self._growth_tracker.fill_(0)
        self._per_optimizer_states.clear()
    else:
        self._overflows_left = 2
        copied_update(self)


def floored_update(self):
    """Write the scale within the iteration that torch's own update then ends."""
    self._scale.clamp_(min=32.0)
    super(type(self), self).update()


def floored_afterwards(self):
    super(type(self), self).update()
    self._scale.clamp_(min=32.0)


def patient_start(self, device):
    super(type(self), self)._lazy_init_scale_growth_tracker(device)
    self._overflows_left = 2


def updating(name, n=1, **methods):
    def run_it(base):
        scaler = type("Updating", (base,), methods)
        run, other = Run(scaler), Run(base, torch.optim.SGD)
        other.scaler = run.scaler
        for i in range(STEPS):
            for each in (run, other)[:n]:
                each.backward(i + (each is other))
                each.scaler.step(each.optimizer)
            run.scaler.update(*[32.0] if i == 7 and methods["update"] is copied_update else [])
            yield run.seen(), other.seen(), run.scaler.state_dict(), len(run.scaler._per_optimizer_states)

    run_it.__name__ = name
    client(run_it)


updating("an_update_that_is_copied", update=copied_update)
updating("an_update_of_two_optimizers_that_is_copied", n=2, update=copied_update)
updating("all_three_copied", update=copied_update, step=copied_step, unscale_=vars(copying(object))["unscale_"])
updating("patience", update=patient_update, _lazy_init_scale_growth_tracker=patient_start)
updating("a_floor_before_the_update", update=floored_update)
updating("a_floor_behind_the_update", update=floored_afterwards)


@client
def torchs_scaler_of_shards(base):
    methods = {name: value for name, value in vars(ShardedGradScaler).items() if name in METHODS_OF_SHARDS}
    for early in (False, True):
        run = Run(type("Sharded", (base,), {**methods, "process_group": None}))
        for i in range(STEPS):
            run.backward(i)
            with mock.patch("torch.distributed.all_reduce"):
                if early:
                    run.scaler.unscale_(run.optimizer)
                run.scaler.step(run.optimizer)
            yield run.end()


METHODS_OF_SHARDS = {"scale", "unscale_", "_unscale_grads_", "_amp_update_scale_cpu_", "update"}


@client
def steps_that_are_no_updates(base):
    class Seldom(base):  # as training among peers does it: most steps collect gradients only
        def update(self):
            if self.due:
                return super().update()
            for key in [*self._per_optimizer_states]:
                self._per_optimizer_states[key] = _refresh_per_optimizer_state()
            return None

    run = Run(Seldom)
    for i in range(STEPS):
        run.backward(i)
        run.scaler.due = i % 3 == 1
        run.scaler.unscale_(run.optimizer)
        kept = copy.deepcopy(run.state)
        yield type(kept), kept["stage"], found(kept), run.end()
        run.scaler._per_optimizer_states[id(run.param)] = kept
        states = copy.deepcopy(run.scaler._per_optimizer_states)
        yield sorted((state["stage"].value, found(state)) for state in states.values())


@client
def states_that_are_used_as_dicts(base):
    run = Run(base)
    run.backward(0)
    run.scaler.unscale_(run.optimizer)
    states, key = run.scaler._per_optimizer_states, id(run.optimizer)
    state = states[key]
    yield (
        isinstance(states, defaultdict),
        isinstance(state, dict),
        states.default_factory is _refresh_per_optimizer_state,
    )
    for kept in (copy.copy(states), states.copy(), states | {}, {} | states, dict(states), {**states}):
        yield type(kept), len(kept), kept.keys() == {key}, kept[key]["stage"]
    for kept in (copy.deepcopy(state), state.copy(), state | {"x": 1}, {"x": 1} | state, {**state}):
        yield type(kept), sorted(kept), kept["stage"]
    yield state == {**state}, state != {**state}, state != {}, bool(state), len(state), str(state)
    with pytest.raises(TypeError):
        hash(state)


@each_iteration
def a_state_with_notes_of_its_own(run, i):
    run.backward(i)
    run.state["mine"] = i  # before any call has looked at the optimizer
    run.scaler.unscale_(run.optimizer)
    state = run.state
    state |= {"more": found(state)}
    yield [*state], len(state), state["mine"], run.state.pop("more"), "more" in state
    state.update({**state, "stage": OptState.UNSCALED, "last": True})
    del state["last"]
    yield [*state], copy.deepcopy(state)["mine"], state.setdefault("mine", -1)
    run.scaler.step(run.optimizer)
    yield run.end(), "mine" in run.state
    with pytest.raises(KeyError):
        run.state["mine"]


@each_iteration
def flags_that_are_asked_for_after_update(run, i):
    run.backward(i)
    run.scaler.step(run.optimizer)
    yield sum(run.scaler._found_inf_per_device(run.optimizer).values()), run.end()
    yield run.scaler._found_inf_per_device(run.optimizer)


@client
def an_override_that_writes_flags_and_returns_others(base):
    class Written(base):
        def _unscale_grads_(self, optimizer, *args):
            found = super()._unscale_grads_(optimizer, *args)
            self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {CPU: 1 - found[CPU]}
            return found

    run = Run(Written)
    for i in range(STEPS):
        run.backward(i)
        run.scaler.unscale_(run.optimizer)
        yield found(run.state)
        run.scaler.step(run.optimizer)
        yield run.end()


def within_closure(base):
    """Make a class whose step scales, checks and divides within the optimizer's closure."""

    def step(self, optimizer, closure):
        def checked():
            state = self._per_optimizer_states[id(optimizer)]
            state["stage"] = OptState.READY
            closure()
            inverse = self._scale.double().reciprocal().float()
            state["found_inf_per_device"] = self._unscale_grads_(optimizer, inverse, torch.zeros(1), True)
            if found(state):
                optimizer.zero_grad()

        return optimizer.step(closure=checked)

    return type("WithinClosure", (base,), {"step": step, "update": copied_update})


@client
def a_step_that_does_all_in_a_closure(base):
    run = Run(within_closure(base))
    for i in range(STEPS):
        run.scaler.step(run.optimizer, closure=partial(run.backward, i))
        yield run.end()


@client
def states_that_are_forgotten(base):
    run = Run(base)
    ways = [
        lambda states, key: states.pop(key, None)["stage"],
        lambda states, key: states.__delitem__(key),
        lambda states, key: states.clear(),
        lambda states, key: setattr(run.scaler, "_per_optimizer_states", defaultdict(_refresh_per_optimizer_state)),
        lambda states, key: states.update({key: _refresh_per_optimizer_state()}),
    ]
    for i in range(STEPS):
        run.backward(i + 1)
        (run.scaler.step if i % 2 else run.scaler.unscale_)(run.optimizer)
        states, key = run.scaler._per_optimizer_states, id(run.optimizer)
        yield ways[i % len(ways)](states, key)
        yield key in run.scaler._per_optimizer_states, run.scaler._per_optimizer_states.pop(0, None)
        with pytest.raises(AssertionError) as told:
            run.scaler.update()
        with pytest.raises(KeyError):
            run.scaler._per_optimizer_states.pop(1)
        run.backward(i)
        run.scaler.step(run.optimizer)
        yield str(told.value), run.end()


@each_iteration
def a_state_that_is_put_back(run, i):
    run.backward(i)
    run.scaler.unscale_(run.optimizer)
    kept = copy.deepcopy(run.scaler._per_optimizer_states)
    run.scaler.step(run.optimizer)
    run.scaler._per_optimizer_states = kept
    run.scaler.step(run.optimizer)
    yield run.end()


@client
def a_check_of_divided_gradients(base):
    run = Run(partial(base), interval=1)
    run.scaler.update(0.25) if run.scaler._scale is not None else setattr(run.scaler, "_init_scale", 0.25)
    for i in range(STEPS):
        run.backward(i)
        run.scaler.unscale_(run.optimizer)
        run.param.grad.mul_(3e37)  # finite, and no longer so once divided by 1/4 again
        yield [flag.item() for flag in run.scaler._check_inf_per_device(run.optimizer).values()]
        run.scaler.step(run.optimizer)
        run.scaler.update(0.25)
        yield run.seen()


# --------------------------------------------------------- what has an optimizer's methods and is none of torch's


class Fused:
    """The least that a fused optimizer of one's own is: no base class, no `state`."""

    _step_supports_amp_scaling = True

    def __init__(self, params, lr):
        self.param_groups = [{"params": list(params), "lr": lr}]

    def step(self, closure=None):
        assert not self.found_inf.is_inference()
        for group in self.param_groups:
            for param in group["params"]:
                scale = 1.0 if self.grad_scale is None else self.grad_scale
                if param.grad is not None and not self.found_inf:
                    param.data.sub_(group["lr"] * (param.grad / scale))
        return 1 - self.found_inf.item()


class FusedByAttribute(Fused):
    """Its `step` is made when it is, as wrappers that count or time calls do."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.step = partial(Fused.step, self)


class FusedElsewhere:
    """A proxy that has its inner optimizer's attributes; what is set stays on the proxy, which tells it."""

    def __init__(self, params, lr, kind=Fused):
        self.inner = kind(params, lr=lr)

    def __getattr__(self, name):
        if name in ("grad_scale", "found_inf"):
            raise AttributeError(name)
        return getattr(vars(self)["inner"], name)

    def step(self, *args):
        self.inner.grad_scale, self.inner.found_inf = self.grad_scale, self.found_inf
        return self.inner.step(*args)


class FusedThrough:
    """A proxy that sets and deletes on its inner optimizer too."""

    def __init__(self, params, lr):
        vars(self)["inner"] = Fused(params, lr)

    def __getattr__(self, name):
        return getattr(vars(self)["inner"], name)

    def __setattr__(self, name, value):
        setattr(self.inner, name, value)

    def __delattr__(self, name):
        delattr(self.inner, name)


class FusedSlots:
    """It has no `__dict__`."""

    __slots__ = ("found_inf", "grad_scale", "param_groups")
    _step_supports_amp_scaling, __init__, step = True, Fused.__init__, Fused.step


class FusedByCall(Fused):
    """Its `step` is an object with `__call__`."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        fused = self

        class Step:
            def __call__(self, closure=None):
                return Fused.step(fused)

        self.step = Step()


class FusedWithoutState(Fused):
    """Its `state` is nothing."""

    state = None


class FusedWithLists(Fused):
    """Its `state` is a list, and grows."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.state = []

    def step(self, closure=None):
        self.state.append(0)
        return super().step()


class FusedWithScale(Fused):
    """It divides by a factor of its own too, which torch multiplies in."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.grad_scale = torch.tensor(2.0)


def of_fused(kind, early=False):
    def run_it(base):
        run = Run(base, kind)
        for i in range(STEPS):
            run.backward(i)
            if early:
                run.scaler.unscale_(run.optimizer)
            if kind is FusedWithScale:
                run.optimizer.grad_scale = torch.tensor(2.0)
            yield run.scaler.step(run.optimizer), run.end()
            for name in ("grad_scale", "found_inf"):
                yield hasattr(run.optimizer, name)

    run_it.__name__ = f"{kind.__name__} {early}"
    client(run_it)


for kind in (
    Fused, FusedByAttribute, FusedElsewhere, FusedThrough, FusedSlots, FusedByCall, FusedWithoutState, FusedWithLists,
    FusedWithScale,
):  # fmt: skip
    of_fused(kind)
    of_fused(kind, early=True)


class Exact(GradScaler):
    """One that does exactly what torch's does."""

    def __init__(self, *args, **constants):
        super().__init__(*args, exact_torch=True, **constants)


# -------------------------------------------------------- methods, enums, groups and loads of a client's own


def with_unscale(name, unscale):
    """Register a client whose class, or whose scaler itself, has an `unscale_` of its own."""

    def run_it(base, on_class):
        run = Run(type("Own", (base,), {"unscale_": unscale}) if on_class else base)
        if not on_class:
            run.scaler.unscale_ = partial(unscale, run.scaler)
        for i in range(STEPS):
            run.backward(i)
            try:
                run.scaler.step(run.optimizer)
                yield run.param.grad.tolist(), run.state["stage"].name, run.end()
            except AssertionError as error:  # nothing was recorded
                yield run.param.grad.tolist(), str(error)
                run.scaler.unscale_ = partial(base.unscale_, run.scaler)

    CLIENTS.extend(pytest.param(partial(run_it, on_class=each), id=f"{name}-{each}") for each in (True, False))


def halve(scaler, optimizer):
    scaler._check_inf_per_device(optimizer)
    for param in optimizer.param_groups[0]["params"]:
        param.grad.div_(2 * scaler.get_scale())


with_unscale("an_unscale_that_only_looks", lambda scaler, optimizer: scaler._check_inf_per_device(optimizer) and None)
with_unscale("an_unscale_that_divides_and_leaves_the_stage", halve)
with_unscale("an_unscale_that_records_nothing", lambda scaler, optimizer: None)


def loading(name, when, change=(), **options):
    """Register a client that loads a state within each third iteration."""

    def run_it(base):
        run = Run(base, **options)
        for i in range(STEPS):
            run.backward(i)
            for at, call in enumerate((run.scaler.unscale_, run.scaler.step)):
                if i % 3 == 0 and at == when:
                    run.scaler.load_state_dict(run.scaler.state_dict() | dict(change))
                call(run.optimizer)
            if i % 3 == 0 and when == 2:
                run.scaler.load_state_dict(run.scaler.state_dict() | dict(change))
            yield run.param.grad.tolist(), run.state["stage"].name, found(run.state), run.end()

    run_it.__name__ = name
    client(run_it)


for fused in (None, True):
    kind = " fused" if fused else ""
    loading(f"a_state_loaded_before_unscale{kind}", 0, fused=fused)
    loading(f"a_state_loaded_between_unscale_and_step{kind}", 1, {"scale": 64.0, "_growth_tracker": 1}, fused=fused)
    loading(f"a_state_loaded_between_step_and_update{kind}", 2, {"scale": 64.0}, fused=fused)


@client
def a_load_copied_from_torchs_that_writes_each_name(base):
    class Copied(base):
        more = 3

        def state_dict(self):
            return super().state_dict() | {"more": self.more}

        def load_state_dict(self, state):
            self._init_scale = state["scale"]
            if self._scale is not None:
                self._scale.fill_(state["scale"])
            self._growth_factor, self._backoff_factor = state["growth_factor"], state["backoff_factor"]
            self._growth_interval, self._init_growth_tracker = state["growth_interval"], state["_growth_tracker"]
            if self._growth_tracker is not None:
                self._growth_tracker.fill_(state["_growth_tracker"])
            self.more = state["more"]

    state = {"scale": 32.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 3, "_growth_tracker": 1}
    run = Run(Copied)
    for i in range(STEPS):
        if i in (0, 4):
            run.scaler.load_state_dict(state | {"more": i})
        yield run.scaler.state_dict()
        run.backward(i)
        run.scaler.step(run.optimizer)
        yield run.end()


class OwnState(Enum):
    """A client's copy of torch's enum, as fairscale has one."""

    READY = 0
    UNSCALED = 1
    STEPPED = 2


@each_iteration
def a_stage_of_an_enum_of_its_own(run, i):
    run.backward(i)
    run.scaler.unscale_(run.optimizer)
    if not found(run.state):
        run.optimizer.step()
    run.state["stage"] = OwnState.STEPPED
    yield run.state["stage"], run.end(), run.state["stage"]


@client
def states_made_by_a_factory_of_its_own(base):
    run = Run(base)
    for i in range(STEPS):
        if i % 2:  # until the next update
            run.scaler._per_optimizer_states = defaultdict(
                lambda: {"stage": OwnState.READY, "found_inf_per_device": {}, "seen": False}
            )
        run.backward(i)
        yield dict(run.state)
        run.scaler.unscale_(run.optimizer)
        run.scaler.step(run.optimizer)
        yield run.state.get("seen"), run.end()


@client
def groups_whose_parameters_are_a_generator(base):
    class Wrapped:
        def __init__(self, inner):
            self.inner = inner

        @property
        def param_groups(self):
            return [{"params": iter(group["params"])} for group in self.inner.param_groups]

        def step(self):
            self.inner.step()

    run = Run(base)
    run.optimizer = Wrapped(run.optimizer)
    for i in range(STEPS):
        run.backward(i)
        run.scaler.step(run.optimizer)
        yield run.end()


@client
def a_check_of_gradients_of_another_scale(base):
    run = Run(base)
    run.backward(0)
    run.scaler.update(16.0)
    yield run.scaler._check_inf_per_device(run.optimizer)[CPU].item(), run.param.grad.tolist()


@client
def a_scale_of_shape_1(base):
    run = Run(base)
    run.scaler._scale = torch.full((1,), 2.0)
    yield run.scaler.get_scale()


@pytest.mark.parametrize("ours", [GradScaler, Exact])
@pytest.mark.parametrize("run", CLIENTS)
def test_a_foreign_client_sees_what_it_sees_with_torchs(run, ours):
    for i, (their, our) in enumerate(zip(run(torch.amp.GradScaler), run(ours), strict=True)):
        assert their == our, f"entry {i}"


def test_a_state_lives_where_another_thread_owns_the_optimizer():
    with closing(OptimizerThread()) as thread:
        run = Run(partial(GradScaler, launch=thread.launch))
        run.backward(2)
        state = run.state
        run.scaler.unscale_(run.optimizer)
        assert (state["stage"], found(state)) == (OptState.UNSCALED, 1.0)


def test_a_step_by_hand_is_in_the_report():
    run = Run(GradScaler)
    for i in (1, 2):
        run.backward(i)
        run.scaler.unscale_(run.optimizer)
        run.state["stage"] = OptState.STEPPED
        run.scaler.update()
        assert (list(run.scaler.last_step), run.scaler.last_step.skipped) == ([run.optimizer], i in BAD)


def test_a_step_by_hand_that_forgets_the_clip_is_refused():
    run = Run(GradScaler, fused=True)
    run.backward(1)
    run.scaler.unscale_and_clip_(run.optimizer, 0.5)
    with pytest.raises(RuntimeError, match=r"after unscale_and_clip_.*: expected scaler.step\(optimizer\); call that"):
        run.state["stage"] = OptState.STEPPED
    assert run.state["stage"] is OptState.UNSCALED


def test_a_count_is_kept_where_the_state_is_on_a_device_and_where_scales_are_pending():
    for options in ({"capturable": True}, {"exact_torch": True}, {"depth": 2}):
        run = Run(partial(GradScaler, **options), interval=4)
        for i in (1, 3):
            run.backward(i)
            run.scaler.step(run.optimizer)
            run.scaler.update()
        run.scaler._growth_tracker.fill_(3)
        run.backward(4)
        run.scaler.step(run.optimizer)
        run.scaler.update()
        assert (run.scaler.get_scale(up_to_date=True), run.scaler._get_growth_tracker()) == (16.0, 0), options


@pytest.mark.parametrize("count", [-1, 1.5, torch.ones(2)])
def test_a_count_that_is_none_is_refused(count):
    run = Run(GradScaler)
    run.scaler.scale(torch.ones(()))
    with pytest.raises((ValueError, TypeError), match=r"_growth_tracker=.*: expected"):
        run.scaler._growth_tracker = count


def test_a_policys_count_is_refused():
    scaler = GradScaler("cpu", policy=LogMax())
    with pytest.raises(RuntimeError, match="with a policy, which has none: expected a rule; call"):
        scaler._growth_tracker = 1


def test_numpy_cannot_write_the_scale_unseen():
    scaler = GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(ValueError, match="read-only"):
        scaler._scale.numpy().fill(2.0)


def test_a_write_that_is_refused_is_not_read():
    run = Run(GradScaler)
    run.backward(1)
    held = run.scaler._scale
    with pytest.raises(RuntimeError, match=r"_scale set to 2\.0 between"):
        held.fill_(2.0)
    assert (held.item(), run.scaler.get_scale()) == (8.0, 8.0)


def test_a_collective_writes_the_scale():
    def all_reduce(tensor):
        """Do what a collective of torch.distributed does: it writes, and no version is counted."""
        if torch.overrides.has_torch_function((tensor,)):
            return torch.overrides.handle_torch_function(all_reduce, (tensor,), tensor)
        return tensor.numpy().fill(4.0)

    all_reduce.__module__ = "torch.distributed.distributed_c10d"
    scaler = GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.update(8.0)
    all_reduce(scaler._scale)
    assert scaler.get_scale() == 4.0
    assert torch.distributed.all_reduce.__module__ == all_reduce.__module__


@pytest.mark.parametrize("then", ["scale", "unscale_", "step"])
def test_a_scale_that_is_written_in_an_iteration_that_goes_on_is_refused(then):
    run = Run(type("Updating", (GradScaler,), {"update": copied_update}))
    run.backward(1)
    run.scaler._scale.fill_(2.0)
    with pytest.raises(
        RuntimeError, match=rf"^{then}\(\) after _scale or _growth_tracker was set between .*: expected"
    ):
        getattr(run.scaler, then)(run.param.sum() if then == "scale" else run.optimizer)
    run.scaler._per_optimizer_states = {}
    assert run.scaler.scale(torch.ones(())) == 2.0


@pytest.mark.parametrize("options", [{"depth": 1}, {"launch": lambda work: work()}])
def test_an_update_that_is_copied_is_refused_where_other_iterations_run(options):
    run = Run(partial(type("Updating", (GradScaler,), {"update": copied_update}), **options))
    run.backward(1)
    run.scaler.step(run.optimizer)
    with pytest.raises(RuntimeError, match=r"set to .* between scale\(\) and update\(\)"):
        run.scaler.update()


def test_a_scale_is_not_written_in_a_loop_that_passes_tickets():
    scaler = type("Updating", (GradScaler,), {"update": copied_update})("cpu")
    scaler.begin()
    with pytest.raises(RuntimeError, match=r"set to 2.0 between scale\(\) and update\(\)"):
        scaler._scale.fill_(2.0)


def test_where_ranks_agree_no_state_is_forgotten():
    records = StepRecords()
    states = OptimizerStates(records, None, None, by_ranks=True)
    states[3]["stage"] = OptState.STEPPED
    for forget in (
        states.clear,
        partial(states.pop, 3),
        partial(states.__setitem__, 3, _refresh_per_optimizer_state()),
    ):
        with pytest.raises(RuntimeError, match=r"_per_optimizer_states .*: expected a stage"):
            forget()
    assert states[3]["stage"] is OptState.STEPPED


def test_an_overflow_on_one_of_two_devices_leaves_no_state():
    run = Run(GradScaler, torch.optim.SGD, fused=True, momentum=0.9)
    run.backward(1)
    run.scaler.unscale_(run.optimizer)
    run.state["found_inf_per_device"] = {CPU: torch.zeros(()), torch.device("cpu:0"): torch.ones(())}
    run.scaler.step(run.optimizer)
    assert not run.optimizer.state
