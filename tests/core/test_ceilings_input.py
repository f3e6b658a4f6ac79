"""What a replay takes and what it refuses: traces, memory maps, states, policies, rules outside the plain machine."""

import math
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampsim import Rule, State, dialects, init, replay, replay_ceilings, update
from ampsim.core.machine import Arithmetic
from ampsim.core.policies import Headroom
from ampsim.core.policies.base import Observation, Policy
from ampsim.core.quirks import RaiseBelow
from ampsim.core.replay import ceilings as module
from ampsim.core.replay import engine
from ampsim.core.replay.ceilings import index_ceilings, run_events
from ampsim.core.replay.sweep import sweep

INF, NAN = math.inf, math.nan
TRACE = np.exp2(np.random.default_rng(1).normal(16, 2, 3000)).astype(np.float32)

# ---------------------------------------------------------------------------------------------------- refusals

AT_LEAST_0 = "expected a number >= 0, inf if the step never overflows; pass 0.0 if it overflows at every scale"
REFUSED = [
    ([1.0, 2.0, NAN], ValueError, f"ceilings[2]=nan: {AT_LEAST_0}"),
    (np.full(9, -1.5, np.float32), ValueError, f"ceilings[0]=-1.5: {AT_LEAST_0}"),
    ([INF, -INF], ValueError, f"ceilings[1]=-inf: {AT_LEAST_0}"),
    ([], ValueError, "ceilings of 0 steps: expected at least one; there is nothing to replay"),
    (
        "0001000",
        TypeError,
        "ceilings='0001000' is a str: expected one number per step; to replay overflows call replay",
    ),
    (1.0, ValueError, "ceilings of shape (): expected one number per step; pass ceilings.ravel()"),
    (np.ones((2, 3)), ValueError, "ceilings of shape (2, 3): expected one number per step; pass ceilings.ravel()"),
]
FLOATS = "expected float32 or float64; pass ceilings.astype('float64')"
DTYPES = [np.ones(3, int), np.ones(3, complex), np.ones(3, np.float16), np.ones(3, bool), np.ones(3, ">f4"),
          [None, 1.0], ["1.0"], [True]]  # fmt: skip


@pytest.mark.parametrize(("trace", "error", "message"), REFUSED)
def test_a_trace_that_says_nothing_is_refused(trace: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        replay_ceilings(Rule(), trace)


@pytest.mark.parametrize("trace", DTYPES, ids=lambda trace: str(np.asarray(trace).dtype))
def test_another_dtype_is_refused(trace: Any) -> None:
    with pytest.raises(TypeError, match=re.escape(f"ceilings of {np.asarray(trace).dtype}: {FLOATS}")):
        replay_ceilings(Rule(), trace)


@pytest.mark.parametrize("fastest", [engine.PYTHON, None], ids=["python", "fastest"])
@pytest.mark.parametrize("bad", [NAN, -NAN, -1.0, -INF, -(2.0**-149)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("step", [0, 63, 64, 999, 1000])
def test_a_bad_number_is_found_wherever_it_stands(
    step: int, dtype: type, bad: float, fastest: engine.Engine | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fastest:
        monkeypatch.setattr(engine, "fastest", lambda: fastest)
    monkeypatch.setattr(module, "_CHUNK", 512)
    trace = np.full(1001, INF, dtype)
    trace[-1] = trace[step] = bad
    with pytest.raises(ValueError, match=rf"^ceilings\[{step}\]={bad!r}: "):
        index_ceilings(trace)


def test_nan_is_no_other_scale_and_every_number_is() -> None:
    assert [engine.differ(*pair) for pair in ((NAN, NAN), (NAN, 1.0), (1.0, NAN), (1.0, 1.0), (0.0, 1.0))] == [
        False, True, True, False, True
    ]  # fmt: skip


def test_minus_zero_is_zero() -> None:
    assert replay_ceilings(Rule(), np.array([-0.0, INF, -0.0], np.float32)).skipped.tolist() == [0, 2]


@pytest.mark.parametrize("block", [0, -2, 3, 100])
def test_a_block_is_a_power_of_two(block: int) -> None:
    with pytest.raises(ValueError, match=f"block={block}: expected .*; the default is 64"):
        index_ceilings(TRACE, block=block)


class HalfArithmetic(Arithmetic):
    """Somebody's own."""


QUIRK = "quirks=(RaiseBelow(limit=0.0001),): expected a rule without quirks"
OUTSIDE = [
    (Rule(quirks=(RaiseBelow(1e-4),)), None, QUIRK),
    (Headroom(), None, "a Headroom: expected an ampsim Rule"),
    (Rule(arithmetic=HalfArithmetic()), None, f"arithmetic={HalfArithmetic()!r}: expected an ampsim.core.machine."),
    (Rule.unchecked(growth_interval=0), None, "an unchecked rule (growth_interval=0: expected at least 1; to never"),
    (Rule(delay=1), State(1.0, pending=(2.0, 4.0)), "pending=(2.0, 4.0): expected at most delay=1 scales"),
]


@pytest.mark.parametrize(("rule", "state", "message"), OUTSIDE)
def test_what_events_cannot_do_is_refused_and_auto_folds(rule: Any, state: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^method='events' with {re.escape(message)}.*; pass method='fold'$"):
        replay_ceilings(rule, TRACE, method="events", state=state)
    auto, fold = (replay_ceilings(rule, TRACE, method=method, state=state) for method in ("auto", "fold"))
    assert auto.state == fold.state
    assert auto.scale_changes.tolist() == fold.scale_changes.tolist()


def test_a_method_has_a_name() -> None:
    with pytest.raises(ValueError, match="method='fast': expected one of 'auto', 'events', 'fold'"):
        replay_ceilings(Rule(), TRACE, method="fast")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- policies, dialects


def test_a_policy_is_told_the_largest_gradient() -> None:
    policy, state, scales = Headroom(interval=2), init(Headroom(interval=2)), []
    trace = [2.0**14, INF, 2.0**20, 2.0**20, 0.0, 2.0**10, *[2.0**17] * 9]
    for ceiling in trace:
        amax = 65504.0 / ceiling if ceiling else INF
        state = update(policy, state, Observation(state.scale > ceiling, amax=amax))
        scales.append(state.scale)
    done = replay_ceilings(policy, trace)
    assert done.scales().tolist() == scales
    assert done.state == state
    assert len(set(scales)) >= 3
    assert replay_ceilings(policy, trace, top=448.0).scales().tolist() != scales


def test_a_policy_is_shown_an_overflow_as_inf_and_as_saturated() -> None:
    shown = []

    class Sees(Policy):
        needs = ("amax", "saturated")

        def decide(self, xp: Any, used: float, newest: float, memory: Any, seen: Observation) -> tuple[float, Any]:
            shown.append((bool(seen.found_inf), seen.amax, seen.saturated))
            return newest, memory

    replay_ceilings(Sees(init_scale=4.0), [8.0, 2.0, INF, 0.0], top=16.0)
    assert shown == [(False, 2.0, 0.0), (True, 8.0, 1.0), (False, 0.0, 0.0), (True, INF, 1.0)]


PATIENT, QUIRKY, LATE = "megatron.core.DynamicGradScaler", "deepspeed.DynamicLossScaler", "mxnet.contrib.amp.LossScaler"


@pytest.mark.parametrize("name", [PATIENT, QUIRKY, LATE, "jmp.DynamicLossScale"])
def test_a_dialect_is_replayed_as_over_its_flags(name: str) -> None:
    rule = dialects.get(name, interval=20)
    done = replay_ceilings(rule, TRACE)
    flags = np.zeros(len(TRACE), bool)
    flags[done.skipped] = True
    assert done.scales().tolist() == replay(rule, flags).tolist()
    before = np.concatenate(([rule.init_scale], done.scales()[:-1]))
    assert ((before > TRACE) == flags).all()


def test_a_framework_that_gives_up_says_where() -> None:
    rule = Rule(1.0, quirks=(RaiseBelow(0.25),))
    with pytest.raises(FloatingPointError) as raised:
        replay_ceilings(rule, [INF, 0.0, 0.0, 0.0, 0.0])
    assert raised.value.__notes__ == ["raised by update 2 of 5 (counted from 0)"]
    with pytest.raises(FloatingPointError) as raised:
        sweep([Rule(), rule], [INF, 0.0, 0.0, 0.0, 0.0])
    assert raised.value.__notes__[-1] == "raised for rule 1 (counted from 0)"


def test_memory_of_quirks_is_kept() -> None:
    start = State(4.0, memory=(("streak", 3.0),))
    assert replay_ceilings(Rule(), TRACE, state=start).state.memory == start.memory


# -------------------------------------------------------------------------------------------------- any array


def test_lists_strides_and_read_only_arrays_give_the_same() -> None:
    expected = replay_ceilings(Rule(growth_interval=20), TRACE).scale_changes.tolist()
    locked = TRACE.copy()
    locked.flags.writeable = False
    for trace in (TRACE.tolist(), np.repeat(TRACE, 2)[::2], locked, TRACE.astype(float), index_ceilings(TRACE)):
        assert replay_ceilings(Rule(growth_interval=20), trace).scale_changes.tolist() == expected
    assert replay_ceilings(Rule(8.0, growth_interval=1), [8, 16, 31]).skipped.tolist() == [2]


def resident(path: Path) -> int:
    """Bytes of the file's mapping that are in memory."""
    smaps = Path("/proc/self/smaps").read_text()
    return 1024 * int(smaps.split(str(path))[1].split("Rss:")[1].split()[0])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="reads Linux's account of memory")
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_map_is_neither_copied_nor_kept_in_memory(mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, steps = tmp_path / "ceilings.f32", 10**7
    trace = np.tile(TRACE, steps // len(TRACE) + 1)[:steps]
    trace.tofile(path)
    monkeypatch.setattr(module, "_CHUNK", 2**20)
    monkeypatch.setattr(module, "_KEPT", 2**20)
    mapped = np.memmap(path, np.float32, mode)
    replay_ceilings(Rule(), mapped[:100])  # compiled before it is measured
    assert float(mapped.sum(dtype=float)) > 0
    assert resident(path) > 30e6
    tracemalloc.start()
    done = replay_ceilings(Rule(growth_interval=10_000), mapped)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6  # 40 MB in the file
    assert resident(path) < 2e6
    expected = replay_ceilings(Rule(growth_interval=10_000), trace)
    assert done.skipped.tolist() == expected.skipped.tolist()
    assert done.state == expected.state
    assert len(done.skipped) > 100


def test_changes_to_a_copy_on_write_map_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 0)
    TRACE.tofile(tmp_path / "ceilings.f32")
    mapped = np.memmap(tmp_path / "ceilings.f32", np.float32, "c")
    mapped[7] = 0.0
    assert 7 in replay_ceilings(Rule(1.0), mapped[:2000]).skipped
    assert mapped[7] == 0.0


def test_without_numba_python_runs_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    loop = engine.fastest.__wrapped__()  # the cached one may be numba's already
    assert loop is engine.PYTHON
    done = run_events(Rule(growth_interval=20), index_ceilings(TRACE), init(Rule()), loop)
    assert done.state == replay_ceilings(Rule(growth_interval=20), TRACE).state
