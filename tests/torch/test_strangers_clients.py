"""Whole loops of strangers that failed with our scaler alone: each sees of ours what it sees of torch's."""

import copy
import pickle
from collections import defaultdict
from enum import IntEnum
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.amp.grad_scaler import OptState, _refresh_per_optimizer_state
from torch.optim import SGD

from ampsim.torch import GradScaler
from tests.torch.helpers import INF, an_optimizer, bits, told


class Exact(GradScaler):
    """Ours as torch has it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, exact_torch=True, **kwargs)


CLIENTS = []


def client(run, *args, name=""):
    """Register a generator of what a client sees, run with a class of scalers."""
    CLIENTS.append(pytest.param(partial(run, *args), id=run.__name__ + name))
    return run


def clients(**given):
    """Register a client once for each of these arguments."""

    def register(run):
        for name, argument in given.items():
            client(run, argument, name=f"-{name}")
        return run

    return register


@pytest.mark.parametrize("base", [GradScaler, Exact])
@pytest.mark.parametrize("run", CLIENTS)
def test_a_client_sees_what_it_sees_of_torchs(run, base):
    assert list(run(base)) == list(run(torch.amp.GradScaler))


def state(scaler, optimizer):
    return scaler._per_optimizer_states[id(optimizer)]


def seen(scaler, *params):
    """What a client sees at the end of an iteration."""
    return [*bits(*params), scaler.get_scale(), scaler._get_growth_tracker()]


# ------------------------------------------------------------------------------------- a load, then a write


def fill(scaler):
    scaler._scale.fill_(64.0)


def put(scaler):
    scaler._scale = torch.tensor(64.0)


def count_anew(scaler):
    scaler._growth_tracker.zero_()


def twice(scaler):
    fill(scaler)
    count_anew(scaler)


@clients(fill=fill, put=put, count_anew=count_anew, twice=twice)
def a_rollback_of_the_scaler_and_a_floor_under_its_scale(write, base):
    for before in ("nothing", "unscale_", "step"):
        scaler = base("cpu", init_scale=64.0)
        param, optimizer = an_optimizer()
        scaler.scale((param * param).sum()).backward()
        getattr(scaler, before, id)(optimizer)
        scaler.load_state_dict(scaler.state_dict())
        write(scaler)
        yield state(scaler, optimizer)["stage"]
        yield told(lambda s=scaler, o=optimizer: s.step(o)), *bits(param.grad)
        scaler.update()
        yield seen(scaler, param)
        scaler.step(optimizer)  # a new iteration, of which nothing is noted


def test_gradients_from_before_a_load_and_a_write_are_not_divided_by_what_was_written():
    scaler = GradScaler("cpu", init_scale=64.0)
    param, optimizer = an_optimizer()
    scaler.scale(param.sum()).backward()
    scaler.load_state_dict(scaler.state_dict())
    scaler._scale.fill_(128.0)
    with pytest.raises(RuntimeError, match=r"would be divided by the scale 128\.0: expected 64\.0"):
        scaler.step(optimizer)


# ----------------------------------------------------------------------------------- the wrong object, once


class Wrapper:
    """A schedule around an optimizer, which shows no groups."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()


WRONG = {
    "wrapper": Wrapper(None),
    "model": torch.nn.Linear(1, 1),
    "list": [],
    "None": None,
    "class": SGD,
    "names": SimpleNamespace(param_groups=[{"params": ["weight", "bias"]}]),
    "many names": SimpleNamespace(param_groups=[{"params": ["weight"] * 5}]),
}


@clients(**WRONG)
def a_wrong_object_that_is_caught(wrong, base):
    for name in ("step", "unscale_"):
        scaler = base("cpu", init_scale=64.0, growth_interval=1)
        param, optimizer = an_optimizer()
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((param * param).sum()).backward()
            yield told(lambda s=scaler, n=name: getattr(s, n)(wrong))
            scaler.step(optimizer)
            scaler.update()
            yield seen(scaler, param)


def test_an_observer_is_told_of_no_wrong_object():
    scaler, observer = GradScaler("cpu"), mock.Mock()
    scaler.observe(observer)
    param, optimizer = an_optimizer()
    scaler.scale(param.sum()).backward()
    with pytest.raises(AttributeError, match="param_groups"):
        scaler.step(WRONG["wrapper"])
    scaler.step(optimizer)
    scaler.update()
    ((_, told_of),) = (call.args for call in observer.closed.call_args_list)
    assert [kind for kind, _ in told_of] == [optimizer]


# ------------------------------------------------------------------ gradients of parts that an iteration leaves out


@clients(dense=torch.nn.Linear(2, 1), sparse=torch.nn.Embedding(3, 2, sparse=True))
def a_skip_by_hand_then_a_layer_left_out(layer, base):
    layer, scaler = copy.deepcopy(layer), base("cpu", init_scale=64.0)
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = SGD([param, *layer.parameters()], lr=0.5)
    layers = torch.tensor([1, 1]) if isinstance(layer, torch.nn.Embedding) else torch.ones(2)
    for i in range(3):
        loss = (param * param).sum()
        scaler.scale(loss if i else (loss + layer(layers).sum()) * INF).backward()
        scaler.unscale_(optimizer)
        if i:
            scaler.step(optimizer)
        optimizer.zero_grad(set_to_none=False)
        scaler.update()
        yield seen(scaler, param, *layer.parameters())


class Adversaries:
    """Two models with one update for both, of which the first has two layers."""

    def __init__(self, base):
        self.scaler = base("cpu", init_scale=8.0, growth_interval=1)
        self.params = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
        self.first, self.second = SGD(self.params[:2], lr=0.125), SGD(self.params[2:], lr=0.125)

    def step(self, optimizer, *params):
        self.scaler.scale(sum((param * param).sum() for param in params)).backward()
        self.scaler.step(optimizer)


@client
def a_layer_of_one_adversary_left_out(base):
    pair = Adversaries(base)
    for i in range(4):
        pair.step(pair.first, *pair.params[i % 2 : 2])
        pair.first.zero_grad(set_to_none=False)
        pair.step(pair.second, pair.params[2])
        pair.second.zero_grad(set_to_none=False)
        pair.scaler.update()
        yield seen(pair.scaler, *pair.params)


@client
def gradients_that_were_stepped_before_another_loss_and_are_stepped_again(base):
    pair = Adversaries(base)
    pair.step(pair.first, *pair.params[:2])
    for _ in range(2):
        pair.step(pair.second, pair.params[2])
        pair.scaler.update()
    pair.scaler.step(pair.first)
    yield bits(*pair.params)


def test_of_one_loss_per_iteration_no_gradient_is_noted():
    pair = Adversaries(GradScaler)
    for _ in range(3):
        pair.step(pair.first, *pair.params[:2])
        assert not pair.scaler._owners._left
        pair.scaler.update()


def test_what_another_loss_adds_to_stepped_gradients_waits_for_a_step_of_its_own():
    pair = Adversaries(GradScaler)
    pair.step(pair.first, *pair.params[:2])
    pair.step(pair.second, pair.params[0], pair.params[2])
    pair.scaler.update()
    with pytest.raises(RuntimeError, match=r"would be divided by the scale 16\.0: expected 8\.0"):
        pair.scaler.step(pair.first)


@pytest.mark.parametrize("seen_before", [True, False])
def test_an_optimizer_whose_first_gradients_come_later_is_known_once_a_call_has_had_it(seen_before):
    pair = Adversaries(GradScaler)
    pair.step(pair.first, *pair.params[:2])
    if seen_before:
        pair.scaler.unscale_(pair.second)
    pair.scaler.update()
    pair.step(pair.first, *pair.params)
    pair.scaler.update()
    refused = told(lambda: pair.scaler.unscale_(pair.second))
    assert ("would be divided by the scale 32.0: expected 16.0" in str(refused)) == seen_before


# ------------------------------------------------------------------------------ updates that are not the class's


@clients(of_the_scaler=False, of_its_own=True)
def an_update_by_flags_that_no_optimizer_has_and_a_count(own, base):
    class OfDerivatives(base):
        found, counted = torch.zeros(1), torch.zeros((), dtype=torch.int32)

        def update(self):
            scale, tracker = self._check_scale_growth_tracker("update")
            constants = self._growth_factor, self._backoff_factor, self._growth_interval
            torch._amp_update_scale_(scale, self.counted if own else tracker, self.found, *constants)

    scaler, x = OfDerivatives("cpu", init_scale=4.0, growth_interval=2), torch.ones(3, requires_grad=True)
    for i in range(5):
        (grad,) = torch.autograd.grad(scaler.scale((x**3).sum()), x)
        scaler.found.fill_(i == 3)
        scaler.update()
        yield *bits(grad), scaler.get_scale(), scaler.state_dict()


def of_a_backend(self, new_scale=None):  # torch's, on tensors that it moves first
    scale, tracker = (tensor.to("cpu") for tensor in self._check_scale_growth_tracker("update"))
    flags = [flag for state in self._per_optimizer_states.values() for flag in state["found_inf_per_device"].values()]
    constants = self._growth_factor, self._backoff_factor, self._growth_interval
    torch._amp_update_scale_(scale, tracker, flags[0], *constants)
    self.stages = [state["stage"] for state in self._per_optimizer_states.values()]
    self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)


@client
def an_update_put_into_the_class(base):
    with mock.patch.object(GradScaler if issubclass(base, GradScaler) else base, "update", of_a_backend):
        scaler = base("cpu", init_scale=64.0, growth_interval=2)
        param, optimizer = an_optimizer()
        for i in range(4):
            optimizer.zero_grad()
            scaler.scale((param * (INF if i == 2 else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            yield scaler.stages, seen(scaler, param)


@clients(unscaled=1, stepped=2)
def a_stage_that_is_a_number(number, base):
    scaler = base("cpu", init_scale=64.0)
    param, optimizer = an_optimizer()
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale((param * param).sum()).backward()
        scaler.unscale_(optimizer)
        state(scaler, optimizer)["stage"] = number
        if number == OptState.UNSCALED.value:
            scaler.step(optimizer)
        else:
            optimizer.step()
        scaler.update()
        yield seen(scaler, param)


def test_a_stage_of_an_enum_of_numbers_is_read_back():
    stage = IntEnum("Stage", ("UNSCALED", "STEPPED")).STEPPED
    scaler, (param, optimizer) = GradScaler("cpu"), an_optimizer()
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    state(scaler, optimizer)["stage"] = stage
    assert state(scaler, optimizer)["stage"] is stage


def test_a_scale_that_a_second_scaler_takes_over_is_a_number_of_its_own():
    first, second = (GradScaler("cpu", init_scale=64.0, growth_interval=1) for _ in range(2))
    first.scale(torch.ones(()))
    second._scale = first._scale
    param, optimizer = an_optimizer()
    second.scale(param.sum()).backward()
    second.step(optimizer)
    second.update()
    assert (first.get_scale(), second.get_scale()) == (64.0, 128.0)


# ------------------------------------------------------------------------------------------- switched off for a while


def pickled(scaler):
    return pickle.loads(pickle.dumps(scaler))  # noqa: S301


READ = ("_scale", "_growth_tracker", "_init_scale", "_growth_factor", "_backoff_factor", "_growth_interval")
METHODS = ("get_growth_factor", "get_backoff_factor", "get_growth_interval", "_get_scale_async", "get_scale")


@clients(itself=lambda scaler: scaler, copied=copy.deepcopy, pickled=pickled)
def a_scaler_switched_off_for_a_while(after, base):
    scaler = base("cpu", init_scale=64.0, growth_interval=5)
    param, optimizer = an_optimizer()

    def iterate():
        optimizer.zero_grad()
        scaler.scale(param.sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(3):
        iterate()
    scaler._enabled = False
    yield [float(getattr(scaler, name)) for name in READ], [float(getattr(scaler, name)()) for name in METHODS]
    yield [*map(float, scaler._check_scale_growth_tracker("update"))], dict(scaler._per_optimizer_states)
    iterate()
    scaler.set_growth_factor(4.0)
    scaler = after(scaler)
    scaler._enabled = True
    for _ in range(3):
        yield seen(scaler, param)
        iterate()
    yield scaler.state_dict()


@client
def a_copy_that_changes_a_number_on_its_way(base):
    class Changing(base):
        def __getstate__(self):
            return super().__getstate__() | {"_growth_interval": 7}

    scaler = Changing("cpu", init_scale=64.0)
    scaler._enabled = False
    yield copy.deepcopy(scaler).get_growth_interval()


@client
def a_copy_of_what_was_switched_off_within_an_iteration(base):
    scaler = base("cpu", init_scale=64.0)
    param, optimizer = an_optimizer()
    scaler.scale(param.sum()).backward()
    scaler.unscale_(optimizer)
    scaler._enabled = False
    scaler = copy.deepcopy(scaler)
    scaler._enabled = True
    yield scaler.get_scale()


def test_a_copy_that_was_made_while_switched_off_refuses_what_its_like_refuses():
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=1)
    scaler._enabled = False
    scaler = copy.deepcopy(scaler)
    scaler._enabled = True
    param, optimizer = an_optimizer()
    other, stepped = an_optimizer()
    scaler.scale(param.sum() + other.sum()).backward()
    scaler.step(stepped)
    scaler.update()
    with pytest.raises(RuntimeError, match=r"would be divided by the scale 16\.0: expected 8\.0"):
        scaler.step(optimizer)


def test_a_scaler_that_was_made_disabled_has_none_of_torchs_numbers():
    for base in (GradScaler, Exact, torch.amp.GradScaler):
        scaler = base("cpu", enabled=False)
        assert not [name for name in READ if hasattr(scaler, name)]
        assert not hasattr(copy.deepcopy(scaler), "_init_scale")


# ------------------------------------------------------------------------------------------------ odd arguments


@client
def numbers_that_went_through_floats_and_tensors(base):
    scaler = base("cpu", init_scale=torch.tensor(128.0))
    yield scaler.get_scale(), scaler.scale(torch.ones(())).item()
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 1.0})
    param, optimizer = an_optimizer()
    scaler.scale(param.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    yield seen(scaler, param)


@pytest.mark.parametrize("tracker", [1.5, INF, True])
def test_a_count_that_is_none_is_refused(tracker):
    scaler = GradScaler("cpu")
    with pytest.raises(TypeError, match=r"_growth_tracker=.*expected a whole number"):
        scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": tracker})


class Ticketed(SGD):
    """An optimizer whose step has a keyword that ours has too."""

    def step(self, ticket=None):
        super().step()
        return ticket


@client
def an_optimizer_whose_step_takes_a_ticket(base):
    for enabled in (True, False):
        scaler = base("cpu", init_scale=8.0, enabled=enabled)
        param, optimizer = an_optimizer(kind=Ticketed)
        scaler.scale(param.sum()).backward()
        yield scaler.step(optimizer, ticket=5), *bits(param)


class RunsItself(SGD):
    """An optimizer that runs the passes in its step, and scales by the scaler that it is handed."""

    _step_supports_amp_scaling = True

    def step(self, grad_scaler=None):
        """Never get here."""


@pytest.mark.filterwarnings("ignore:.*takes grad_scaler")
def test_an_optimizer_that_runs_the_passes_itself_is_told_to_run_them_before():
    scaler = GradScaler("cpu")
    _, optimizer = an_optimizer(kind=RunsItself)
    scaler.scale(torch.ones(()))
    with pytest.raises(AssertionError, match=r"No inf checks were recorded.*expected a backward pass before it; run"):
        scaler.step(optimizer)
