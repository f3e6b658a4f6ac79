# ruff: noqa: E501 - a table of calls
"""What the core refuses, in whole sentences, as it is committed: `python -m tests.golden core` writes it anew."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ampsim import Rule, State, dialects, replay, replay_ceilings
from ampsim.core import arguments, pipeline, theory, vectors
from ampsim.core.machine import Arithmetic
from ampsim.core.policies import Deduplicated, FloorSchedule, Headroom, LogMax, Probe, Ratio
from ampsim.core.policies.base import unflatten
from ampsim.core.quirks import RaiseBelow
from ampsim.core.replay.ceilings import index_ceilings
from ampsim.core.replay.stream import sweep_files
from ampsim.core.torch_model import refusals
from ampsim.core.trace import Trace, read
from tests.golden import agree

GOLDEN = Path(__file__).parent / "golden"
DIVIDES = Arithmetic(backoff="divide")
RECORD = Trace("torch.amp.GradScaler", {}, (False, True), (65536.0, 32768.0)).to_record()


def swept(path: Path, data: bytes | np.ndarray[Any, Any], chunk: int = 4) -> object:
    path.write_bytes(data) if isinstance(data, bytes) else np.save(path, data)
    return list(sweep_files([Rule()], [path], chunk=chunk))


def begun(tickets: int, depth: int = 0, updates: int = 0) -> pipeline.Pipeline[State]:
    pipe = pipeline.start(Rule(), depth)
    for ticket in range(tickets):
        pipe = pipeline.begin(pipe)
        pipe = pipeline.finish(pipe, ticket, False) if ticket < updates else pipe
    return pipe


class OnDevice:
    """What says where it is, as a tensor does."""

    device = SimpleNamespace(type="cuda")

    def __repr__(self) -> str:
        return "a tensor"


def damaged(path: Path) -> object:
    path.write_bytes(b'{"vectors": 1, "sha256": "of others"}\nline\n')
    return vectors.read(path)


def cut(path: Path) -> object:
    path.write_bytes(gzip.compress(json.dumps(RECORD).encode(), mtime=0)[:-9])
    return list(read(path))


def record(**change: object) -> Trace:
    return Trace.from_record({**RECORD, **change})


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.npy"
    openseq, fair = "openseq2seq.BackoffScaler", "fairscale.LayerwiseGradientScaler"
    calls: dict[str, Callable[[], object]] = {
        "bool": lambda: Rule(init_scale=True), "None": lambda: Rule(growth_factor=None), "huge": lambda: Rule(init_scale=10**400), "choice": lambda: Rule(growth_test=">"), "float": lambda: Rule(growth_interval=2.5), "least": lambda: Rule(hysteresis=0),
        "arithmetic": lambda: Rule(arithmetic=3), "init": lambda: Rule(init_scale=-1.0), "held": lambda: Rule(init_scale=1e39), "floor": lambda: Rule(min_scale=-1.0), "ceiling": lambda: Rule(max_scale=0.0), "bounds": lambda: Rule(min_scale=4.0, max_scale=2.0),
        "growth": lambda: Rule(growth_factor=0.5), "backoff": lambda: Rule(backoff_factor=2.0), "divides": lambda: Rule(growth_factor=4.0, arithmetic=DIVIDES), "quirks": lambda: Rule(quirks=[1]), "refill": lambda: Rule(hysteresis_refill={"never"}),
        "fields": lambda: Rule.unchecked(shrink=0.5), "text": lambda: replay(Rule(), "01"), "text in a list": lambda: replay(Rule(), [b"0"]), "many": lambda: arguments.check_choice("x", 3, ("a", "b")),
        "factor": lambda: dialects.get("jmp.DynamicLossScale", factor=0.5), "fixed": lambda: dialects.get("keras.LossScaleOptimizer[torch]", factor=3.0), "megatron": lambda: dialects.get("megatron.core.DynamicGradScaler", init=1.0, min_scale=2.0),
        "fairscale": lambda: dialects.get(fair, init=1.0, min_scale=2.0, max_scale=8.0), "openseq2seq": lambda: dialects.get(openseq, interval=2, step_window=3), "guided": lambda: dialects.get("guided_diffusion.MixedPrecisionTrainer", growth=1.5),
        "dialect": lambda: dialects.get("torch.amp.GradScale"), "parameter": lambda: dialects.get("nemo.GradScaler", hysteresys=2),
        "delayed": lambda: pipeline.start(Rule(delay=2), 1), "policy's delay": lambda: pipeline.start(Probe(delay=2), 1), "would block": lambda: pipeline.begin(begun(2, depth=1)), "updated": lambda: pipeline.finish(begun(2, updates=2), 0, False),
        "not begun": lambda: pipeline.finish(begun(1), 3, False), "not next": lambda: pipeline.finish(begun(3, depth=2, updates=0), 1, False), "gives up": lambda: replay(Rule(1.0, quirks=(RaiseBelow(0.5),)), [True]),
        "block": lambda: index_ceilings([1.0], block=3), "events": lambda: replay_ceilings(Probe(), [1.0], method="events"), "ceilings": lambda: replay_ceilings(Rule(), [1.0, -1.0]), "flags": lambda: replay(Rule(), [0, 1], is_async=[True]), "more flags": lambda: replay(Rule(), [0], is_async=[True, False]),
        "shape": lambda: swept(path, np.ones((2, 2))), "no npy": lambda: swept(path, b"nothing of the kind"), "bad step": lambda: swept(path, np.array([1.0] * 5 + [-1.0])), "cut": lambda: swept(path, b"" if np.save(path, np.ones(9)) else path.read_bytes()[:-8]),
        "T5": lambda: theory.stale("eager", 5, 1), "T5 k": lambda: theory.stale("probe", 5, 5), "T1": lambda: theory.skip_rate(Rule(backoff_factor=1.0)), "T4": lambda: theory.recovery(Rule(growth_interval=5), 3.0, 9), "T6": lambda: theory.drifting_skip_rate(Rule(growth_factor=4.0), -0.5),
        "T10": lambda: theory.hysteresis_bound(Rule(hysteresis=2, hysteresis_refill=frozenset({"clean"}))), "T3": lambda: theory.stationary([0.5, 0.4], 5),
        "hexadecimal": lambda: record(scale=[1.0, 2.0]), "object": lambda: Trace.from_record([]), "missing": lambda: Trace.from_record({"system": "x"}), "system": lambda: record(system=5), "scales": lambda: record(scale=["0x1"]), "modes": lambda: record(is_async=[True]), "digits": lambda: record(found_inf=[0, 2]),
        "cut trace": lambda: cut(tmp_path / "t.jsonl.gz"), "damaged": lambda: damaged(path), "tensor": lambda: refusals.no_tensor(OnDevice()),
        "answer": lambda: vectors.answer("[1, true]", 2), "form": lambda: vectors.answer("{}", 2), "entries": lambda: vectors.answer("[1]", 2), "before": lambda: vectors.answer('["gives up", 1]', 2), "no JSON": lambda: vectors.answer("[", 2),
        "queue": lambda: Probe(init_scale=0.5, min_scale=1.0, max_scale=2.0), "scale": lambda: Probe(max_scale=1e39), "needs": lambda: replay(Headroom(), [True]), "saved": lambda: unflatten(Probe(), [1.0]), "saved in text": lambda: unflatten(Probe(), "1"), "restored": lambda: unflatten(Probe(), [1.0, 0.0, 0, 0]),
        "restored peak": lambda: unflatten(Headroom(), [1.0, 0, -1.0]), "restored count": lambda: unflatten(Probe(), [1.0, 1.0, 2**31, 0]), "restored mean": lambda: unflatten(LogMax(), [1.0, float("nan"), 0.0, 0.0, 1.0, 1.0]), "share": lambda: Ratio(threshold=1.0), "top": lambda: Ratio(top=0.0),
        "steps": lambda: FloorSchedule(milestones=((5, 2.0), (5, 4.0))), "floors": lambda: FloorSchedule(milestones=((5, 4.0), (6, 2.0)), max_scale=2.0**20, min_scale=0.5), "power": lambda: Headroom(init_scale=3.0), "largest": lambda: Headroom(max_scale=2.0**127), "margin": lambda: Headroom(margin=13),
        "format": lambda: Headroom(top=1e5), "beta": lambda: LogMax(beta2=1.0), "deviations": lambda: LogMax(overflow_std_dev=200.0), "interval": lambda: Deduplicated(growth_interval=0),
    }  # fmt: skip
    found = {}
    for name, call in calls.items():
        try:
            found[name] = f"{call()!r} was taken"
        except Exception as error:
            found[name] = re.sub(re.escape(str(tmp_path)), "FOLDER", f"{type(error).__name__}: {error}")
    agree(GOLDEN / "refused.txt", found)
