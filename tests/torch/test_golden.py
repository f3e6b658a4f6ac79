# ruff: noqa: E501 - a table of calls
"""What the torch scaler refuses, in whole sentences, as it is committed: `python -m tests.golden torch` writes it anew."""

import pickle
from functools import partial
from pathlib import Path

import torch

from ampsim import Rule, State
from ampsim.core.policies import Headroom, Probe, Ratio
from ampsim.torch import GradScaler, OptimizerThread, config
from ampsim.torch.shown import OptimizerStates
from ampsim.torch.step import ranks
from ampsim.torch.step.records import StepRecords, StepReport
from ampsim.torch.threads.register import Register
from tests.golden import agree
from tests.torch.helpers import NAN, an_optimizer, told

GOLDEN = Path(__file__).parent / "golden"
make = partial(GradScaler, "cpu")


def begun(**options):
    scaler = make(**options)
    scaler.scale(torch.tensor(1.0))
    return scaler


def with_gradient(grad=1.0, **options):
    param, optimizer = an_optimizer(0.0, **options)
    param.grad = torch.tensor([grad])
    return optimizer


def twice(scaler, optimizer):
    ticket = scaler._iterations.stepping("step", None)
    scaler._records.holding(ticket.index, optimizer, list, lambda _: scaler.step(optimizer))


def with_gaps(scaler):
    param = torch.nn.Parameter(torch.zeros(6)[::2])
    optimizer = torch.optim.SGD([param], lr=1.0, fused=True)
    param.grad = torch.ones(6)[::2]
    scaler.step(optimizer)


def states(by_ranks):
    return OptimizerStates(StepRecords(), print, print, by_ranks=by_ranks)


def of_two(call):
    register = Register(State(1.0), 1)
    return call(register, register.begin(), register.begin())


def unfinished():
    scaler = begun()
    scaler.unscale_(with_gradient())
    pickle.dumps(scaler)


def mixed():
    scaler, param = make(depth=1), torch.nn.Parameter(torch.ones(()))
    first, second = scaler.begin(), scaler.begin()
    (scaler.scale(param * 2, ticket=first) + scaler.scale(param * 3, ticket=second)).backward()


def on_itself():
    thread = OptimizerThread("named")
    try:
        thread.launch(thread.synchronize).result()
    finally:
        thread.close()


def test_what_is_refused(monkeypatch):
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: True)
    options = {**dict.fromkeys(("exact_torch", "allow_fp16", "fused_step"), False), "depth": 0, "at_min_scale": "clamp"}
    calls = {
        "capturable group": lambda: config.common_to_ranks(config.Options(**options, capturable=True), Rule()),
        "saturated group": lambda: config.common_to_ranks(config.Options(**options, capturable=False), Ratio()),
        "no group": lambda: ranks._checked("gloo"), "ranks apart": lambda: ranks._check_alike(torch.tensor([5.0, 3.0, -4.0, -2.0])),
        "device": lambda: GradScaler("gpu"), "depth": lambda: make(depth=-1), "choice": lambda: make(at_min_scale="stay"),
        "both": lambda: make(at_min_scale="warn", exact_torch=True), "kernels": lambda: make(fused_step=True, exact_torch=True),
        "graph depth": lambda: make(capturable=True, depth=2), "graph floor": lambda: make(capturable=True, at_min_scale="warn"),
        "rule=": lambda: make(rule=Rule()), "policy=torch": lambda: make(policy="torch"), "policy=warn": lambda: make(policy="warn"),
        "policy and numbers": lambda: make(policy=Probe(), growth_interval=3), "no policy": lambda: make(policy=3),
        "policy exactly": lambda: make(policy=Probe(), exact_torch=True), "policy's delay": lambda: make(policy=Probe(delay=2), depth=1),
        "floor": lambda: make(min_scale=2.0**-127), "first": lambda: make(init_scale=4.0, min_scale=8.0, max_scale=16.0),
        "bool": lambda: begun().update(True), "text": lambda: begun().update("8"), "beyond": lambda: begun(max_scale=2.0**20).update(2.0**21),
        "below": lambda: begun(min_scale=2.0).update(1.0), "NaN": lambda: begun().update(NAN), "no norm": lambda: begun().unscale_and_clip_(with_gradient(), "x"),
        "NaN norm": lambda: begun().unscale_and_clip_(with_gradient(), NAN), "negative norm": lambda: begun().unscale_and_clip_(with_gradient(), -1.0),
        "gaps": lambda: with_gaps(begun()), "state": lambda: begun()._per_optimizer_states.__setitem__(5, 3),
        "flags": lambda: states(by_ranks=False)[5].__setitem__("stage", 3), "deleted": lambda: states(by_ranks=True).__delitem__(5), "no flags": lambda: states(by_ranks=False)[5].__delitem__("stage"),
        "no step": lambda: StepReport().skipped_by(an_optimizer()[1]), "truth": lambda: bool(StepReport()), "held": lambda: twice(begun(), with_gradient()),
        "on itself": on_itself, "no room": lambda: of_two(lambda register, *_: register.begin(0.0)), "saved": lambda: of_two(lambda register, *_: register.pending()),
        "another's": lambda: of_two(lambda register, *_: register.apply(Register(State(1.0), 1).begin(), list)),
        "not next": lambda: of_two(lambda register, first, second: register.apply(second, list)),
        "policy's count": lambda: setattr(begun(policy=Headroom()), "_growth_tracker", 3), "policy's first": lambda: setattr(begun(policy=Headroom()), "_init_scale", 8.0),
        "late": lambda: setattr(begun(), "_scale", 8.0), "count": lambda: setattr(make(), "_growth_tracker", -1),
        "pickled": unfinished, "mixed": mixed, "observed": lambda: make(capturable=True).observe(None),
    }  # fmt: skip
    found = {}
    for name, call in calls.items():
        kind, text = told(call)
        assert issubclass(kind, Exception)
        found[name] = f"{kind.__name__}: {text}"
    agree(GOLDEN / "refused.txt", found)
