# ruff: noqa: E501 - a table of calls
"""What the peers are, how each is driven, and what is written of a broken law: all of it, as it is committed."""

import hashlib
import inspect
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields as attributes
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

import ampsim.peers
from ampsim.core.machine import Rule
from ampsim.peers import REGISTRY, build, connect, environments, load
from ampsim.peers.environments import stamp, tables
from ampsim.peers.frameworks import here
from ampsim.peers.laws import LAWS, emit
from ampsim.peers.laws.drift import drift
from ampsim.peers.laws.judging import CHOICE, ENDS, LOUD, UNASKED, promise
from ampsim.peers.laws.reports import NONE, reported, search
from ampsim.peers.laws.source import driver_of
from ampsim.peers.laws.subject import PeerTraits, fields, followed, subject_of
from ampsim.peers.peer import Peer
from tests.golden import agree, defaults
from tests.peers.planted import PLANTED, Right

GOLDEN = Path(__file__).parent / "golden"
CALLS = ("start", "get_scale", "scale_loss", "step", "state_dict", "load_state_dict")


def as_text(value: Any) -> str:
    return json.dumps(value, indent=1, default=lambda each: sorted(each) if isinstance(each, frozenset) else str(each))


def beyond(usual: Any, found: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not as usual."""
    given = {each.name: getattr(found, each.name) for each in attributes(found)}
    return {
        name: dict(value) if isinstance(value, MappingProxyType) else value
        for name, value in given.items()
        if value != getattr(usual, name)
    }


def test_what_describes_each_peer() -> None:
    found = {}
    for name, peer in REGISTRY.items():
        about = {each: getattr(peer, each) for each in inspect.get_annotations(Peer)}
        told = {each: value for each, value in about.items() if value != getattr(Peer, each, None)}
        known = {field: name for field, name in fields(peer).items() if peer.constants[name] != field}  # type: ignore[arg-type]
        follows = beyond(Rule(), followed(peer, {}))  # type: ignore[arg-type]
        found[name] = as_text({**told, "fields": known, "follows": follows})
    agree(GOLDEN / "peers.txt", found)


def test_how_each_peer_is_driven() -> None:
    """As a test that is printed has it: whatever a driver does stands there; of most a digest of each definition."""
    found = {}
    for number, (name, peer) in enumerate(REGISTRY.items()):
        test = "\n".join([f"scaler = {peer.__name__}()", *(f"scaler.{call}()" for call in CALLS)])
        texts, imports = driver_of(peer, test)
        if number % 9:
            texts = [
                f"{hashlib.sha256(each.encode()).hexdigest()[:8]} {each.splitlines()[0][:60]}" for each in texts[1:]
            ]
        found[name] = "\n".join([*imports, *texts])
    agree(GOLDEN / "drivers.txt", found)


def test_what_is_known_of_each_law() -> None:
    kinds = {"by choice": CHOICE, "at the ends": ENDS, "kept where it raises": LOUD}
    found = {}
    for law in LAWS:
        threads: dict[str, str] = {}
        for name, peer in REGISTRY.items():
            text = reported(peer, law)  # type: ignore[arg-type]
            threads |= {text: f"{threads.get(text, '')} {name}"} if text != NONE else {}
        is_of = [kind for kind, laws in kinds.items() if law in laws]
        address = search(REGISTRY["torch"], law)  # type: ignore[arg-type]
        found[law] = as_text({"promise": promise(law), "is": is_of, "search": address, "threads": threads})
    agree(GOLDEN / "laws.txt", {**found, "none": NONE, "unasked": as_text(UNASKED), "choice": as_text(CHOICE)})


def test_what_environments_are_built_of() -> None:
    agree(GOLDEN / "stamps.txt", {name: stamp(name) for name in tables()})


def test_a_peer_as_the_kit_asks_it() -> None:
    """Of each planted peer its traits, and how it drifts from a dialect that it is said to be."""
    found, usual = {}, subject_of(Right(), patience=2, late=True).traits
    for peer in dict.fromkeys((Right, *(each for peers in PLANTED.values() for each in peers))):

        class Said(peer):  # type: ignore[misc, valid-type]
            dialect = "megatron.core.DynamicGradScaler"
            constants = MappingProxyType({
                "init_scale": "init", "growth_factor": "growth", "backoff_factor": "backoff",
                "growth_interval": "interval", "min_scale": "min_scale", "hysteresis": "hysteresis",
            })  # fmt: skip

        usually = PeerTraits() if peer is Right else usual
        traits = [beyond(usually, subject_of(kind(), patience=2, late=True).traits) for kind in (peer, Said)]
        told = drift(Said(), histories=60, seed=3)
        found[peer.__name__] = "\n".join([*(json.dumps(each, default=sorted) for each in traits), repr(told)])
    agree(GOLDEN / "subjects.txt", found)


def test_what_a_build_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each environment, from nothing, half built, whole, outdated; and where the installer refuses."""
    ran: list[str] = []
    status = {"--version": 0}

    def run(command: Sequence[str], **given: object) -> SimpleNamespace:
        ran.append(" ".join(command).replace(str(tmp_path), "HOME").replace(sys.executable, "PYTHON"))
        if "venv" in command:
            (Path(command[-1]) / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)
        return SimpleNamespace(
            returncode=status.get(command[-1], 0), stdout=f"did {len(command)}\nERROR: no such thing\nend\n"
        )

    monkeypatch.setenv("AMPSIM_PEERS", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setattr(build, "sys", SimpleNamespace(version="3.11.7 (main)", executable=sys.executable))
    monkeypatch.setattr(build.subprocess, "run", run)
    monkeypatch.setattr(build.shutil, "which", lambda name: f"/found/{name}")
    bars: list[Progress] = []
    monkeypatch.setattr(build, "Progress", lambda *args, **given: bars.append(Progress(*args, **given)) or bars[-1])
    found = {}
    for name in environments.tables():
        console = Console(file=io.StringIO(), width=200)
        states = [environments.state(name)]
        bars.clear()
        failed = build.build_all([name], console)
        assert [task.completed for bar in bars for task in bar.tasks] == [
            task.total for bar in bars for task in bar.tasks
        ]
        states.append(environments.state(name))
        first = "\n".join(ran) if len(found) < 2 else "\n".join(ran)[:200]
        ran.clear()
        failed |= build.build_all([name], console)
        shown = console.file.getvalue().splitlines()[:1]  # type: ignore[attr-defined]
        put = [*tmp_path.glob(f"{name}/lib/*/*/*.pth")]
        found[name] = "\n".join([first, f"{states} {shown} {failed} {len(ran)} {len(put)}"])
    (tmp_path / "numpy2" / environments.STAMP).write_text("old")
    (tmp_path / "numpy2" / "kept").touch()
    states = [environments.state("numpy2")]
    assert build.build_all(["numpy2"], Console(file=io.StringIO())) == {}
    assert (tmp_path / "numpy2.log").read_text().count("-m venv") == 1, "the log is of the last build"
    found["outdated"] = f"{states} {environments.state('numpy2')} {(tmp_path / 'numpy2' / 'kept').exists()} {len(ran)}"
    found["log"] = (
        (tmp_path / "numpy2.log").read_text().replace(str(tmp_path), "HOME").replace(sys.executable, "PYTHON")[:300]
    )
    last = environments.tables()["numpy2"]["stages"][-1][-1]
    status[last] = -9  # it was killed
    (tmp_path / "numpy2" / environments.STAMP).unlink()
    console = Console(file=io.StringIO(), width=200)
    failed = build.build_all(["numpy2"], console)
    found["refused"] = f"{failed} {environments.state('numpy2')}".replace(str(tmp_path), "HOME")
    status["--version"] = 1
    with pytest.raises(build.BuildError) as error:
        build.interpreter("3.1")
    found["no Python"] = str(error.value)
    agree(GOLDEN / "built.txt", found)


def test_what_is_said_of_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPSIM_PEERS", str(tmp_path))
    peer = Right()
    peer.start()
    calls: dict[str, Callable[[], object]] = {
        "saves": lambda: Peer.state_dict(peer), "loads": lambda: Peer.load_state_dict(peer, {}), "load": lambda: load("torsh"),
        "float16": lambda: here.held_by_float16([65519.0, -65520.0]), "pass over": lambda: here.pass_over("no_such_package"),
        "held": lambda: here.held_by_float16([65519.0, math.inf, math.nan]), "drift": lambda: drift(peer),
        "overflowed": lambda: [here.overflowed(each) for each in ([1.0], [math.inf], [1.0, math.nan], [-math.inf, 0.0], [])],
        "starts": lambda: peer.history({"growth_factor": 1.0}, []), "environment": lambda: environments.python("deepspeed").partition(" in ")[0], "history": lambda: peer.history({}, [[1.0], [math.inf], [1.0]]),
        "raises": lambda: Broken().history({}, [[1.0], [2.0], [3.0]]), "roundpipe": lambda: load("roundpipe")().state_dict(),
        "roundpipe loads": lambda: load("roundpipe")().load_state_dict({}), "chained": lambda: load("megatron-chained")().state_dict(),
        "chained loads": lambda: load("megatron-chained")().load_state_dict({}),
    }  # fmt: skip
    found = {}
    for name, call in calls.items():
        try:
            found[name] = f"{call()}"
        except Exception as error:
            found[name] = re.sub(r" in /\S*", " in FOLDER", f"{type(error).__name__}: {error}")
    agree(GOLDEN / "refused.txt", found)


class Broken(Right):
    def step(self, scaled: Sequence[float]) -> Any:
        if scaled[0] == 3.0:
            raise ValueError("at the third")
        return super().step(scaled)


def test_what_is_taken_where_nothing_is_given() -> None:
    agree(GOLDEN / "defaults.txt", {"ampsim.peers": defaults(ampsim.peers)})


def test_how_what_is_emitted_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run_apart(sources: object, **given: Any) -> tuple[list[str], str]:
        kept = {name: value for name, value in given.pop("env").items() if name not in usual or name == "PYTHONPATH"}
        asked.append(f"{sources} {sorted(given.items())} {kept}")
        return ["AssertionError of a law", ""], "the last line"

    monkeypatch.setenv("PYTHONPATH", "here")
    monkeypatch.delenv("PYTHONUTF8", raising=False)
    usual = {*os.environ}
    monkeypatch.setenv("PYTHONUTF8", "1")
    monkeypatch.setattr(emit, "run_apart", run_apart)
    monkeypatch.setattr(emit.environments, "python", lambda name: f"python of {name}")
    monkeypatch.setattr(emit.environments, "variables", lambda name: {"OF": name})
    asked.append(repr(emit.prove(Right(), ["a", "b"])))
    with pytest.raises(RuntimeError) as error:
        emit.prove(Right(), ["a", "b", "c"])
    agree(GOLDEN / "run.txt", {"asked": "\n".join([*asked, str(error.value)])})


def test_the_first_call_of_a_peer_has_a_time_of_its_own() -> None:
    asked = [connect("torch"), connect("torch", limit=2.0), connect("torch", first=3.0)]
    assert [(each.limit, each.first) for each in asked] == [(60.0, 600.0), (2.0, 600.0), (60.0, 3.0)]


def test_a_comparison_counts_the_iterations_of_its_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    class Said(Right):
        dialect = "torch.amp.GradScaler"
        constants = MappingProxyType({"init_scale": "init", "growth_interval": "interval"})

    lengths = iter([3, 1, 5, 2])
    monkeypatch.setattr("ampsim.peers.laws.drift.drawn_flags", lambda draw: [False] * next(lengths))
    found = drift(Said(), histories=4)
    assert (found.histories, found.iterations, found.refused) == (4, 11, 0)
