"""After a conversion the other side goes on to the last bit: the real torch, flax and jmp, over
random histories.
"""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ampsim import Rule, State
from ampsim.core.formats import FP32
from ampsim.core.machine import Arithmetic
from ampsim.jax import LossScale, interop
from tests.examples import examples
from tests.jax.helpers import reference

STEPS = 16
histories = st.lists(st.booleans(), max_size=STEPS)
few = settings(max_examples=examples(ms=20))  # real frameworks are slow
F32 = Arithmetic(round_factors=True)


def padded(history: list[bool]) -> np.ndarray:
    return np.array(history + [False] * (STEPS - len(history)))


torch_rules = st.builds(
    Rule,
    growth_factor=st.sampled_from([2.0, 1.1, 3.0]),
    backoff_factor=st.sampled_from([0.5, 1 / 3, 0.9]),
    growth_interval=st.integers(1, 4),
)


@few
@given(torch_rules, st.integers(-120, 120), st.integers(0, 5), histories, histories)
def test_torch_resumes_in_both_directions(
    rule, exponent, tracker, before, after
) -> None:
    torch = pytest.importorskip("torch")
    state = State(1.5 * 2.0**exponent, tracker)
    theirs = torch.amp.GradScaler("cpu")
    theirs._lazy_init_scale_growth_tracker(torch.device("cpu"))
    theirs.load_state_dict(
        interop.to_torch_state_dict(LossScale.from_state(rule, state))
    )
    for found, expected in zip(before, reference(rule, before, state), strict=True):
        torch_update(torch, theirs, found)
        assert (theirs.get_scale(), theirs._get_growth_tracker()) == (
            expected.scale,
            expected.growth_tracker,
        )
    back = interop.from_torch_state_dict(theirs.state_dict())
    assert (back.rule, back.state) == (
        rule.replace(init_scale=65536.0),
        reference(rule, before, state)[-1] if before else state,
    )
    for found, expected in zip(after, reference(rule, after, back.state), strict=True):
        back = back.update(found)
        assert back.state == expected


def torch_update(torch, scaler, found: bool) -> None:
    scaler._per_optimizer_states[0]["found_inf_per_device"] = {
        torch.device("cpu"): torch.tensor(float(found))
    }
    scaler.update()


@few
@given(histories, histories)
def test_pending_scales_round_trip_through_torch(before, after) -> None:
    rule = Rule(growth_interval=2, delay=2, min_scale=2.0**-126)
    scaler = LossScale.create(rule)
    for found in before:
        scaler = scaler.update(found)
    saved = interop.to_torch_state_dict(scaler, elsewhere=("min_scale",))
    pytest.importorskip("torch")
    from ampsim.torch import AsyncGradScaler

    theirs = AsyncGradScaler("cpu", depth=2)
    theirs.load_state_dict(saved)
    assert theirs.state_dict() == saved
    back = interop.from_torch_state_dict(theirs.state_dict(), rule)
    assert back.state == scaler.state
    for found, expected in zip(
        after, reference(rule, after, scaler.state), strict=True
    ):
        back = back.update(found)
        assert back.state == expected


@pytest.mark.parametrize(
    "missing",
    ["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"],
)
def test_incomplete_state_dict_raises(missing) -> None:
    saved = interop.to_torch_state_dict(LossScale.create())
    del saved[missing]
    with pytest.raises(ValueError, match=f"'{missing}'"):
        interop.from_torch_state_dict(saved)


FLAX_RULES = [
    Rule(growth_interval=1),
    Rule(growth_interval=3),
    Rule(growth_factor=3.0, backoff_factor=0.25, growth_interval=2),
    Rule(
        growth_factor=1.1,
        backoff_factor=0.7,
        growth_interval=2,
        min_scale=1.0,
        arithmetic=F32,
    ),
    Rule(growth_interval=4, min_scale=2.0**-126, max_scale=FP32.max_finite),
    Rule(
        growth_interval=4, arithmetic=Arithmetic(backoff="divide")
    ),  # by 2, which is times 0.5
]


@jax.jit
def flax_scan(dynamic_scale, history):
    def body(scale, found):
        x = jnp.where(found, jnp.inf, 0.0)
        after = scale.value_and_grad(lambda p: p * x)(1.0).dynamic_scale
        return after, (after.scale, after.fin_steps)

    dynamic_scale = dynamic_scale.replace(
        fin_steps=jnp.asarray(dynamic_scale.fin_steps, jnp.int32),
        scale=jnp.asarray(dynamic_scale.scale, jnp.float32),
    )
    return jax.lax.scan(body, dynamic_scale, history)[1]


def assert_goes_on(
    framework_scan,
    framework,
    rule: Rule,
    state: State,
    history: list[bool],
    largest: float,
) -> None:
    """The framework's scale and count after every update, while the scale is in the promised range."""
    scales, counts = map(np.asarray, framework_scan(framework, padded(history)))
    ours = LossScale.from_state(rule, state)
    for t, expected in enumerate(reference(rule, history, state)):
        if not 2.0**-126 <= expected.scale <= largest:
            return
        ours = ours.update(history[t])
        assert ours.state == expected
        assert (float(scales[t]), int(counts[t])) == (
            expected.scale,
            expected.growth_tracker,
        )


@pytest.mark.framework("flax")
@few
@given(
    st.sampled_from(FLAX_RULES), st.integers(-125, 126), st.integers(0, 4), histories
)
@example(FLAX_RULES[0], 10, 0, [False, False, True, False])
@example(FLAX_RULES[1], 10, 2, [False] * 4)
@example(FLAX_RULES[1], 10, 3, [False] * 4)  # past its interval: never grows, in both
@example(FLAX_RULES[-1], 10, 0, [False, True, True, False])
def test_flax_resumes_after_conversion(rule, exponent, tracker, history) -> None:
    state = State(1.25 * 2.0**exponent, tracker)
    framework = interop.to_flax(LossScale.from_state(rule, state))
    assert_goes_on(
        flax_scan, framework, rule, state, history, 2.0**127 / rule.growth_factor
    )


@pytest.mark.framework("flax")
@few
@given(st.sampled_from([0, 1, 3]), st.sampled_from([2.0, 1.1]), st.sampled_from([None, 2.0**-126, 1.0]),
       st.integers(-126, 127), st.integers(0, 4), histories)  # fmt: skip
@example(1, 2.0, None, -126, 0, [True] * 3)  # flushed to 0
@example(0, 2.0, None, 127, 0, [False] * 3 + [True])  # FLT_MAX
def test_resume_from_flax_at_extreme_scales(
    interval, growth, low, exponent, steps, history
) -> None:
    from flax.training.dynamic_scale import DynamicScale

    framework = DynamicScale(
        growth_factor=growth,
        growth_interval=interval,
        fin_steps=steps,
        scale=2.0**exponent,
        minimum_scale=low,
    )
    ours = interop.from_flax(framework)
    scales, counts = map(np.asarray, flax_scan(framework, padded(history)))
    for t, found in enumerate(history):
        ours = ours.update(found)
        if (
            float(scales[t]) == 0.0
        ):  # flax: 0 * inf and g / 0 are not finite, so every step is now an overflow
            assert ours.state.scale == 0.0
            return
        assert (ours.state.scale, ours.state.growth_tracker) == (
            float(scales[t]),
            int(counts[t]),
        )


@pytest.mark.framework("flax")
@pytest.mark.parametrize("low", [None, 0.0, 2.0**-126])
def test_flax_round_trip(low) -> None:
    from flax.training.dynamic_scale import DynamicScale

    factors = {"growth_factor": 4.0, "backoff_factor": 0.25}
    framework = DynamicScale(
        **factors, growth_interval=7, fin_steps=3, scale=2.0**10, minimum_scale=low
    )
    assert interop.to_flax(interop.from_flax(framework)) == framework


DIVIDE, RECIPROCAL = (
    Arithmetic(round_factors=True, backoff="divide"),
    Arithmetic(round_factors=True, backoff="reciprocal"),
)
JMP_RULES = [  # within jit, outside of it, or both
    (Rule(growth_interval=1, min_scale=1.0), (True, False)),
    (Rule(growth_interval=3, min_scale=1.0), (True, False)),
    (Rule(growth_interval=3, min_scale=2.0**-10), (False,)),
    (
        Rule(
            growth_factor=3.0,
            backoff_factor=1 / 3,
            growth_interval=2,
            min_scale=1.0,
            arithmetic=DIVIDE,
        ),
        (False,),
    ),
    (
        Rule(
            growth_factor=3.0,
            backoff_factor=1 / 3,
            growth_interval=2,
            min_scale=1.0,
            arithmetic=RECIPROCAL,
        ),
        (True,),
    ),
]


@jax.jit
def jmp_scan(framework, history):
    def body(scale, found):
        after = scale.adjust(~found)
        return after, (after.loss_scale, after.counter)

    return jax.lax.scan(body, framework, history)[1]


def jmp_eager(framework, history):
    out = []
    for found in history:
        framework = framework.adjust(jnp.array(not found))
        out.append((framework.loss_scale, framework.counter))
    return tuple(zip(*out, strict=True))


@pytest.mark.framework("jmp")
@pytest.mark.parametrize("jit", [True, False])
@few
@given(
    data=st.data(),
    exponent=st.one_of(st.just(0), st.integers(0, 126)),
    history=histories,
)
def test_jmp_resumes_in_both_directions(jit, data, exponent, history) -> None:
    rule = data.draw(
        st.sampled_from([rule for rule, where in JMP_RULES if jit in where])
    )
    assume(jit or len(history) <= 4)  # eager jmp takes milliseconds an update
    state = State(
        1.25 * 2.0**exponent, data.draw(st.integers(0, rule.growth_interval - 1))
    )
    framework = interop.to_jmp(LossScale.from_state(rule, state), jit=jit)
    run = jmp_scan if jit else lambda framework, flags: jmp_eager(framework, flags[:4])
    assert_goes_on(run, framework, rule, state, history, math.inf)
    back = interop.from_jmp(framework, jit=jit)
    assert back.state == state
    assert reference(back.rule, history, state) == reference(rule, history, state)


@pytest.mark.framework("jmp")
def test_fractional_factor_round_trips_through_jmp() -> None:
    rule = Rule(
        growth_factor=1.5, backoff_factor=1 / 1.5, min_scale=1.0, arithmetic=RECIPROCAL
    )
    assert (
        interop.from_jmp(interop.to_jmp(LossScale.create(rule))).rule.growth_factor
        == 1.5
    )


THIRDS = {"growth_factor": 3.0, "backoff_factor": 1 / 3}
TORCH = interop.to_torch_state_dict
FLAX, JMP = (
    functools.partial(pytest.param, to, marks=pytest.mark.framework(name))
    for to, name in ((interop.to_flax, "flax"), (interop.to_jmp, "jmp"))
)


@pytest.mark.parametrize(
    ("to", "rule", "text"),
    [
        (TORCH, Rule(hysteresis=2), "hysteresis=2"),
        (TORCH, Rule(min_scale=1.0), "min_scale=1.0"),
        (TORCH, Rule(max_scale=2.0**24), "max_scale=16777216.0"),
        (TORCH, Rule(growth_test=">="), "growth_test='>='"),
        (TORCH, Rule(growth_factor=1.1, arithmetic=F32), "growth_factor=1.1"),
        (TORCH, Rule(arithmetic=Arithmetic(keeps_finite=False)), "arithmetic="),
        FLAX(Rule(delay=1), "delay=1"),
        FLAX(Rule(hysteresis=2), "hysteresis=2"),
        FLAX(Rule(growth_test=">="), "growth_test='>='"),
        FLAX(Rule(max_scale=2.0**24), "max_scale=16777216.0"),
        FLAX(Rule(growth_factor=1.1), "growth_factor=1.1"),
        FLAX(Rule(backoff_factor=0.3), "backoff_factor=0.3"),
        FLAX(Rule(**THIRDS, arithmetic=DIVIDE), "backoff_factor=0.33"),
        JMP(Rule(delay=1), "delay=1"),
        JMP(Rule(hysteresis=2), "hysteresis=2"),
        JMP(Rule(growth_test=">="), "growth_test='>='"),
        JMP(Rule(max_scale=2.0**24), "max_scale=16777216.0"),
        JMP(Rule(min_scale=0.5), "min_scale=0.5"),
        JMP(Rule(min_scale=1.0, backoff_factor=0.25), "backoff_factor=0.25"),
        JMP(Rule(min_scale=1.0, **THIRDS), "backoff_factor=0.33"),
        JMP(JMP_RULES[3][0], "backoff_factor=0.33"),
        JMP(
            Rule(min_scale=1.0, arithmetic=Arithmetic(keeps_finite=False)),
            "arithmetic=",
        ),
    ],
)
def test_unsupported_rule_raises(to, rule, text) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as error:
        to(LossScale.create(rule))
    assert text.partition("=")[0] in str(error.value).partition(" of Rule")[0].split(
        ", "
    )


@pytest.mark.framework("flax", "jmp")
def test_missing_minimum_and_float16_scale_raise() -> None:
    from flax.training.dynamic_scale import DynamicScale

    with pytest.raises(ValueError, match="min_scale=None"):
        interop.to_jmp(LossScale.create(), jit=True)
    with pytest.raises(ValueError, match="float16"):
        interop.from_flax(DynamicScale(scale=jnp.float16(8.0)))


@pytest.mark.framework("jmp")
@pytest.mark.parametrize("count", [3, 5, -1])
def test_jmp_impossible_growth_tracker_raises(count) -> None:
    with pytest.raises(
        ValueError, match=rf"^growth_tracker={count}: expected below growth_interval=3"
    ):
        interop.to_jmp(
            LossScale.from_state(
                Rule(growth_interval=3, min_scale=1.0), State(8.0, count)
            )
        )


def test_state_dict_constants_override_rule() -> None:
    saved = interop.to_torch_state_dict(LossScale.create(Rule(growth_interval=100)))
    back = interop.from_torch_state_dict(saved, Rule(min_scale=1.0))
    assert back.rule.growth_interval == 100
    assert back.rule.min_scale == 1.0
