# ruff: noqa: E501 - records as they are written
"""What a watched run writes, logs and warns of, as it is committed: `python -m tests.golden watch` writes it anew.

Gradients are chosen, of powers of two, so that the records are the same on any processor.
"""

import contextlib
import io
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ampsim.torch
import ampsim.watch
from ampsim.watch import attach, watch
from ampsim.watch.measure import exponents, fingerprint, norms
from ampsim.watch.run_header import optimizers_of
from ampsim.watch.sinks import sink
from ampsim.watch.standstill import Standstill
from tests.golden import agree, defaults

GOLDEN = Path(__file__).parent / "golden"
INF, NAN = math.inf, math.nan


def _warning(each: warnings.WarningMessage) -> str:
    return f"{each.category.__name__} of {Path(each.filename).name}: {each.message}"


class Kept:
    """A sink that keeps the records."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.closed = 0

    def append(self, record: dict[str, Any]) -> None:
        self.records.append(json.loads(json.dumps(record, default=str)))

    def close(self) -> None:
        self.closed += 1


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    for param in made.parameters():
        nn.init.constant_(param, 0.5)
    return made


SCALERS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
    "ours": lambda: ampsim.torch.GradScaler("cpu", init_scale=8.0, growth_interval=2),
    "depth 2": lambda: ampsim.torch.GradScaler("cpu", init_scale=8.0, growth_interval=2, depth=2),
    "off": lambda: torch.amp.GradScaler("cpu", enabled=False),
    "none": lambda: None,
}
GRADS = (1.0, INF, 2.0, NAN, 0.0, 2.0**-130, 3.0, 4.0)


def trained(scaler: Any, several: bool = False, clips: bool = False, moves: bool = True, **options: Any) -> str:
    """Train with chosen gradients; return the records, and whatever was warned of."""
    net, kept = model(), Kept()
    groups = [[*net[0].parameters()], [*net[1].parameters()]] if several else [[*net.parameters()]]  # type: ignore[index]
    optimizers = [torch.optim.SGD(group, lr=0.25 if moves else 0.0) for group in groups]
    scaled = scaler is not None and scaler.is_enabled()
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with watch(net, optimizers if several else optimizers[0], scaler, to=kept, **options) as run:
            for number, grad in enumerate(GRADS):
                net(torch.ones(1, 2))
                ticket = {"ticket": scaler.begin()} if getattr(scaler, "depth", 0) else {}
                for place, param in enumerate(net.parameters()):
                    value = grad if place == 0 else 2.0**-place
                    param.grad = torch.full_like(param, value) * (
                        scaler.scale(torch.ones(()), **ticket) if scaled else 1.0
                    )
                if number % 2:
                    run.log(loss=2.0 - number / 4, seen=torch.tensor(number), flag=number > 2)
                for optimizer in optimizers:
                    if clips and scaled:
                        scaler.unscale_(optimizer, **ticket)
                        nn.utils.clip_grad_norm_(net.parameters(), 1e30)
                    scaler.step(optimizer, **ticket) if scaled else optimizer.step()
                if scaled:
                    scaler.update(**ticket)
                if number == 4:
                    run.log(late=7, loss=torch.tensor(0.5))
                if number == 5:
                    told.append(f"skipped: {run.skipped}")
        told += [f"closed: {kept.closed}"]
        run.close()
    lines = [json.dumps(each) for each in kept.records]
    return "\n".join([*lines, *told, *(_warning(each) for each in caught)])


def test_what_is_recorded() -> None:
    found = {}
    for name, make in SCALERS.items():
        found[name] = trained(make())
        if name in ("torch", "none"):
            found[f"{name}, sampled"] = trained(make(), every=3, names="*.weight", still=0)
    for name in ("torch", "ours"):
        found[f"{name}, several"] = trained(SCALERS[name](), several=True, every=0)
        found[f"{name}, clipped"] = trained(SCALERS[name](), clips=True, every=0, first_step=40)
        found[f"{name}, stands still"] = trained(SCALERS[name](), moves=False, still=3, every=0)
    skips: list[Any] = []
    found["on a skip"] = trained(
        SCALERS["torch"](), every=0, on_skip=lambda record: skips.append([record["step"], record["scale"]])
    )
    agree(GOLDEN / "records.txt", {**found, "skips": str(skips)})


class Tracker:
    """Keeps all calls."""

    def __init__(self, *names: str) -> None:
        self.calls: list[str] = []
        for name in names:
            setattr(
                self, name, lambda *args, name=name, **given: self.calls.append(f"{name} {shown(args)} {shown(given)}")
            )


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (
            [shown(each) for each in value]
            if len(value) < 20
            else f"{len(value)}: {value[0]} to {value[-1]}, sum {sum(value)}"
        )
    if isinstance(value, SimpleNamespace):
        counts, bins = value.np_histogram
        return f"histogram {len(counts)} of {int(np.sum(counts))}, {len(bins)} from {bins[0]} to {bins[-1]}, {np.flatnonzero(counts)}"
    return value


def test_what_trackers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "wandb", SimpleNamespace(Histogram=lambda **given: SimpleNamespace(**given))
    )
    found = {}
    counts = np.zeros(280, np.int64)
    counts[[0, 1, 150, 151, 278, 279]] = 3, 1, 4, 2, 5, 6
    from ampsim.run_file import pack_counts

    records: list[dict[str, Any]] = [
        {"step": 3, "scale": 8.0, "skipped": True, "norm": INF, "bad": {"a": "has inf", "b": "has nan"}, "optimizers": [True, None, False]},
        {"step": 4, "scale": 0.0, "skipped": False, "norm": 1.5, "loss": 2, "alarm": "stands still", "by_parameter": {"w": pack_counts(counts)}},
        {"step": 5, "norm": 1.0, "by_parameter": {"zeros": pack_counts(np.eye(1, 280, dtype=np.int64)[0])}},
    ]  # fmt: skip
    for name, tracker in {
        "wandb": Tracker("define_metric", "log"), "tensorboard": Tracker("add_scalar", "add_text", "add_histogram_raw", "flush"),
    }.items():  # fmt: skip
        tracker.add_histogram_raw = getattr(tracker, "add_histogram_raw", None) or (lambda *args: None)
        tracker.config = SimpleNamespace(
            update=lambda *args, tracker=tracker, **given: tracker.calls.append(f"config {args} {given}")
        )  # type: ignore[attr-defined]
        taking = sink(tracker, {"argv": ["a"]})
        for record in records:
            taking.append(record)
        taking.close()
        found[name] = "\n".join(tracker.calls)
    agree(GOLDEN / "trackers.txt", found)


def test_what_a_file_begins_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py", "--lr", "1"])
    found = {}
    for name, make in SCALERS.items():
        path = Path(f"{name.replace(' ', '_')}.jsonl")
        for _ in range(2):
            net = model()
            scaler = make()
            with watch(net, torch.optim.SGD(net.parameters(), 0.1), scaler, to=str(path)):
                pass
        head = re.sub(r'"started":"[^"]*"', '"started":"NOW"', path.read_text())
        found[name] = re.sub(r'"versions":\{[^}]*\}', '"versions":{}', head)
    net, path = model(), Path("run.jsonl")
    optimizer = torch.optim.Adam(net.parameters())
    with (
        pytest.warns(RuntimeWarning) as caught,
        watch(net, optimizer, to=path),
        watch(dict(net.named_parameters()), optimizer, to=path),
    ):
        pass
    found["two at once"] = "\n".join(
        [*(f"{each.message}" for each in caught), *sorted(each.name for each in Path().glob("run*"))]
    )
    agree(GOLDEN / "files.txt", found)


class Watcher:
    def __init__(self) -> None:
        self.told: list[str] = []

    def gradients(self, key: Any, optimizer: Any, scale: Any) -> None:
        self.told.append(f"gradients at {float(scale)}")

    def stepping(self, optimizer: Any) -> None:
        self.told.append("stepping")

    def closing(self, key: Any) -> None:
        self.told.append("closing")

    def closed(self, key: Any, found_inf: Any) -> None:
        self.told.append(f"closed {[[float(flag) for flag in flags] for _, flags in found_inf]}")


def test_what_a_watcher_is_told() -> None:  # noqa: C901  a call behind the other
    """By each scaler, of each call: of a clip before the step, an update by hand, an overflow, a closure, a copy."""
    found = {}
    for name, make in SCALERS.items():
        if name == "depth 2":
            continue
        watcher, scaler = Watcher(), make()
        params = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(1))]
        optimizers = [torch.optim.SGD([param], lr=0.5) for param in params]
        detach = attach.attach(watcher, optimizers, scaler)
        scaled = scaler is not None and scaler.is_enabled()
        for number, grad in enumerate((1.0, INF, 2.0)):
            for param in params:
                param.grad = torch.full_like(param, grad)
                if scaled:
                    scaler.scale(torch.ones(()))
            if scaled and number != 1:
                scaler.unscale_(optimizers[0])
            for optimizer in optimizers[: 1 if number == 2 else 2]:
                scaler.step(optimizer) if scaled else optimizer.step()
            if scaled:
                scaler.update()
            watcher.told.append("-")
        if scaled:
            scaler.update(4.0)
        else:
            optimizers[0].step()
            optimizers[1].step(lambda: torch.zeros(()))
            optimizers[1].step(closure=lambda: torch.zeros(()))
        kind = f"{type(scaler).__module__}.{type(scaler).__qualname__}"
        detach()
        detach()
        watcher.told.append(
            f"detached of {kind}, {sorted(key for key in vars(scaler) if 'ampsim' in key) if scaler else ''}"
        )
        if scaled:
            scaler.step(optimizers[0])
            scaler.update()
        found[name] = "\n".join(watcher.told)
    agree(GOLDEN / "told.txt", found)


def test_what_is_measured() -> None:
    values = {
        "ordinary": torch.tensor([3.0, 4.0]), "inf": torch.tensor([INF, 1.0]), "nan": torch.tensor([NAN, INF]), "half": torch.tensor([3.0, 4.0]).half(),
        "beyond float32": torch.full((4,), 2.0**100), "double": torch.tensor([3.0, 4.0]).double(), "zero": torch.zeros(2), "empty": torch.zeros(0),
        "complex": torch.view_as_real(torch.tensor([3 + 4j])), "integers": torch.tensor([2]),
    }  # fmt: skip
    found = {}
    scale = torch.tensor(4.0)
    floats = [(name, value) for name, value in values.items() if value.is_floating_point()]
    for each in norms(floats, scale):
        found[f"norms {each.names[0]}"] = f"{each.names} {each.norms.tolist()} {each.norms.dtype} {float(each.scale)}"
    for counts in exponents([*values.items()], scale):
        for name, row in zip(counts.names, counts.counts, strict=True):
            found[f"exponents {name}"] = str({int(at): int(row[at]) for at in row.nonzero().flatten()})
    found["fingerprint"] = str(
        [
            [int(each) for each in sums]
            for sums in fingerprint([torch.ones(2), torch.ones(3).half(), torch.tensor([1 + 2j])])
        ]
    )
    look = Standstill([torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)])
    bits = [int(value) for sums in fingerprint([torch.ones(2)]) for value in sums]
    alarms = [look.alarm(bits, 5, 0), look.alarm(bits, 9, 3), look.alarm([1], 10, 4), look.alarm([1], 12, 4)]
    agree(GOLDEN / "measured.txt", {**found, "alarms": "\n".join(map(str, alarms))})


def scale_a_step(scaler: Any, net: nn.Module, optimizer: Any) -> None:
    scaler.scale(net(torch.ones(1, 2)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def test_what_is_refused() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    watched = torch.amp.GradScaler("cpu")
    run = watch(net, optimizer, watched, to=Kept())
    calls: dict[str, Callable[[], object]] = {
        "every": lambda: watch(net, optimizer, to=Kept(), every=-1), "still": lambda: watch(net, optimizer, to=Kept(), still=1.5),
        "first step": lambda: watch(net, optimizer, to=Kept(), first_step=-1), "to": lambda: watch(net, optimizer, to=3),
        "optimizer": lambda: watch(net, 3, to=Kept()), "none": lambda: watch(net, [], to=Kept()), "scaler": lambda: watch(net, optimizer, 3, to=Kept()),
        "another scaler": lambda: watch(net, optimizer, SimpleNamespace(is_enabled=lambda: True), to=Kept()),
        "watched": lambda: watch(net, optimizer, watched, to=Kept()), "name": lambda: run.log(step=3), "value": lambda: run.log(loss="2"),
        "two elements": lambda: run.log(loss=torch.ones(2)), "complex": lambda: run.log(loss=torch.tensor(1j)),
        "fine": lambda: run.log(loss=np.float64(2)), "wrapped": lambda: optimizers_of([SimpleNamespace(optimizer=optimizer)])[0] is optimizer,
        "lightning": lambda: [type(each).__name__ for each in optimizers_of((optimizer, optimizer))],
    }  # fmt: skip

    def said() -> Iterator[tuple[str, str]]:
        for name, call in calls.items():
            try:
                yield name, f"{call()}"
            except (TypeError, ValueError) as error:
                yield (
                    name,
                    re.sub(
                        r"<[\w.]+ object at \w+>|\(\s+Parameter Group(.|\n)*?\n\)",
                        "...",
                        f"{type(error).__name__}: {error}",
                    ),
                )

    found, opened = dict(said()), Kept()
    with pytest.raises(ValueError, match="is being watched"):
        watch(net, optimizer, watched, to=opened)
    assert opened.closed == 1
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        optimizer.step()
        run._process = -1  # as in a fork
        scale_a_step(watched, net, optimizer)
        run.close()
        run._process = os.getpid()
        run.log(more=1)
        run.close()
        run.close()
    agree(
        GOLDEN / "refused.txt",
        {**found, "warned": "\n".join(_warning(each) for each in caught)},
    )


def test_what_is_taken_where_nothing_is_given() -> None:
    agree(GOLDEN / "defaults.txt", {"ampsim.watch": defaults(ampsim.watch)})


@pytest.mark.parametrize(
    "name", ["step", "scale", "skipped", "optimizers", "norm", "bad", "by_parameter", "alarm", "run"]
)
def test_a_name_that_a_record_has_for_itself_is_not_logged(name: str) -> None:
    net = model()
    with (
        watch(net, torch.optim.SGD(net.parameters(), 0.1), to=Kept()) as run,
        pytest.raises(ValueError, match=f"my_{name}"),
    ):
        run.log(**{name: 1.0})


class Full(Kept):
    def append(self, record: dict[str, Any]) -> None:
        if self.records:
            raise OSError("no space left")
        super().append(record)


def test_where_one_of_several_sinks_fails_the_others_have_every_record() -> None:
    net, sinks = model(), [Full(), Kept(), Full(), Kept()]
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with (
        warnings.catch_warnings(record=True, action="always") as caught,
        watch(net, optimizer, to=sinks, every=0) as run,
    ):
        for _ in range(5):
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        run.flush()
    assert all("no space left" in str(each.message) for each in caught)
    assert [len(each.records) for each in sinks] == [1, 5, 1, 5]
    assert [each.closed for each in sinks[1::2]] == [1, 1]
