"""The page's machine, in JavaScript, does what was recorded of every framework's scaler, to the last bit."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ampsim import dialects
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states
from ampsim.core.trace import Raised, Trace, read
from ampsim.diagnose import playground
from ampsim.diagnose.playground.build import rule_data

TRACES = Path(__file__).parents[1] / "traces"
WHOLE = Path(__file__).parents[3] / "shared" / "golden" / "peers.jsonl.gz"
MACHINE = Path(playground.__file__).parent / "machine.js"
JUDGE = Path(__file__).parent / "judge_machine.js"
NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed: the JavaScript machine stays unjudged")


def judged(tasks: Sequence[object], machine: Path = MACHINE) -> list[dict[str, object]]:
    done = subprocess.run(  # noqa: S603 - files of ours
        [str(NODE), str(JUDGE), str(machine)], input=json.dumps(tasks), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert not answer["lacks"]
    return [{**each, "scale": [float(scale) for scale in each["scale"]]} for each in answer["played"]]


def task(rule: Rule, found_inf: Iterable[object], is_async: Sequence[bool | None] | None = None) -> dict[str, object]:
    flags = [int(bool(flag)) for flag in found_inf]
    return {"rule": rule_data(rule), "found_inf": flags, "is_async": is_async and list(is_async)}


def differing(traces: Sequence[Trace], machine: Path = MACHINE) -> list[str]:
    played = judged([task(trace.rule(), trace.found_inf, trace.is_async) for trace in traces], machine)
    return [
        f"{trace.system} {dict(trace.params)} {trace.sequence}"
        for trace, done in zip(traces, played, strict=True)
        if done["scale"] != list(trace.scale) or (done["raised"] and Raised(**done["raised"])) != trace.raised
    ]


def test_every_committed_trace() -> None:
    traces = [trace for path in sorted(TRACES.glob("*.jsonl")) for trace in read(path)]
    assert {trace.system for trace in traces} == set(dialects.names())
    assert not differing(traces)


@pytest.mark.skipif(not WHOLE.exists(), reason=f"{WHOLE.name} is not here; the selection in tests/traces is")
def test_the_whole_collection() -> None:
    traces = list(read(WHOLE))
    assert len(traces) > 4000
    assert not differing(traces)


@cache
def random_traces() -> list[Trace]:
    """Return what the reference does under rules that no framework has, on random histories."""
    random, traces = np.random.default_rng(0), []
    plain = [dialects.get(name) for name in dialects.names()]
    eager, tolerant = (
        dialects.get("flax.DynamicScale", jit=False),
        dialects.get("fairseq.DynamicLossScaler", tolerance=0.2),
    )
    bases = [*plain, *8 * [eager], tolerant]
    for number in range(20 * len(bases)):
        base, exact = bases[number % len(bases)], number < 10 * len(bases)
        growth = 2.0 if exact else float(1 + random.random() * 3)
        divides = base.arithmetic.backoff != "multiply"
        rule = base.replace(
            init_scale=2.0 ** int(random.integers(20)) if exact else float(2 ** (20 * random.random())),
            growth_factor=growth,
            backoff_factor=1 / growth if divides or exact else float(0.1 + 0.8 * random.random()),
            growth_interval=int(random.integers(1, 9)),
            hysteresis=int(random.integers(1, 4)),
            delay=int(random.integers(0, 4)),
            min_scale=float(2.0 ** -random.integers(0, 30)) * (1.0 if exact else 1.1),  # no float32
            max_scale=float(2.0**24),
        )
        traces.append(told(rule, (random.random(60) < 0.4).tolist()))
    return traces


def told(rule: Rule, found_inf: list[bool]) -> Trace:
    scales, raised = [], None
    try:
        for state in states(rule, found_inf):
            scales.append(state.scale)  # noqa: PERF401 - extend would lose what came before an exception
    except Exception as error:
        raised = Raised(len(scales), type(error).__name__, str(error))
    return RuledTrace("any", {"rule": rule}, tuple(found_inf), tuple(scales), raised=raised)


class RuledTrace(Trace):
    def rule(self) -> Rule:
        return self.params["rule"]


def test_rules_that_no_framework_has() -> None:
    traces = random_traces()
    assert any(trace.raised for trace in traces)
    assert not differing(traces)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Math.fround(x)", "x"),
        ("overflowTracker + 1 < rule.hysteresis", "overflowTracker < rule.hysteresis"),
        ("scale: newest(state), pending", "scale: state.scale, pending"),
        ("growthTracker = 0;", ""),
        ("1 / factor(a, rule.growth_factor)", "1 / rule.growth_factor / 2"),
        ("overflows / updates < quirk.fraction", "overflows / updates <= quirk.fraction"),
        ("state.scale === held ? rule.init_scale : state.scale", "state.scale"),
        ("inner(first, {", "inner(rule, {"),
        ("!(state.scale > quirk.low)", "!(state.scale >= quirk.low)"),
    ],
)
def test_a_planted_bug_is_seen(right: str, wrong: str, tmp_path: Path) -> None:
    source = MACHINE.read_text()
    assert right in source
    (tmp_path / "machine.js").write_text(source.replace(right, wrong, 1))
    assert differing(random_traces(), tmp_path / "machine.js")
