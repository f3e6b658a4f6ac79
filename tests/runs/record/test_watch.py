"""A watched loop trains as the same loop unwatched, and its record is true."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

import ampsim.torch
from ampsim import Rule, replay
from ampsim.runs import watch
from ampsim.runs.record.run_file import (
    RunFile,
    pack_counts,
    read_run,
    records,
    unpack_counts,
)
from ampsim.runs.record.sinks import sink
from tests.examples import examples

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, 0.01, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, 0.01),
    "foreach": lambda params: torch.optim.AdamW(params, 0.01, foreach=True),
    "fused": lambda params: torch.optim.AdamW(params, 0.01, fused=True),
    # Without momentum: if its first step is skipped, torch's kernel goes on with a momentum
    # that nobody initialized.
    "fused sgd": lambda params: torch.optim.SGD(params, 0.01, fused=True),
}
SCALERS = {
    "torch": lambda: torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2),
    "ours": lambda: ampsim.torch.GradScaler(
        "cpu", init_scale=2.0**10, growth_interval=2
    ),
    "depth 1": lambda: ampsim.torch.AsyncGradScaler(
        "cpu", init_scale=2.0**10, growth_interval=2, depth=1
    ),
    "depth 3": lambda: ampsim.torch.AsyncGradScaler(
        "cpu", init_scale=2.0**10, growth_interval=2, depth=3
    ),
    "off": lambda: torch.amp.GradScaler("cpu", enabled=False),
    "none": lambda: None,
}


def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def train(optimizer_name, scaler_name, steps, clip, parts, to=None, **options):
    """Train on as many batches as `steps` has flags, some of which put an inf into a gradient;
    return what was true.
    """
    model, truth = make(), []
    optimizer, scaler = (
        OPTIMIZERS[optimizer_name](model.parameters()),
        SCALERS[scaler_name](),
    )
    run = watch(model, optimizer, scaler, to=to, **options) if to else None
    scaled = scaler is not None and scaler.is_enabled()
    for number, bad in enumerate(steps):
        data = torch.randn(parts, 2, 3, generator=torch.Generator().manual_seed(number))
        optimizer.zero_grad()
        true = None
        for part in data:
            loss = model(part).square().mean() / parts
            grads = torch.autograd.grad(
                loss, list(model.parameters()), retain_graph=True
            )
            true = (
                grads
                if true is None
                else [a + b for a, b in zip(true, grads, strict=True)]
            )
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
def test_watched_training_is_unchanged_and_recorded(
    tmp_path_factory, optimizer, scaler, steps, clip, parts
):
    # torch's fused SGD takes uninitialized memory for its momentum after a skipped first step:
    # difference 6.
    assume(not (scaler == "torch" and optimizer == "fused sgd" and steps[0]))
    path = tmp_path_factory.mktemp("watch") / "run.jsonl"
    watched = train(optimizer, scaler, steps, clip, parts, to=path, sample_every=1)
    plain = train(optimizer, scaler, steps, clip, parts)
    for a, b in zip(
        watched[0].state_dict().values(), plain[0].state_dict().values(), strict=True
    ):
        assert a.equal(b), "watching changes nothing"
    assert watched[2].state_dict() == plain[2].state_dict()
    names = [name for name, _ in watched[0].named_parameters()]
    found = list(records(path))
    assert [record["step"] for record in found] == list(range(len(steps)))
    scales = replay(
        Rule(2.0**10, growth_interval=2), [bool(bad) for bad in steps]
    ).tolist()
    delay = {"depth 1": 1, "depth 3": 3}.get(scaler, 0)
    assert [record["loss_scale"] for record in found] == (
        [2.0**10] * (delay + 1) + scales
    )[: len(steps)]
    for record, bad, true in zip(found, steps, watched[3], strict=True):
        assert record["skipped"] == bool(bad)
        assert ("nonfinite" in record) == bool(bad)
        if bad:
            assert record["nonfinite"] == {
                "0.weight": "has nan" if math.isnan(bad) else "has inf"
            }
            continue
        norm = math.hypot(*(grad.double().norm().item() for grad in true))
        assert record["grad_norm"] == pytest.approx(norm, rel=1e-5)
        for name, grad in zip(names, true, strict=True):
            counts = unpack_counts(record["exponent_histograms"][name])
            assert counts.sum() == grad.numel()
            binades = np.floor(np.log2(grad.abs().numpy().ravel())) + 149 + 1
            # One ulp between two ways to sum may move an element over a binade's edge.
            assert (
                np.abs(np.repeat(np.arange(280), counts) - np.sort(binades)).max() <= 1
            )


@pytest.mark.parametrize("scaler", ["off", "none"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_no_skips_without_scaler(tmp_path, optimizer, scaler):
    train(optimizer, scaler, [0.0, 0.0], False, 1, to=tmp_path / "run.jsonl")
    for record in records(tmp_path / "run.jsonl"):
        assert "skipped" not in record
        assert record["loss_scale"] == 1.0
        assert 0 < record["grad_norm"] < math.inf
        assert record["loss"] > 0


@pytest.mark.parametrize("watched", [1, 2])
def test_skip_of_one_optimizer_counts(tmp_path, watched):
    one, two = make(1), make(2)
    model = nn.ModuleDict({"one": one, "two": two})
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (one, two)]
    scaler = torch.amp.GradScaler("cpu")
    with watch(
        model, optimizers[:watched], scaler, to=tmp_path / "run.jsonl", sample_every=1
    ):
        scaler.scale(
            one(torch.ones(1, 3)).sum() + two(torch.ones(1, 3)).sum()
        ).backward()
        two[0].bias.grad[0] = math.inf
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    [record] = records(tmp_path / "run.jsonl")
    assert record["skipped"]
    assert record["exponent_histograms"].keys() == dict(model.named_parameters()).keys()
    assert record["nonfinite"] == {"two.0.bias": "has inf"}
    assert record["grad_norm"] == math.inf


def test_sample_every_and_pattern_select_samples(tmp_path):
    train(
        "sgd",
        "torch",
        [0.0] * 5,
        False,
        1,
        to=tmp_path / "run.jsonl",
        sample_every=2,
        sample_pattern="2.*",
    )
    sampled = [
        record.get("exponent_histograms", {}).keys()
        for record in records(tmp_path / "run.jsonl")
    ]
    assert sampled == [
        {"2.weight", "2.bias"},
        set(),
        {"2.weight", "2.bias"},
        set(),
        {"2.weight", "2.bias"},
    ]


@pytest.mark.parametrize("kind", ["torch", "ours"])
@pytest.mark.parametrize(
    ("moves", "told"), [([0, 0, 0, 1, 1, 1], 2), ([0, 1, 1, 0, 0, 0], 5)]
)
def test_stalled_parameters_warn(tmp_path, kind, moves, told):
    steps = [0.0 if moves else math.inf for moves in moves]
    with pytest.warns(
        RuntimeWarning,
        match="no parameter changed in 3 steps: all of these steps were skipped",
    ):
        train("sgd", kind, steps, False, 1, to=tmp_path / "run.jsonl", stall_steps=3)
    alarms = [
        record["step"]
        for record in records(tmp_path / "run.jsonl")
        if "warning" in record
    ]
    assert alarms == [told]


@pytest.mark.parametrize("kind", ["torch", "ours"])
@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (
            "lost step",
            r"optimizer\.step\(\) was not called; call scaler\.step\(optimizer\)",
        ),
        ("lr", "the learning rate is 0"),
        ("gradients", "the gradients are 0"),
        (
            "bfloat16",
            "the steps are too small, and torch.bfloat16 rounds small steps to 0",
        ),
        ("skips", "2 of these steps were skipped, and the learning rate is 0"),
    ],
)
def test_stalled_parameters_have_a_reason(tmp_path, kind, cause, reason):
    param = nn.Parameter(
        torch.ones(1, dtype=torch.bfloat16 if cause == "bfloat16" else None)
    )
    lr = 0.0 if cause in ("lr", "skips") else 1e-6
    optimizer, scaler = torch.optim.SGD([param], lr), SCALERS[kind]()
    run = watch({"w": param}, optimizer, scaler, to=Kept(), stall_steps=4)
    for number in range(4):
        optimizer.zero_grad()
        factor = (
            math.inf if cause == "skips" and number < 2 else float(cause != "gradients")
        )
        scaler.scale(param.sum() * factor).backward()
        scaler.unscale_(optimizer)
        if cause != "lost step":
            scaler.step(optimizer)
        scaler.update()
    with pytest.warns(
        RuntimeWarning, match=f"step 3: no parameter changed in 4 steps: {reason}"
    ):
        run.close()


@pytest.mark.parametrize("kind", ["torch", "ours"])
def test_skips_are_reported_immediately(tmp_path, kind):
    seen, model = [], make()
    optimizer, scaler = OPTIMIZERS["fused"](model.parameters()), SCALERS[kind]()

    def on_skip(record):
        seen.append(record["step"])

    with watch(
        model, optimizer, scaler, to=tmp_path / "run.jsonl", on_skip=on_skip
    ) as run:
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


def test_watched_scaler_copies_as_original_class(tmp_path):
    model = make()
    optimizer, scaler = (
        OPTIMIZERS["sgd"](model.parameters()),
        torch.amp.GradScaler("cpu"),
    )
    run = watch(model, optimizer, scaler, to=tmp_path / "run.jsonl")
    assert isinstance(scaler, torch.amp.GradScaler)
    with pytest.raises(ValueError, match="is already watched"):
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
        ({"sample_every": -1}, ValueError, "sample_every=-1"),
        ({"stall_steps": True}, TypeError, "stall_steps=True"),
        ({"first_step": -1}, ValueError, "first_step=-1"),
    ],
)
def test_unsupported_watch_arguments_raise(tmp_path, change, error, text):
    model, scaler = make(), torch.amp.GradScaler("cpu")
    given = {
        "optimizer": OPTIMIZERS["sgd"](model.parameters()),
        "scaler": scaler,
        "to": tmp_path / "run.jsonl",
    } | change
    with pytest.raises(error, match=text):
        watch(model, given.pop("optimizer"), given.pop("scaler"), **given)
    assert type(scaler) is torch.amp.GradScaler


@pytest.mark.parametrize("size", [1e20, 1e-24])  # whose squares float32 cannot hold
@pytest.mark.parametrize(
    "elements", [64, 4096]
)  # of a small tensor, and of a large one
def test_the_norm_of_extreme_gradients(tmp_path, size, elements):
    param = nn.Parameter(torch.zeros(elements))
    optimizer = torch.optim.SGD([param], 1e-30)
    with watch({"w": param}, optimizer, to=tmp_path / "run.jsonl"):
        param.grad = torch.full((elements,), size)
        optimizer.step()
    assert next(records(tmp_path / "run.jsonl"))["grad_norm"] == pytest.approx(
        math.sqrt(elements) * size, rel=1e-6, abs=0
    )


def start(path, grads, **options):
    """Start a program that takes one step per gradient."""
    param = nn.Parameter(torch.ones(1))
    with watch(
        {"w": param}, optimizer := torch.optim.SGD([param], 1.0), to=path, **options
    ):
        for grad in grads:
            param.grad = torch.tensor([grad])
            optimizer.step()


def test_restart_continues_step_numbers(tmp_path):
    path, new = tmp_path / "run.jsonl", tmp_path / "new.jsonl"
    start(path, [1.0, 2.0])
    start(path, [], first_step=2)
    with (
        pytest.warns(RuntimeWarning, match="run.jsonl already has a run with 2 steps"),
        pytest.warns(RuntimeWarning, match="step 3: no parameter changed in 2 steps"),
    ):
        start([new, path], [0.0, 0.0], stall_steps=2)
    assert [(record["step"], record["grad_norm"]) for record in records(path)] == [
        (0, 1),
        (1, 2),
        (2, 0),
        (3, 0),
    ]
    assert [record["step"] for record in records(new)] == [2, 3]


def test_first_step_restarts_at_checkpoint(tmp_path):
    path = tmp_path / "run.jsonl"
    start(path, [1.0, 2.0, 3.0, 4.0])
    start(path, [5.0], first_step=1)
    with pytest.warns(RuntimeWarning, match="pass first_step=2"):
        start(path, [6.0])
    assert [record["step"] for record in records(path)] == [0, 1, 2, 3, 1, 2]


def test_logged_values_are_copied(tmp_path):
    param = nn.Parameter(torch.ones(1))
    with watch(
        {"w": param},
        optimizer := torch.optim.SGD([param], 0.1),
        to=tmp_path / "run.jsonl",
    ) as run:
        loss = torch.tensor(3.0)
        run.log(loss=loss)
        loss.zero_()
        optimizer.step()
    assert next(records(tmp_path / "run.jsonl"))["loss"] == 3.0


def test_busy_file_raises(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    path = tmp_path / "run.jsonl"
    with (
        RunFile(path, {}),
        pytest.raises(BlockingIOError, match="pass a file per process"),
    ):
        watch(model, optimizer, to=path)


def test_logged_value_belongs_to_step(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 0.1),
        torch.amp.GradScaler("cpu", init_scale=8.0),
    )
    losses = []
    with watch(model, optimizer, scaler, to=tmp_path / "run.jsonl") as run:
        for number in range(6):
            loss = model(torch.full((2, 3), 1.0 + number)).square().mean()
            if number % 2:
                run.log(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert not run.skipped
            losses.append(loss.item() if number % 2 else None)
    assert [record.get("loss") for record in records(tmp_path / "run.jsonl")] == losses


def test_flush_writes_pending_records(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, to=tmp_path / "run.jsonl") as run:
        for number in range(3):
            model(torch.ones(1, 2)).sum().backward()
            run.log(rate=number)
            run.log(rate=number + 0.5)  # of one iteration the last counts
            optimizer.step()
            run.flush()
            found = [record["rate"] for record in records(tmp_path / "run.jsonl")]
            assert found == [each + 0.5 for each in range(number + 1)]


def test_values_after_last_step_are_kept(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer, to=tmp_path / "run.jsonl") as run:
        for number in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            run.log(eval_loss=float(number))
    logged = [record.get("eval_loss") for record in records(tmp_path / "run.jsonl")]
    assert logged == [None, 0.0, 2.0]


@pytest.mark.parametrize("moving", range(3))
def test_one_moving_parameter_prevents_warning(tmp_path, moving):
    params = [
        nn.Parameter(torch.ones(2, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    ]
    params.append(nn.Parameter(torch.ones(1)))
    optimizer = torch.optim.SGD(params, 1.0)
    with watch(
        {f"{n}": p for n, p in enumerate(params)},
        optimizer,
        to=tmp_path / "run.jsonl",
        stall_steps=2,
    ):
        for _ in range(4):
            for number, param in enumerate(params):
                param.grad = torch.full_like(param, float(number == moving))
            optimizer.step()
    assert not [
        record for record in records(tmp_path / "run.jsonl") if "warning" in record
    ]


@pytest.mark.parametrize(
    "name",
    [
        "step",
        "loss_scale",
        "skipped",
        "grad_norm",
        "nonfinite",
        "exponent_histograms",
        "warning",
        "run",
    ],
)
def test_reserved_record_name_raises(tmp_path, name):
    model = make()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with watch(model, optimizer, to=tmp_path / "run.jsonl") as run:
        with pytest.raises(ValueError, match=f"my_{name}"):
            run.log(**{name: 1.0})
        with pytest.raises(TypeError, match="hello"):
            run.log(text="hello")


class Kept:
    """A sink that keeps records, as many as it has room for."""

    def __init__(self, room=math.inf):
        self.room, self.records, self.closed = room, [], 0

    def append(self, record):
        if len(self.records) >= self.room:
            raise OSError("no space left")
        self.records.append(record)

    def close(self):
        self.closed += 1


def test_full_sink_does_not_stop_training():
    sinks = Kept(1), Kept(), Kept(0), Kept()
    with pytest.warns(RuntimeWarning, match="no space left") as warned:
        model, *_ = train("sgd", "ours", [0.0] * 3, False, 1, to=sinks)
    assert len(warned) == 2
    assert [len(each.records) for each in sinks] == [1, 3, 0, 3]
    assert [each.closed for each in sinks[1::2]] == [1, 1]
    plain, *_ = train("sgd", "ours", [0.0] * 3, False, 1)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert a.equal(b)


class Tracker:
    """Keeps what TensorBoard's writer is told."""

    def __init__(self):
        self.values, self.flushed = {}, False

    def flush(self):
        self.flushed = True

    def add_scalar(self, name, value, step):
        self.values[name] = value

    add_text = add_scalar


def test_trackers_get_numbers_and_texts():
    tracker = Tracker()
    counts = np.zeros(280, np.int64)
    record = {"step": 3, "loss_scale": 0.5, "skipped": True, "loss": 2}
    record |= {"nonfinite": {"w": "has inf"}}
    sink(tracker, {}).append(
        record | {"exponent_histograms": {"w": pack_counts(counts)}}
    )
    assert tracker.values == {
        "ampsim/loss_scale": 0.5,
        "ampsim/log2_scale": -1.0,
        "ampsim/skipped": 1.0,
        "ampsim/loss": 2.0,
        "ampsim/nonfinite": "w has inf",
    }


def test_tracker_is_flushed_on_close():
    tracker = Tracker()
    to = sink(tracker, {})
    to.append({"step": 0, "loss_scale": 0.0})
    assert tracker.values == {"ampsim/loss_scale": 0.0}  # 0 has no logarithm
    to.close()
    assert tracker.flushed


def test_file_header_describes_run(tmp_path):
    model, scaler = make().bfloat16(), ampsim.torch.GradScaler("cpu", growth_interval=7)
    watch(
        model, OPTIMIZERS["sgd"](model.parameters()), scaler, to=tmp_path / "run.jsonl"
    ).close()
    head = read_run(tmp_path / "run.jsonl")
    assert (head["growth_factor"], head["backoff_factor"], head["growth_interval"]) == (
        2.0,
        0.5,
        7,
    )
    assert head["parameters"] == {
        "0.weight": 12,
        "0.bias": 4,
        "2.weight": 4,
        "2.bias": 1,
    }
    assert head["optimizers"] == ["SGD"]
    assert head["scaler"] == "ampsim.torch.grad_scaler.GradScaler"
    assert (head["dtypes"], head["devices"]) == (["bfloat16"], ["cpu"])
    off = torch.amp.GradScaler("cpu", enabled=False)
    watch(
        model, OPTIMIZERS["sgd"](model.parameters()), off, to=tmp_path / "off.jsonl"
    ).close()
    assert "growth_interval" not in read_run(tmp_path / "off.jsonl")
    start(tmp_path / "none.jsonl", [])
    assert read_run(tmp_path / "none.jsonl")["scaler"] is None
