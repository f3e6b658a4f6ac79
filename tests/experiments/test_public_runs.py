"""What public logs are said to leave room for: every history of the machine lies within it."""

from hypothesis import given
from hypothesis import strategies as st

from ampsim import replay
from ampsim.core import dialects
from experiments import public_runs


@given(st.data(), st.integers(2, 9), st.integers(1, 3))
def test_overflow_bounds_contain_true_count(data, interval, hysteresis) -> None:
    rule = dialects.get(
        "megatron.core.DynamicGradScaler",
        growth_interval=interval,
        hysteresis=hysteresis,
        init_scale=2.0**60,
    )
    history = data.draw(st.lists(st.booleans(), min_size=2, max_size=80))
    first = data.draw(st.integers(1, len(history) - 1))
    last = data.draw(st.integers(first + 1, len(history)))
    scales = replay(rule, history)
    log = {"step": [first, last], "scale": [float(scales[first - 1]), float(scales[last - 1])]}
    found = public_runs.window(rule, *public_runs.whole(log))
    assert found["least"] <= sum(history[first:last]) <= found["most"]
