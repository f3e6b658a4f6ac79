"""The page's state machine, in JavaScript, equals the Python one, to the last bit."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampsim import dialects
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states
from ampsim.core.trace import read
from ampsim.diagnose import playground
from ampsim.diagnose.playground.build import playground as page
from ampsim.diagnose.playground.build import rule_data

TESTS = Path(__file__).parents[1]
MACHINE = Path(playground.__file__).with_name("machine.js")
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")


def played(tasks: list[dict[str, Any]]) -> list[tuple[list[float], dict[str, Any] | None]]:
    """Return what the JavaScript machine makes of histories: each scale, and how it gave up."""
    judge = Path(__file__).with_name("judge_machine.js")
    command = [str(NODE), str(judge), str(MACHINE)]
    pipe = {"input": json.dumps(tasks), "stdout": subprocess.PIPE, "text": True}
    done = subprocess.run(command, check=True, **pipe)  # noqa: S603
    found = json.loads(done.stdout)["played"]
    return [([float(scale) for scale in each["scale"]], each["raised"]) for each in found]


@needs_node
def test_javascript_plays_every_recorded_trace() -> None:
    traces = list(read(TESTS / "traces" / "recorded.jsonl.gz"))
    tasks = []
    for trace in traces:
        flags = [int(bool(flag)) for flag in trace.found_inf]
        kinds = trace.is_async and list(trace.is_async)
        tasks.append({"rule": rule_data(trace.rule()), "found_inf": flags, "is_async": kinds})

    assert {trace.system for trace in traces} == set(dialects.names())
    for trace, (scales, raised) in zip(traces, played(tasks), strict=True):
        assert scales == list(trace.scale), (trace.system, trace.sequence)
        assert (raised or {}).get("step") == (trace.raised and trace.raised.step)


def drawn(base: Rule, random: np.random.Generator) -> Rule:
    """Return a rule that no framework has."""
    growth = float(1 + random.random() * 3)
    backoff = float(0.1 + 0.8 * random.random())
    if base.arithmetic.backoff != "multiply":
        backoff = 1 / growth
    return base.replace(
        init_scale=float(2 ** (20 * random.random())),
        growth_factor=growth,
        backoff_factor=backoff,
        growth_interval=int(random.integers(1, 9)),
        hysteresis=int(random.integers(1, 4)),
        delay=int(random.integers(0, 4)),
        min_scale=1.1 * 2.0 ** -int(random.integers(0, 30)),
        max_scale=2.0**24,
    )


def in_python(rule: Rule, flags: list[bool]) -> tuple[list[float], int | None]:
    """Return each scale that the reference makes, and the step at which it gave up."""
    scales: list[float] = []
    try:
        for state in states(rule, flags):
            scales.append(state.scale)  # noqa: PERF401 - what came before an error is kept
    except Exception:
        return scales, len(scales)
    return scales, None


@needs_node
def test_javascript_equals_python_on_drawn_rules() -> None:
    random = np.random.default_rng(0)
    bases = [dialects.get(name) for name in dialects.names()]
    bases += [dialects.get("flax.DynamicScale", jit=False)]
    bases += [dialects.get("fairseq.DynamicLossScaler", tolerance=0.2)]
    rules = [drawn(base, random) for base in bases for _ in range(10)]
    flags = (random.random((len(rules), 60)) < 0.4).tolist()

    tasks = []
    for rule, its in zip(rules, flags, strict=True):
        numbers = [int(flag) for flag in its]
        tasks.append({"rule": rule_data(rule), "found_inf": numbers, "is_async": None})
    gave_up = 0
    for rule, its, (scales, raised) in zip(rules, flags, played(tasks), strict=True):
        expected, step = in_python(rule, its)
        assert scales == expected, rule
        assert (raised and raised["step"]) == step
        gave_up += raised is not None
    assert gave_up


def test_the_committed_page_is_current() -> None:
    committed = TESTS.parent / "figures" / "playground.html"
    # To renew it: ampsim playground -o figures/playground.html
    assert committed.read_text("utf-8") == page()
