"""Against RoundPipe's own GradScaler, unmodified, on its own optimizer stream.

RoundPipe cannot be imported without a GPU, so its package ``__init__`` is bypassed and
``roundpipe.device``, of which the scaler needs the number of GPUs alone, is stubbed. Its thread
ends the process on any error and is joined for ever at exit, so everything runs in a process of its
own.
"""

import json

import pytest

from tests.torch.helpers import run_script

pytestmark = pytest.mark.framework(
    "roundpipe"
)  # pip install --no-deps roundpipe==0.1.1 typing_extensions

LOAD = """
import importlib.machinery, importlib.util, inspect, json, random, sys, threading, types
import torch
torch.set_num_threads(1)
package = types.ModuleType("roundpipe")
package.__path__ = importlib.util.find_spec("roundpipe").submodule_search_locations
device = types.ModuleType("roundpipe.device")
device.get_num_devices = lambda: 0
sys.modules.update({"roundpipe": package, "roundpipe.device": device})
import roundpipe.grad_scaler, roundpipe.optim_stream as stream
from ampsim.torch.roundpipe import GradScaler
HAS_IS_ASYNC = "is_async" in inspect.signature(roundpipe.grad_scaler.GradScaler.update).parameters
"""

PLANS = '''
def plan_of(rng):
    constants = (rng.choice([4.0, 1000.0, 2.0**16, 1700.3]), rng.choice([2.0, 3.0, 1.1]), rng.choice([0.5, 0.3]),
                 rng.randint(1, 4))
    likely = rng.choice([0.1, 0.3, 0.7])
    return constants, [
        {"overflows": rng.random() < likely, "new_scale": rng.choice([None] * 6 + [8.0, 0.3, 2.0**20]),
         "as_tensor": rng.random() < 0.5, "unscales": rng.choice(["no", "on stream", "here"]),
         "steps": rng.choice(["on stream", "here"]), "growth": rng.choice([None] * 8 + [4.0]),
         "is_async": rng.random() < 0.8} for _ in range(rng.randint(1, 16))]


def drive(make, constants, plan):
    """What can be seen of a scaler: the scale on both threads, getters, gradients and parameters, bit by bit."""
    scaler, log = make(*constants), []
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([param], lr=0.25, momentum=0.5)
    for it in plan:
        param.grad = None
        loss = scaler.scale((param * torch.tensor([1.0, 3.0])).sum())
        log += [loss.item().hex(), scaler.get_scale().hex()]
        loss.backward()
        if it["overflows"]:
            param.grad[1] = float("inf")
        done = threading.Event()

        def step_fn():
            log.append(scaler.get_scale().hex())
            if it["unscales"] == "on stream":
                scaler.unscale_(optimizer)
            if it["steps"] == "on stream":
                scaler.step(optimizer)
            done.set()

        if it["unscales"] == "here":
            scaler.unscale_(optimizer)
        stream.launch_optim_kernel(step_fn)
        done.wait()  # the log is one list, and the gradients are looked at from here
        if it["steps"] == "here":
            scaler.step(optimizer)
        log += [x.hex() for x in param.grad.tolist() + param.tolist()]
        if it["growth"]:
            scaler.set_growth_factor(it["growth"])
        new = it["new_scale"]
        new = torch.tensor(new) if new is not None and it["as_tensor"] else new
        scaler.update(new, **({"is_async": it["is_async"]} if HAS_IS_ASYNC else {}))
        log.append(scaler.get_scale().hex())
    log += [scaler.get_growth_factor(True), scaler.get_backoff_factor(True), scaler.get_growth_interval(True)]
    return log


def main(seed, count):
    rng, iterations, overflows, synchronous = random.Random(seed), 0, 0, 0
    for number in range(count):
        constants, plan = plan_of(rng)
        theirs = drive(roundpipe.grad_scaler.GradScaler, constants, plan)
        ours = drive(GradScaler, constants, plan)
        if theirs != ours:
            print(json.dumps({"number": number, "constants": constants, "plan": plan, "theirs": theirs, "ours": ours}))
            return
        iterations += len(plan)
        overflows += sum(it["overflows"] for it in plan)
    print(json.dumps({"plans": count, "iterations": iterations, "overflows": overflows, "is_async": HAS_IS_ASYNC}))
'''


STREAM = """
scaler = GradScaler()
param = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([param], lr=0.1)
names = []
optimizer.register_step_pre_hook(lambda *_: names.append(threading.current_thread().name))
scaler.scale(param.sum()).backward()
scaler.step(optimizer)
scaler.update()
scaler.synchronize()
print(json.dumps([names, sorted(t.name for t in threading.enumerate())]))
"""

MISUSE = """
def raised(misuse):
    scaler = GradScaler()
    try:
        misuse(scaler)
        scaler.synchronize()
    except Exception as error:
        return type(error).__name__
param.grad, loss = None, param.sum()
print(json.dumps([raised(misuse) for misuse in (
    lambda s: s.update(),
    lambda s: (s.scale(loss), s.update()),
    lambda s: (s.scale(loss), s.update(8.0), s.update()),
    lambda s: (s.scale(loss), s.update("8")),
    lambda s: (s.scale(loss), s.step(optimizer)),
)]))
"""

FORK = """
import os, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
used, unused = GradScaler(), GradScaler()
used.scale(torch.tensor(1.0))
sys.stdout.flush()
if os.fork() == 0:
    calls = [lambda s: (s.scale(torch.tensor(1.0)), s.step(optimizer))] * 2
    print(json.dumps([raised(lambda _: call(s)) for call, s in zip(calls, (used, unused))]), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.fixture(scope="module")
def printed():
    """What one process prints; the plans once more with an update that comes too early."""
    plans = "main(seed=1, count=400)\n"
    early = f"GradScaler.__init__.__kwdefaults__['depth'] = 0\n{plans}"
    done = run_script(LOAD + PLANS + plans + STREAM + MISUSE + FORK + early)
    assert done.stderr == ""
    names = ("plans", "threads", "misuse", "fork", "early")
    return dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))


def test_depth_1_matches_roundpipe_exactly(printed):
    assert printed["plans"].get("plans") == 400, printed["plans"]
    assert printed["plans"]["iterations"] > 3_000


def test_early_update_is_detected(printed):
    assert printed["early"].get("number", 99) < 20, printed["early"]


def test_scaler_runs_on_roundpipe_stream(printed):
    stream = "RoundPipe Optimizer Stream"
    assert printed["threads"] == [[stream], ["MainThread", stream]]


def test_misuse_raises_without_process_exit(printed):
    raised = [
        "AssertionError",
        "ClosedError",
        "ClosedError",
        "TypeError",
        "AssertionError",
    ]
    assert printed["misuse"] == raised


def test_forked_roundpipe_process_raises(printed):
    assert printed["fork"] == ["ClosedError", "ClosedError"]
