"""A watched loop trains as the same loop unwatched, and its record is true."""

import copy
import gc
import math
import pickle
import platform
import re
import weakref
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

import ampsim.torch
from ampsim import Rule, replay
from ampsim.diagnose.explain import explain, in_words
from ampsim.diagnose.readers.run import read_own
from ampsim.run_file import RunFile, pack_counts, read_run, records, unpack_counts
from ampsim.watch import run as watch_run
from ampsim.watch import watch
from ampsim.watch.measure import exponents, fingerprint, gradients_of, norms
from ampsim.watch.sinks import _scalars, sink
from ampsim.watch.step import Step, _record
from ampsim.watch.writer import Writer
from tests.examples import examples

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, 0.01, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, 0.01),
    "foreach": lambda params: torch.optim.AdamW(params, 0.01, foreach=True),
    "fused": lambda params: torch.optim.AdamW(params, 0.01, fused=True),
    # Without momentum: if its first step is skipped, torch's kernel goes on with a momentum that nobody initialized.
    "fused sgd": lambda params: torch.optim.SGD(params, 0.01, fused=True),
}
SCALERS = {
    "torch": lambda: torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2),
    "ours": lambda: ampsim.torch.GradScaler("cpu", init_scale=2.0**10, growth_interval=2),
    "depth 1": lambda: ampsim.torch.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, depth=1),
    "depth 3": lambda: ampsim.torch.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, depth=3),
    "off": lambda: torch.amp.GradScaler("cpu", enabled=False),
    "none": lambda: None,
}


def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def train(optimizer_name, scaler_name, steps, clip, parts, to=None, **options):
    """Train on as many batches as `steps` has flags, some of which put an inf into a gradient; return what was true."""
    model, truth = make(), []
    optimizer, scaler = OPTIMIZERS[optimizer_name](model.parameters()), SCALERS[scaler_name]()
    run = watch(model, optimizer, scaler, to=to, **options) if to else None
    scaled = scaler is not None and scaler.is_enabled()
    for number, bad in enumerate(steps):
        data = torch.randn(parts, 2, 3, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        true = None
        for part in data:
            loss = model(part).square().mean() / parts
            grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            true = grads if true is None else [a + b for a, b in zip(true, grads, strict=True)]
            (scaler.scale(loss) if scaled else loss).backward()
        if run:
            run.log(loss=loss)
        if bad:
            model[0].weight.grad[0, 0] = bad
        truth.append([grad.clone() for grad in true])
        if clip and scaled:
            scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        if scaled:
            scaler.step(optimizer)
            scaler.update()
        elif not bad:
            optimizer.step()
    if run:
        run.close()
    return model, optimizer, scaler, truth


@settings(max_examples=examples(ms=100))
@given(
    st.sampled_from(sorted(OPTIMIZERS)),
    st.sampled_from(["torch", "ours", "depth 1", "depth 3"]),
    st.lists(st.sampled_from([0.0, 0.0, math.inf, math.nan]), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from([1, 2]),
)
@example("fused", "torch", [0.0, math.inf, 0.0], True, 2)
@example("fused sgd", "torch", [math.inf, 0.0], False, 1)
@example("fused", "ours", [0.0, math.nan, 0.0], False, 1)
def test_what_is_recorded_is_true(tmp_path_factory, optimizer, scaler, steps, clip, parts):
    # torch's fused SGD takes uninitialized memory for its momentum after a skipped first step: difference 6.
    assume(not (scaler == "torch" and optimizer == "fused sgd" and steps[0]))
    path = tmp_path_factory.mktemp("watch") / "run.jsonl"
    watched = train(optimizer, scaler, steps, clip, parts, to=path, every=1)
    plain = train(optimizer, scaler, steps, clip, parts)
    for a, b in zip(watched[0].state_dict().values(), plain[0].state_dict().values(), strict=True):
        assert a.equal(b), "watching changes nothing"
    assert watched[2].state_dict() == plain[2].state_dict()
    names = [name for name, _ in watched[0].named_parameters()]
    found = list(records(path))
    assert [record["step"] for record in found] == list(range(len(steps)))
    scales = replay(Rule(2.0**10, growth_interval=2), [bool(bad) for bad in steps]).tolist()
    delay = {"depth 1": 1, "depth 3": 3}.get(scaler, 0)
    assert [record["scale"] for record in found] == ([2.0**10] * (delay + 1) + scales)[: len(steps)]
    for record, bad, true in zip(found, steps, watched[3], strict=True):
        assert record["skipped"] == bool(bad)
        assert ("bad" in record) == bool(bad)
        assert "optimizers" not in record, "there is one"
        if bad:
            assert record["bad"] == {"0.weight": "has nan" if math.isnan(bad) else "has inf"}
            continue
        norm = math.hypot(*(grad.double().norm().item() for grad in true))
        assert record["norm"] == pytest.approx(norm, rel=1e-5)
        for name, grad in zip(names, true, strict=True):
            counts = unpack_counts(record["by_parameter"][name])
            assert counts.sum() == grad.numel()
            binades = np.floor(np.log2(grad.abs().numpy().ravel())) + 149 + 1
            # One ulp between two ways to sum may move an element over a binade's edge.
            assert np.abs(np.repeat(np.arange(280), counts) - np.sort(binades)).max() <= 1


@pytest.mark.parametrize("scaler", ["off", "none"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_without_a_scaler_there_is_no_scale_to_skip_at(tmp_path, optimizer, scaler):
    train(optimizer, scaler, [0.0, 0.0], False, 1, to=tmp_path / "run.jsonl")
    for record in records(tmp_path / "run.jsonl"):
        assert "skipped" not in record
        assert record["scale"] == 1.0
        assert 0 < record["norm"] < math.inf
        assert record["loss"] > 0


@pytest.mark.parametrize("watched", [1, 2])
def test_an_optimizer_whose_step_was_skipped_is_told_from_the_other(tmp_path, watched):
    one, two = make(1), make(2)
    model = nn.ModuleDict({"one": one, "two": two})
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (one, two)]
    scaler = torch.amp.GradScaler("cpu")
    with watch(model, optimizers[:watched], scaler, to=tmp_path / "run.jsonl", every=1):
        scaler.scale(one(torch.ones(1, 3)).sum() + two(torch.ones(1, 3)).sum()).backward()
        two[0].bias.grad[0] = math.inf
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    [record] = records(tmp_path / "run.jsonl")
    assert record["optimizers"] == [False, True]
    assert record["by_parameter"].keys() == dict(model.named_parameters()).keys()
    assert record["bad"] == {"two.0.bias": "has inf"}
    assert record["norm"] == math.inf


def test_every_and_names_choose_what_is_sampled(tmp_path):
    train("sgd", "torch", [0.0] * 5, False, 1, to=tmp_path / "run.jsonl", every=2, names="2.*")
    sampled = [record.get("by_parameter", {}).keys() for record in records(tmp_path / "run.jsonl")]
    assert sampled == [{"2.weight", "2.bias"}, set(), {"2.weight", "2.bias"}, set(), {"2.weight", "2.bias"}]


def test_parameters_are_looked_at_by_the_steps_that_are_over(monkeypatch, tmp_path):
    looks, closed = [], []
    look, was_closed = watch_run.fingerprint, watch_run.Run.closed
    monkeypatch.setattr(watch_run, "fingerprint", lambda params: (looks.append(len(closed)), look(params))[1])
    monkeypatch.setattr(watch_run.Run, "closed", lambda run, *about: (closed.append(0), was_closed(run, *about)))
    params = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers, scaler = [torch.optim.SGD([param], 0.1) for param in params], ampsim.torch.GradScaler("cpu", depth=1)
    begun = []
    with watch({"a": params[0], "b": params[1]}, optimizers, scaler, to=tmp_path / "run.jsonl", still=3) as run:
        assert run.skipped is False
        for i in range(8):  # each begins before the one before it is over
            params[i % 2].grad = torch.ones(2)
            begun.append((optimizers[i % 2], scaler.begin()))
            scaler.unscale_(begun[-1][0], ticket=begun[-1][1])
            for optimizer, ticket in begun[:-1]:
                scaler.step(optimizer, ticket=ticket)
                scaler.update(ticket=ticket)
            begun = begun[-1:]
    assert looks == [3, 6]


@pytest.mark.parametrize("kind", ["torch", "ours"])
@pytest.mark.parametrize(("moves", "told"), [([0, 0, 0, 1, 1, 1], 2), ([0, 1, 1, 0, 0, 0], 5)])
def test_a_run_that_stands_still_is_told(tmp_path, kind, moves, told):
    steps = [0.0 if moves else math.inf for moves in moves]
    with pytest.warns(RuntimeWarning, match="no parameter has moved in 3 steps; 3 of these steps were skipped"):
        train("sgd", kind, steps, False, 1, to=tmp_path / "run.jsonl", still=3)
    alarms = [record["step"] for record in records(tmp_path / "run.jsonl") if "alarm" in record]
    assert alarms == [told]


def test_bfloat16_that_rounds_every_step_away_is_told(tmp_path):
    param = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([param], 1e-4)
    with watch({"weight": param}, optimizer, to=tmp_path / "run.jsonl", still=5):
        for _ in range(4):
            param.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        param.sum().backward()
        with pytest.warns(RuntimeWarning, match="none was skipped: is the learning rate too small"):
            optimizer.step()
    assert param.eq(1).all()


def _is_free(lock):
    return lock.acquire(blocking=False) and lock.release() is None


@pytest.mark.parametrize("kind", ["torch", "ours"])
def test_on_skip_and_skipped_say_it_in_time(tmp_path, kind):
    seen, model = [], make()
    optimizer, scaler = OPTIMIZERS["fused"](model.parameters()), SCALERS[kind]()

    def on_skip(record):
        seen.append(record["step"])
        with ThreadPoolExecutor(1) as other:  # which may wait for a thread that writes
            assert other.submit(_is_free, run._writer._lock).result()

    with watch(model, optimizer, scaler, to=tmp_path / "run.jsonl", on_skip=on_skip) as run:
        said = []
        for bad in (False, True, False):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 3)).sum()).backward()
            if bad:
                model[0].bias.grad[0] = math.nan
            scaler.step(optimizer)
            scaler.update()
            said.append(run.skipped)
    assert seen == [1]
    assert said == [False, True, False]


def test_a_watched_scaler_is_copied_pickled_and_let_go_as_the_plain_one(tmp_path):
    model = make()
    optimizer, scaler = OPTIMIZERS["sgd"](model.parameters()), torch.amp.GradScaler("cpu")
    run = watch(model, optimizer, scaler, to=tmp_path / "run.jsonl")
    assert isinstance(scaler, torch.amp.GradScaler)
    with pytest.raises(ValueError, match="is being watched"):
        watch(model, optimizer, scaler, to=tmp_path / "other.jsonl")
    assert type(scaler).__doc__ == torch.amp.GradScaler.__doc__
    for other in (copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):  # noqa: S301
        assert type(other) is torch.amp.GradScaler
        assert other.state_dict() == scaler.state_dict()
        assert not [name for name in vars(other) if "ampsim" in name]
    run.close()
    assert type(scaler) is torch.amp.GradScaler
    assert vars(scaler).keys() == vars(torch.amp.GradScaler("cpu")).keys()
    run.close()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"to": 3}, TypeError, "expected a path, a Weights & Biases run"),
        ({"scaler": object()}, TypeError, "expected an ampsim.torch.GradScaler"),
        ({"optimizer": []}, ValueError, "no optimizer"),
        ({"optimizer": "sgd"}, TypeError, "expected an optimizer"),
        ({"every": -1}, ValueError, "every=-1"),
        ({"still": True}, TypeError, "still=True"),
        ({"first_step": -1}, ValueError, "first_step=-1"),
    ],
)
def test_what_cannot_be_watched_is_refused_and_left_alone(tmp_path, change, error, text):
    model, scaler = make(), torch.amp.GradScaler("cpu")
    given = {
        "optimizer": OPTIMIZERS["sgd"](model.parameters()),
        "scaler": scaler,
        "to": tmp_path / "run.jsonl",
    } | change
    with pytest.raises(error, match=text):
        watch(model, given.pop("optimizer"), given.pop("scaler"), **given)
    assert type(scaler) is torch.amp.GradScaler


def test_a_capturable_scaler_is_refused(tmp_path):
    model = make()
    scaler = ampsim.torch.GradScaler("cpu", capturable=True)
    with pytest.raises(ValueError, match="capturable"):
        watch(model, OPTIMIZERS["sgd"](model.parameters()), scaler, to=tmp_path / "run.jsonl")


def test_a_sink_that_fails_does_not_end_the_run():
    class Full:
        def append(self, record):
            raise OSError("No space left")

        def close(self):
            pass

    with pytest.warns(RuntimeWarning, match="the record of step 0 and all later ones are not .* No space left") as told:
        model, *_ = train("sgd", "ours", [0.0] * 3, False, 1, to=Full())
    assert len(told) == 1
    for a, b in zip(model.parameters(), train("sgd", "ours", [0.0] * 3, False, 1)[0].parameters(), strict=True):
        assert a.equal(b)


def test_names_of_a_record_cannot_be_logged(tmp_path):
    model = make()
    with watch(model, OPTIMIZERS["sgd"](model.parameters()), to=tmp_path / "run.jsonl") as run:
        with pytest.raises(ValueError, match="call it my_norm"):
            run.log(norm=1.0)
        with pytest.raises(TypeError, match="expected a real number"):
            run.log(text="hello")


def test_finite_gradients_whose_squares_leave_float32_have_a_norm(tmp_path):
    param = nn.Parameter(torch.zeros(2))
    with watch({"w": param}, optimizer := torch.optim.SGD([param], 1e-30), to=tmp_path / "run.jsonl"):
        param.grad = torch.tensor([3e20, 4e20])
        optimizer.step()
    assert next(records(tmp_path / "run.jsonl"))["norm"] == pytest.approx(5e20)


def start(path, grads, **options):
    """Start a program that takes one step per gradient."""
    param = nn.Parameter(torch.ones(1))
    with watch({"w": param}, optimizer := torch.optim.SGD([param], 1.0), to=path, **options):
        for grad in grads:
            param.grad = torch.tensor([grad])
            optimizer.step()


def test_a_program_that_starts_again_goes_on_after_the_last_step(tmp_path):
    path, new = tmp_path / "run.jsonl", tmp_path / "new.jsonl"
    start(path, [1.0, 2.0])
    start(path, [])
    with pytest.warns(RuntimeWarning, match="step 3: no parameter has moved in 2 steps"):
        start([new, path], [0.0, 0.0], still=2)
    assert [(record["step"], record["norm"]) for record in records(path)] == [(0, 1), (1, 2), (2, 0), (3, 0)]
    assert [record["step"] for record in records(new)] == [2, 3]


def test_of_a_program_that_goes_back_to_a_checkpoint_what_came_later_counts(tmp_path):
    path = tmp_path / "run.jsonl"
    start(path, [1.0, 2.0, 3.0, 4.0])
    start(path, [5.0], first_step=1)
    start(path, [6.0])
    assert [record["step"] for record in records(path)] == [0, 1, 2, 3, 1, 2]
    start(again := tmp_path / "again.jsonl", [1.0, 2.0])
    start(again, [3.0], first_step=0)
    assert [record["step"] for record in records(again)] == [0, 1, 0]
    history = read_own(path)
    last = history.last
    assert (history.step[last].tolist(), history.norm[last].tolist()) == ([0, 1, 2], [1, 5, 6])


def test_a_sink_is_closed_once():
    closed, model = [], make()
    sink = SimpleNamespace(append=None, close=lambda: closed.append(True))
    run = watch(model, OPTIMIZERS["sgd"](model.parameters()), to=sink)
    run.close()
    run.close()
    assert closed == [True]


def test_the_head_of_the_file_says_what_is_known_of_the_run(tmp_path):
    model, scaler = make().bfloat16(), ampsim.torch.GradScaler("cpu", growth_interval=7)
    model[2].requires_grad_(False)
    watch(model, OPTIMIZERS["sgd"](model.parameters()), scaler, to=tmp_path / "run.jsonl").close()
    head = read_run(tmp_path / "run.jsonl")
    assert {"started", "argv"} < head.keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", head["started"])
    assert {name: value for name, value in head.items() if name not in {"started", "argv"}} == {
        "scaler": "ampsim.torch.grad_scaler.GradScaler",
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 7,
        "optimizers": ["SGD"],
        "parameters": {"0.weight": 12, "0.bias": 4, "2.weight": 4, "2.bias": 1},
        "dtypes": ["bfloat16"],
        "devices": ["cpu"],
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def test_steps_that_arrive_together_are_written_together_and_in_order():
    class Records(list):
        def close(self):
            pass

    written, skipped = Records(), []
    writer = Writer([written], {}, 5, None, skipped.append)
    for number, flag in enumerate([1.0, 0.0, 1.0]):
        step = Step(sampled=False, logged={"number": number}, flags=[[torch.tensor(flag)]])
        step.fetch()
        writer.add(step)
    assert not written
    writer.write(wait=False)
    assert [(record["step"], record["number"]) for record in written] == [(5, 0), (6, 1), (7, 2)]
    assert skipped == written[::2]


def test_what_is_logged_is_what_it_was_then(tmp_path):
    param = nn.Parameter(torch.ones(1))
    with watch({"w": param}, optimizer := torch.optim.SGD([param], 0.1), to=tmp_path / "run.jsonl") as run:
        loss = torch.tensor(3.0)
        run.log(loss=loss)
        loss.zero_()
        optimizer.step()
    assert next(records(tmp_path / "run.jsonl"))["loss"] == 3.0


def test_what_was_logged_last_counts_though_a_scale_was_set_meanwhile(tmp_path):
    param = nn.Parameter(torch.ones(1))
    with watch({"w": param}, optimizer := torch.optim.SGD([param], 0.1), to=tmp_path / "run.jsonl") as run:
        run.log(loss=1.0, other=1.0)
        run.closing("an update(new_scale) on another thread")
        run.log(loss=2.0)
        run.closed("an update(new_scale) on another thread", [])
        optimizer.step()
    [record] = records(tmp_path / "run.jsonl")
    assert (record["loss"], record["other"]) == (2.0, 1.0)


def test_a_parameter_that_was_frozen_after_its_gradient_was_made_is_stepped_and_counted(tmp_path):
    param = nn.Parameter(torch.ones(2))
    with watch({"w": param}, optimizer := torch.optim.SGD([param], 1.0), to=tmp_path / "run.jsonl", every=1):
        param.grad = torch.tensor([3.0, 4.0])
        param.requires_grad_(False)
        optimizer.step()
    assert param.tolist() == [-2.0, -3.0]
    [record] = records(tmp_path / "run.jsonl")
    assert record["norm"] == 5.0
    assert record["by_parameter"]["w"]["counts"] == [1, 1]


def test_a_closed_run_is_forgotten(tmp_path):
    model = make()
    run = watch(model, OPTIMIZERS["sgd"](model.parameters()), scaler := SCALERS["torch"](), to=tmp_path / "run.jsonl")
    forgotten = weakref.ref(run)
    run.close()
    del run
    gc.collect()
    assert forgotten() is None
    assert scaler.is_enabled()


def test_where_another_process_writes_the_file_a_run_has_the_next_name(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, {}), RunFile(tmp_path / "run.2.jsonl", {}):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with pytest.warns(
            RuntimeWarning, match=r"run\.jsonl is being written by .*: expected .*run\.3\.jsonl.*first_step="
        ):
            run = watch(model, optimizer, to=path)
        with run:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert [len([*records(each)]) for each in sorted(tmp_path.iterdir())] == [0, 1, 0]


def test_one_norm_that_leaves_float32_is_summed_again_and_an_empty_gradient_has_no_counts():
    grads = [("a", torch.ones(4)), ("b", torch.full((4,), 1e30)), ("c", torch.full((4,), 1e-25)), ("", torch.zeros(0))]
    (found,) = norms(grads, torch.ones(()))
    np.testing.assert_allclose(found.norms, [2.0, 2e30, 2e-25, 0.0], rtol=1e-6)
    (counts,) = exponents(grads, torch.ones(()))
    assert counts.names == ["a", "b", "c"]


def test_a_parameter_without_a_name_has_its_place_among_all_that_are_stepped():
    params = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    params[1].grad, params[2].grad = torch.ones(1), torch.ones(1)
    found = gradients_of(torch.optim.SGD(params, 0.1), {params[2]: "w"})
    assert [name for name, _ in found] == ["parameter 1", "w"]


def test_a_histogram_spans_the_binades_that_have_elements():
    drawn, ignore = [], lambda *_, **__: None
    tracker = SimpleNamespace(add_scalar=ignore, add_text=ignore, add_histogram_raw=lambda *args: drawn.append(args))
    [found] = exponents([("w", torch.tensor([0.0, 0.25, 1.0, 1.5, 8.0, math.inf]))], torch.ones(()))
    [none] = exponents([("zeros", torch.zeros(2))], torch.ones(()))
    for name, counts in (("w", found), ("zeros", none)):
        sink(tracker, {}).append({"step": 3, "by_parameter": {name: pack_counts(counts.counts[0, :280].numpy())}})
    [(name, low, high, count, total, squares, limits, shown, step)] = drawn
    assert (name, step) == ("ampsim/exponents/w", 3)
    assert (low, high, count, total, squares) == (-2.0, 3.0, 4.0, -2.0 + 0.0 + 0.0 + 3.0, 4.0 + 9.0)
    assert [(limit, n) for limit, n in zip(limits, shown, strict=True) if n] == [(-1.5, 1), (0.5, 2), (3.5, 1)]


def test_a_tracker_draws_scales_by_their_logarithm_which_zero_has_not():
    assert _scalars({"step": 0, "scale": 0.5}) == {"scale": 0.5, "log2_scale": -1.0}
    assert _scalars({"step": 0, "scale": 0.0}) == {"scale": 0.0}


@pytest.mark.parametrize("late", [False, True])
def test_a_value_belongs_to_the_step_that_made_it_whether_it_is_logged_before_or_after_update(tmp_path, late):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    losses = []
    with watch(model, optimizer, scaler, to=tmp_path / "run.jsonl") as run:
        for number in range(6):
            loss = model(torch.full((2, 3), 1.0 + number)).square().mean()
            if not late and number % 2:
                run.log(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert not run.skipped
            if late and number % 2:
                run.log(loss=loss if number % 3 else loss.item())
            model.eval()(torch.ones(1, 3))  # a validation begins no step
            model.train()
            losses.append(loss.item() if number % 2 else None)
    assert [record.get("loss") for record in records(tmp_path / "run.jsonl")] == losses
    assert not model._forward_pre_hooks


def test_a_name_that_a_step_has_belongs_to_the_next_one_though_its_record_is_under_way(tmp_path):
    model = make()
    with watch(model, optimizer := OPTIMIZERS["sgd"](model.parameters()), to=tmp_path / "run.jsonl") as run:
        run.gradients("step", optimizer, torch.ones(()))
        run.log(loss=1.0)
        run.closing("step")
        run.log(loss=2.0, late=3.0)  # before another thread has closed it
        run.closed("step", [(optimizer, [])])
        optimizer.step()
    assert [(each["loss"], each.get("late")) for each in records(tmp_path / "run.jsonl")] == [(1.0, 3.0), (2.0, None)]


def test_what_is_logged_behind_a_flush_belongs_to_the_next_step(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    with watch(model, optimizer, scaler, to=tmp_path / "run.jsonl") as run:
        for loss in (1.0, 2.0):
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            if loss == 1.0:
                run.flush()  # the record is written, and what comes is not lost
                run.log(loss=loss)
    assert [record.get("loss") for record in records(tmp_path / "run.jsonl")] == [None, 1.0]


def test_a_file_says_that_no_scaler_was_given(tmp_path):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, to=tmp_path / "run.jsonl"):
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert "no scaler" in in_words(explain(read_own(tmp_path / "run.jsonl")))


@pytest.mark.parametrize("at", range(3))
def test_the_fingerprint_is_of_each_parameter(at):
    params = [torch.ones(2), torch.ones(3, dtype=torch.bfloat16), torch.ones(1)]
    before = torch.cat(fingerprint(params))
    params[at][-1] += 1
    assert not torch.equal(torch.cat(fingerprint(params)), before)


def test_a_record_that_was_logged_to_is_written_at_once_and_another_waits_for_the_next_step(tmp_path):
    path, model = tmp_path / "run.jsonl", make()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    with watch(model, optimizer, scaler, to=path) as run:
        written = []
        for logs in (True, False, True):
            loss = model(torch.ones(1, 3)).sum()
            if logs:
                run.log(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            written.append(len(list(records(path))))
    assert written == [1, 1, 3]


def test_a_tracker_hears_of_each_optimizer_that_stepped_too():
    assert _scalars({"step": 3, "optimizers": [True, False, None]}) == {"skipped/0": 1.0, "skipped/1": 0.0}


@pytest.mark.peer("wandb", how="pip install -c constraints.txt -e '.[trackers]'")
def test_a_trackers_histogram_has_zeros_below_all_binades_and_nothing_that_is_not_finite():
    logged, ignore = [], lambda *_, **__: None
    run = SimpleNamespace(log=logged.append, define_metric=ignore, config=SimpleNamespace(update=ignore))
    [found] = exponents([("w", torch.tensor([0.0, 1.0, 1.5, math.inf]))], torch.ones(()))
    sink(run, {}).append({"step": 0, "by_parameter": {"w": pack_counts(found.counts[0, :280].numpy())}})
    shown = logged[0]["ampsim/exponents/w"]
    assert [(edge, n) for edge, n in zip(shown.bins, shown.histogram, strict=False) if n] == [(-150, 1), (0, 2)]


@pytest.mark.parametrize(
    ("pairs", "skipped", "record"),
    [
        ([], [], {}),
        ([], [True], {"skipped": True}),
        ([], [False, None, True], {"skipped": True, "optimizers": [False, None, True]}),
        ([(["a", "b"], [6.0, 8.0], 2.0)], [False], {"scale": 2.0, "skipped": False, "norm": 5.0}),
        ([(["a"], [3.0], 1.0), (["b"], [8.0], 2.0)], [], {"scale": 1.0, "norm": 5.0}),
    ],
)
def test_a_record_has_what_was_read_and_no_more(pairs, skipped, record):
    assert _record(pairs, skipped) == record


def test_where_one_of_several_places_is_refused_the_others_are_closed():
    closed = []
    taker = SimpleNamespace(append=lambda record: None, close=lambda: closed.append(True))
    model = make()
    for wrong in ({"to": [taker, 3]}, {"to": taker, "first_step": -1}):
        with pytest.raises((TypeError, ValueError)):
            watch(model, torch.optim.SGD(model.parameters(), 0.1), **wrong)
    assert closed == [True, True]


def test_a_tracker_is_given_numbers_and_texts():
    record = {"step": 3, "loss": 2, "alarm": "none moves", "skipped": True, "parts": [1.0], "none": None}
    assert _scalars(record) == {"loss": 2.0, "alarm": "none moves", "skipped": 1.0}


def test_exponents_are_counted_where_nothing_counts_many_at_once(monkeypatch):
    grads, scale = [("a", torch.tensor([1.0, 0.0, math.inf])), ("b", torch.full((5,), 3.0))], torch.tensor(2.0)
    (fast,) = exponents(grads, scale)
    monkeypatch.setattr("ampsim.watch.measure.counter_of_many", lambda device: None)
    (slow,) = exponents(grads, scale)
    assert (slow.names, slow.counts.tolist()) == (fast.names, fast.counts.tolist())


def test_a_run_that_nobody_closes_is_closed_at_the_end_of_the_process(tmp_path, monkeypatch):
    at_end = []
    calls = SimpleNamespace(register=at_end.append, unregister=at_end.remove)
    monkeypatch.setattr(watch_run, "atexit", calls)
    model = make()
    run = watch(model, torch.optim.SGD(model.parameters(), 0.1), to=tmp_path / "run.jsonl")
    assert at_end == [run.close]
    run.close()
    assert at_end == []


def test_any_real_number_may_be_logged(tmp_path):
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, to=tmp_path / "run.jsonl") as run:
        loss = model(torch.ones(1, 3)).sum()
        run.log(a=Fraction(1, 2), b=np.float32(0.5), c=3, d=True, loss=loss)
        assert not run._logged["loss"].requires_grad, "its graph is let go"
        loss.backward()
        optimizer.step()
    [record] = records(tmp_path / "run.jsonl")
    assert [record[name] for name in "abcd"] == [0.5, 0.5, 3, True]


def test_what_an_evaluation_logs_belongs_to_the_step_before_it(tmp_path):
    model = nn.Linear(2, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)
    with watch(model, optimizer, scaler, to=tmp_path / "run.jsonl") as run:
        for number in range(3):
            scaler.scale(model.train()(torch.ones(1, 2)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            model.eval()(torch.ones(1, 2))
            run.log(eval_loss=float(number))
    assert [record["eval_loss"] for record in records(tmp_path / "run.jsonl")] == [0.0, 1.0, 2.0]
