# ruff: noqa: E501 - records as probes write them
"""What is probed, claimed, written and printed of a card, as it is committed: `python -m tests.golden card`."""

import contextlib
import copy
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from rich.color import ColorSystem
from typer.testing import CliRunner

pytest.importorskip("torch")

import torch
from torch.overrides import TorchFunctionMode

from ampsim.card import claims, probes, run
from ampsim.card.verify import read, replayed, seal, verify
from ampsim.cli import app
from ampsim.cli import card as command
from ampsim.core.machine import Rule
from ampsim.testing.kit import judge
from ampsim.testing.law import Result
from tests.card.test_verify import FACTS, GOOD, PLANTED, RUN, SIZE, written
from tests.golden import agree

GOLDEN = Path(__file__).parent / "golden"
CONSTANTS = (
    "BYTES", "CYCLES", "ELEMENTS", "EXAMPLES", "GPTS", "ITERATIONS", "LEVELS", "OURS", "RULE", "SECONDS", "TORCHS",
)  # fmt: skip


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["card", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return f"{result.exit_code}\n{result.output}"


def plain(text: str) -> str:
    """Return a text without what another machine, time or version writes."""
    text = re.sub(r"[0-9a-f]{64}", "DIGEST", text)
    for name in ("hypothesis", "numpy", "triton"):
        text = re.sub(rf',"{name}":"[^"]*"', "", text)
    text = re.sub(r'"(ampsim|torch|python|platform)":"[^"]*"', r'"\1":"HERE"', text)
    return text.replace(torch.__version__, "VERSION")


def test_what_is_probed_and_claimed() -> None:
    found = {name: repr(getattr(probes, name)) for name in CONSTANTS}
    sizes = {name: f"{len(sizes)} of {sizes[0]}" for name, sizes in probes.SIZES.items()}
    asked = {
        name: f"{each.func.__name__} {each.args}" if isinstance(each, partial) else each.__name__
        for name, each in run.PROBES.items()
    }
    cases: dict[str, Any] = {
        "good": GOOD,
        **{name: {**GOOD, name: {**GOOD[name], **PLANTED[name]}} for name in PLANTED},
    }
    last = {"ratios": {"ours, fused step": 1.4}, "waits": {"ours, fused step": 0}}
    cases |= {
        "just as fast": {**GOOD, "overhead": {"sizes": {"small": SIZE, "large": last}}},
        "small is slow": {**GOOD, "overhead": {"sizes": {"large": SIZE, "small": {"waits": {"ours, fused step": 2}, "ratios": {"ours, fused step": 1.0}}}}},
        "one of two": {**GOOD, "gpt small": {"trajectories": [RUN, {**RUN, "found_inf": [False]}]}},
        "same loss": {**GOOD, "gpt2-small": {"trajectories": [{**RUN, "loss": [1.0, 1.0]}]}},
        **{name: {**GOOD, "arithmetic": {"facts": {each: [FACTS[each] if each != name else 0.5, 0] for each in FACTS}}} for name in FACTS},
    }  # fmt: skip
    told = {
        f"{claim.probe}: {claim.text}": "\n".join(
            [f"{'of a card' if claim.cuda else 'of any device'}", "fails of " + ", ".join(
                name for name, case in cases.items() if not claim.holds(case[claim.probe]))])
        for claim in claims.CLAIMS
    }  # fmt: skip
    agree(GOLDEN / "claims.txt", {**found, "sizes": repr(sizes), "probes": json.dumps(asked, indent=1), **told})


def test_what_is_said_of_files(tmp_path: Path) -> None:
    files: dict[str, tuple[dict[str, Any], dict[str, str]]] = {"good": (GOOD, {}), "cpu": (GOOD, {"device": "cpu"})}
    files |= {name: ({**GOOD, name: {**copy.deepcopy(GOOD[name]), **PLANTED[name]}}, {}) for name in PLANTED}
    files |= {
        "other claims": (GOOD, {"frozen": "0" * 64}), "nothing": ({}, {}), "nothing, cpu": ({}, {"device": "cpu"}),
        "error": ({**GOOD, "overhead": {"error": "RuntimeError: no"}}, {}),
        "skipped": ({**GOOD, "streams": {"skipped": "a CPU has no streams"}}, {}),
        "half": ({**GOOD, "kit torch": {"checks": {"a": "passed"}, "findings": {}, "of": 3}}, {}),
        "half, broken": ({**GOOD, "kit torch": {"checks": {"a": "failed"}, "findings": {"a": "no"}, "of": 3}}, {}),
        "two runs": ({**GOOD, "gpt small": {"trajectories": [{**RUN, "name": "a"}, {**RUN, "name": "b", "scale": [1.0]}]}}, {}),
    }  # fmt: skip
    found = {}
    for name, (records, options) in files.items():
        path = written(tmp_path, records, **options)
        found[name] = "\n".join(f"{each.outcome}: {each.text}" for each in verify(path))
    good = found.pop("good")
    changed = {
        name: "\n".join(line for line in text.splitlines() if line not in good.splitlines())
        for name, text in found.items()
    }
    runs = {
        "none": None,
        "empty": {"trajectories": []},
        "error": {"error": "E: x"},
        "fine": {"trajectories": [RUN, RUN]},
    }
    told = {name: "\n".join(map(str, replayed("a probe", record))) for name, record in runs.items()}
    sealed = {"seal": repr(seal(b"a\n")), "file": plain(written(tmp_path, {"streams": {"differing": []}}).read_text())}
    agree(
        GOLDEN / "verified.txt",
        {"good": good, **changed, **{f"replayed {name}": text for name, text in told.items()}, **sealed},
    )


def looked(*records: dict[str, object]) -> Any:
    def look(device: str) -> Iterator[dict[str, object]]:
        clock[0] += 10.0
        for each in records:
            clock[0] += 1.5
            yield {**each, "on": device}
        if not records:
            raise RuntimeWarning("there is nothing to look at")

    return look


clock = [0.0]


def broken(device: str) -> Iterator[dict[str, object]]:
    raise ValueError(f"an [b]error[/b] on {device}")
    yield


def test_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    clock[0] = 0.0
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: clock[0], time=lambda: 1234.56))
    monkeypatch.setattr(
        run,
        "platform",
        SimpleNamespace(
            processor=lambda: "a processor", machine=lambda: "m", platform=lambda: "p", python_version=lambda: "3"
        ),
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        run,
        "PROBES",
        {
            "kit torch": looked({"findings": {}}),
            "b": looked(),
            "c": broken,
            "gpt small": looked({"trajectories": [RUN]}, {"trajectories": [RUN, RUN]}),
        },
    )
    address = SimpleNamespace(get_all=lambda key: ["Other, https://b.invalid", f"Repository, https://a.invalid/{key}"])
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: address)
    shown: list[str] = []

    @contextlib.contextmanager
    def status(text: str) -> Iterator[None]:
        shown.append(text)
        yield

    monkeypatch.setattr(command.err, "status", status)
    found = {"first": call("--out", "a.jsonl", "--minutes", "1"), "file": plain(Path("a.jsonl").read_text())}
    found["again"] = call("--out", "a.jsonl", "--device", "cpu", "--minutes", "1")
    found["records"] = "\n".join(json.dumps(each) for each in read(Path("a.jsonl"))[1:])
    found["other minutes"] = call("--out", "a.jsonl", "--device", "cpu", "--minutes", "2")
    found["verify"] = call("verify", "a.jsonl")
    found["good"] = call("verify", f"{written(Path(), GOOD, device='cpu')}")  # some is not looked at, and none fails
    assert found["good"].startswith("0\n")
    found["submit"] = call("verify", "a.jsonl", "--submit")
    monkeypatch.setattr(
        command, "metadata", SimpleNamespace(metadata=lambda name: address, distributions=lambda name: [])
    )
    found["no address"] = call("verify", "a.jsonl", "--submit")
    Path("cut.jsonl").write_bytes(Path("a.jsonl").read_bytes()[:-9])
    Path("text.jsonl").write_text("hello\n")
    found["cut"], found["none"] = call("verify", "cut.jsonl"), call("verify", "none.jsonl")
    found["text"] = call("--out", "text.jsonl", "--device", "cpu")
    for arguments in (
        "--device cuda",
        "--device tpu",
        "--minutes 0.01",
        "--minutes 601",
        "--out no/such/a.jsonl --device cpu",
    ):
        found[arguments] = call(*arguments.split())
    found["named"] = "\n".join(
        sorted(re.sub("[0-9a-f]{8}", "DIGITS", path.name) for path in Path().glob("ampsim-card*"))
    )
    call("--device", "cpu", "--minutes", "3")
    names = [re.sub("[0-9a-f]{8}", "DIGITS", path.name) for path in Path().glob("ampsim-card*")]
    found["default name"] = "\n".join(names)
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    found["no torch"] = call()
    found["status"] = "\n".join(dict.fromkeys(shown))
    for name, value in {"_force_terminal": True, "_color_system": ColorSystem.STANDARD}.items():
        monkeypatch.setattr(command.out, name, value)
    found["in colours"] = call("verify", "a.jsonl").replace("\x1b", "ESC")
    agree(GOLDEN / "printed.txt", {name: plain(text) for name, text in found.items()})


def test_what_is_known_of_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch and nvidia-smi have it; here both are made up."""
    properties = SimpleNamespace(
        name="NVIDIA H0 80GB", uuid="u-1", major=9, minor=1, total_memory=80, multi_processor_count=3
    )
    platform.processor()  # which it asks of a program once per process, and keeps
    asked = []

    def done(line: list[str], **options: object) -> SimpleNamespace:
        asked.append(f"{line} {options}")
        return SimpleNamespace(stdout="a, b\nc\n")

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(subprocess, "run", done)
    found = {}
    for smi in ("/bin/nvidia-smi", None):
        monkeypatch.setattr(run.shutil, "which", lambda name, smi=smi: smi and f"{smi} {name}")
        found[f"{smi}"] = f"{run.describe('cuda')}"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.chdir(tmp_path)
    with run.opened(None, 1.0, None) as (path, _):
        found["named"] = re.sub("[0-9a-f]{8}", "DIGITS", path.name)
    monkeypatch.setattr(run, "platform", SimpleNamespace(processor=lambda: "", machine=lambda: "x86"))
    agree(GOLDEN / "device.txt", {**found, "asked": "\n".join(asked), "cpu": f"{run.describe('cpu')}"})


def test_what_is_asked_of_a_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def judged(subject: Any, laws: Any, **options: Any) -> Iterator[Result]:
        asked.append(
            f"{subject.name} {type(subject.make(Rule())).__module__} {len(laws)} {laws[0].name} {[*options['expected']]} {options['examples']}"
        )
        for law, outcome in zip(laws, ("passed", "failed", "expected failure", "unexpected pass"), strict=False):
            yield Result(law, subject.name, outcome, f"text of {outcome} on {torch.get_default_device()}")  # type: ignore[arg-type]

    monkeypatch.setattr(judge, "judge", judged)
    found = {name: json.dumps([*probes.ask_laws(name, "cpu")][-1], indent=0) for name in ("torch", "ampsim")}
    agree(GOLDEN / "asked.txt", {**found, "asked": "\n".join(asked)})


def test_what_histories_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what each way of stepping uses of a scaler: the scales are the machine's on any processor."""
    monkeypatch.setattr(probes, "ITERATIONS", 8)
    monkeypatch.setattr(probes, "ELEMENTS", (64,))
    found = {
        f"{way} {seed}": json.dumps(probes.step(way, "cpu", seed)[0])
        for way in ("torch", "in order", "behind")
        for seed in range(4)
    }
    agree(GOLDEN / "drawn.txt", found)


def test_what_a_gpt_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name in ("small", "gpt2-small"):
        try:
            shapes: list[str] = []
            monkeypatch.setattr(probes, "train", lambda *given: iter([{"given": given}, {"given": given[:1]}]))
            shapes += [json.dumps(each) for each in probes.train_both(name, "cpu")]
        except RuntimeWarning as why:
            shapes = [str(why)]
        found[name] = "\n".join(shapes)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: ((10 << 30) - 1, 0))
    with pytest.raises(RuntimeWarning, match="needs 10 GiB of free memory on a card"):
        next(probes.train_both("gpt2-small", "cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 << 30, 0))
    found["on a card"] = json.dumps(next(probes.train_both("gpt2-small", "cuda")))
    agree(GOLDEN / "gpt.txt", found)


class Made(TorchFunctionMode):
    """Notes on which device, and of which type, tensors are made or brought to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if sys._getframe(1).f_code.co_filename == probes.__file__:
            given = {name: f"{value}" for name, value in (kwargs or {}).items() if name in ("device", "dtype", "fused")}
            plain = [each for each in args if isinstance(each, str | torch.dtype)]
            self.seen[f"{getattr(func, '__name__', '')} {plain} {given}"] = None
        return func(*args, **(kwargs or {}))


def test_where_tensors_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "ITERATIONS", 2)
    monkeypatch.setattr(probes, "ELEMENTS", (64,))
    monkeypatch.setattr(probes, "SIZES", {"small": [10] * 3})
    monkeypatch.setattr(probes, "SECONDS", 0.001)
    found = {}
    for name, call in {
        "facts": lambda: next(probes.compare_arithmetic("cpu")), "step": lambda: probes.step("in order", "cpu", 1),
        "train": lambda: next(probes.train("torch", "cpu", 256, 1, 1, 4, 8)), "steps": lambda: next(probes.time_steps("cpu")),
    }.items():  # fmt: skip
        with Made() as made:
            call()
        found[name] = "\n".join(made.seen)
    agree(GOLDEN / "made.txt", found)


def test_what_a_bar_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Bar:
        def __init__(self, *columns: object, **given: Any) -> None:
            told.append(f"{[type(each).__name__ for each in columns]} {given['transient']} {given['disable']}")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            told.append("end")

        def add_task(self, description: str, total: float) -> int:
            told.append(f"task {description!r} {total}")
            return 5

        def update(self, task: int, **given: object) -> None:
            told.append(f"{task} {given}")

    monkeypatch.setattr("rich.progress.Progress", Bar)
    clock[0] = 0.0
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: clock[0], time=lambda: 0))
    monkeypatch.setattr(run, "PROBES", {"a": looked({}, {}, {}), "b": looked({}), "c": looked(*[{}] * 9)})
    assert call("--device", "cpu", "--out", str(tmp_path / "card.jsonl"), "--minutes", "0.5").startswith("0\n")
    agree(GOLDEN / "bar.txt", {"bar": "\n".join(told)})
