"""What several of these files do: draw a rule, fold the machine over a history."""

import math
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from ampsim import Rule, State, init, update
from ampsim.core.machine import Arithmetic


def run(
    rule: Any, history: Iterable[object], state: State | None = None
) -> list[State]:
    """The states after each update of a history such as "1001" (1: overflow), or of flags."""
    state = init(rule) if state is None else state
    return [state := update(rule, state, flag not in (False, "0")) for flag in history]


def scales(rule: Any, history: Iterable[object]) -> list[float]:
    """The scale after each of them."""
    return [state.scale for state in run(rule, history)]


@st.composite
def rules(draw: st.DrawFn, dtypes: tuple[str, ...] = ("float32",)) -> Rule:
    """A rule without quirks, its numbers usual or at an end of float32."""
    backoff = draw(st.sampled_from(["multiply", "divide", "reciprocal"]))
    growth = draw(st.one_of(st.sampled_from([1.0, 2.0, 3.0, 1.1]), st.floats(1.0, 8.0)))
    down = draw(st.one_of(st.sampled_from([0.5, 1.0, 1 / 3]), st.floats(2.0**-20, 1.0)))
    low = draw(st.one_of(st.none(), st.floats(0.0, 2.0**16)))
    high = draw(st.one_of(st.none(), st.just(math.inf), st.floats(2.0**17, 2.0**120)))
    return Rule(
        init_scale=draw(
            st.one_of(
                st.floats(2.0**-20, 2.0**20),
                st.sampled_from([2.0**127, 2.0**-126, 1e-45]),
            )
        ),
        growth_factor=growth,
        backoff_factor=down if backoff == "multiply" else 1.0 / growth,
        growth_interval=draw(st.integers(1, 5)),
        min_scale=low,
        max_scale=high,
        hysteresis=draw(st.integers(1, 3)),
        hysteresis_reset=draw(
            st.frozensets(st.sampled_from(["clean", "growth", "backoff"]))
        ),
        delay=draw(st.sampled_from([0, 1, 3])),
        growth_test=draw(st.sampled_from(["==", ">="])),
        arithmetic=Arithmetic(
            dtype=draw(st.sampled_from(dtypes)),
            round_factors=draw(st.booleans()),
            backoff=backoff,
            flush_subnormals=draw(st.booleans()),
            keeps_finite=draw(st.booleans()),
        ),
    )
