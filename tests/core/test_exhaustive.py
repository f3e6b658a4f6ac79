"""What is finite is enumerated: every fp16 value at every scale, the states and histories of small
rules.
"""

import functools
from collections import deque
from itertools import product

import numpy as np
import pytest

from ampsim import Rule, State, init, update
from ampsim.core.formats import FP16, Kind
from ampsim.core.machine import Arithmetic

HALF = np.arange(2**16, dtype=np.uint16).view(np.float16)  # (65536,), every bit pattern
FINITE = HALF[np.isfinite(HALF)]  # (63488,)
EXPONENTS = np.arange(-14, 25)  # 39 scales 2^k
SCALES = np.exp2(EXPONENTS.astype(np.float64))
SMALLEST_NORMAL = 2.0**-14


# --------------------------------------------------------- every fp16 value through scale -> round
# -> unscale


@pytest.fixture(scope="module")
def chain():
    """(63488, 39) arrays: the exact product S g, what fp16 makes of it, whether g came back to the
    bit.
    """
    g = FINITE.astype(np.float64)[:, None]
    back = FP16.scaled_round(g, SCALES)
    scaled = FP16.round(g * SCALES).astype(np.float64)
    return g * SCALES, scaled, np.asarray(back, np.float64) == g


def test_every_pair_is_enumerated(chain) -> None:
    assert HALF.size * EXPONENTS.size == 2_555_904
    # The other 2,048 values are 2 infinities and 2,046 NaNs; no scale makes one of them finite.
    assert chain[0].size == 63_488 * 39 == 2_476_032
    with np.errstate(invalid="ignore"):
        lost = HALF[~np.isfinite(HALF)].astype(np.float32)[:, None]
        assert not np.isfinite(FP16.scaled_round(lost, SCALES)).any()


def test_exact_pairs_match_integer_grid(chain) -> None:
    """The same verdicts in integers: g = n 2^-24 has at most 11 bits, and fp16 is a grid of 2^-24."""
    _, scaled, exact = chain
    n = (FINITE.astype(np.float64) * 2.0**24).astype(np.int64)[:, None]
    on_the_grid = n % (1 << np.maximum(0, -EXPONENTS)) == 0
    too_large = np.abs(n) >= 65520 << (24 - EXPONENTS)
    assert (exact == (on_the_grid & ~too_large)).all()
    # S = 2^-j spoils j * 1024 numbers of either sign: (1 + ... + 14) * 2048.
    assert np.count_nonzero(~exact & np.isfinite(scaled)) == 105 * 2048 == 215_040


def test_overflow_begins_at_65520(chain) -> None:
    product_, scaled, _ = chain
    overflows = ~np.isfinite(scaled)
    assert (overflows == (np.abs(product_) >= 65520.0)).all()
    assert (overflows == (np.abs(product_) >= FP16.overflow_threshold)).all()
    # S = 2^k drives the top k binades of either sign over: (1 + ... + 24) * 2 * 1024.
    assert np.count_nonzero(overflows) == 300 * 2048 == 614_400


def test_underflow_up_to_half_smallest_subnormal(chain) -> None:
    product_, scaled, _ = chain
    flushed = (scaled == 0) & (product_ != 0)
    assert (flushed == ((product_ != 0) & (np.abs(product_) <= 2.0**-25))).all()
    # S = 2^-j flushes the numbers up to 2^(j-25): 2^(j-1) of them for j <= 12, then 3072 and 4096.
    assert np.count_nonzero(flushed) == 2 * (2**12 - 1 + 3072 + 4096) == 22_526
    assert (FP16.classify(product_) == Kind.FLUSHED)[flushed].all()


# --------------------------------------------------------------------------- the same against torch


def torch_unscale(
    torch, values: np.ndarray, scale: float, dtype: str
) -> tuple[np.ndarray, float]:
    """Torch's kernel on a tensor of `values` cast to `dtype`: (gradients after it as float64,
    found_inf).
    """
    grad = torch.from_numpy(np.array(values)).to(getattr(torch, dtype))
    found_inf = torch.zeros(1)
    inverse = torch.tensor(scale).double().reciprocal().float()
    torch._amp_foreach_non_finite_check_and_unscale_([grad], found_inf, inverse)
    return grad.double().numpy(), float(found_inf)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all(nan | (a.view(np.int64) == b.view(np.int64))))


def test_scaled_round_matches_torch_for_fp16() -> None:
    torch = pytest.importorskip("torch", reason="pip install 'ampsim[torch]'")
    g = FINITE.astype(np.float32)
    for scale in [
        *SCALES.tolist(),
        1000.0,
    ]:  # products of so few bits are exact in float32
        scaled = (torch.from_numpy(g) * scale).half().float()
        expected, found_inf = torch_unscale(torch, scaled.numpy(), scale, "float32")
        assert same(FP16.scaled_round(g, scale).astype(np.float64), expected)
        assert found_inf == float(
            (FP16.classify(g.astype(np.float64) * scale) == Kind.OVERFLOWED).any()
        )


# ------------------------------------------------------------------- every state of a small machine


def reachable(rule: Rule, limit: int = 20_000) -> set[State]:
    """All states from init by either input. That it returns proves them finite in number and
    closed.
    """
    todo = deque([init(rule)])
    seen = {init(rule)}
    while todo:
        state = todo.popleft()
        for found_inf in (False, True):
            after = update(rule, state, found_inf)
            if after not in seen:
                seen.add(after)
                todo.append(after)
                assert len(seen) <= limit
    return seen


def reset(*names: str) -> frozenset[str]:
    return frozenset(names)


# In all of these the scale takes the values 2^0 .. 2^6: L = 7 levels, from 2^3. W: interval, H:
# hysteresis.
L = 7


COUNTS = {
    # Each level with each count 0 .. W-1.
    "plain": ({}, L * 4),
    "quarter": ({"backoff_factor": 0.25}, L * 4),
    # Overflows let pass are forgotten at a growth only. The floor is reached by a backoff alone,
    # with H - 1 let pass, and left by a growth: the lower counts do not occur there.
    "hysteresis": ({"hysteresis": 3}, (L - 1) * 3 * 4 + 4),
    # Forgotten at a backoff too: everything with everything.
    "backoff": (
        {"hysteresis": 3, "hysteresis_reset": reset("growth", "backoff")},
        L * 3 * 4,
    ),
    # Forgotten at a clean step: one counter is always 0, W + H - 1 pairs; (0, 0) at the floor would
    # take a growth that ends there.
    "clean": ({"hysteresis": 3, "hysteresis_reset": reset("clean")}, L * (4 + 2) - 1),
    # One update behind: after a plain clean step the scale in force is the newest, L (W-1); after a
    # growth (s, s+1) or (top, top), after an overflow (s, s-1) or (floor, floor): 2 L; and the
    # empty queue of init.
    "delay": ({"delay": 1}, L * (4 - 1) + 2 * L + 1),
}


@pytest.mark.parametrize(("fields", "expected"), COUNTS.values(), ids=COUNTS)
def test_state_count_matches_hand_count(fields, expected) -> None:
    states = reachable(
        Rule(8.0, growth_interval=4, min_scale=1.0, max_scale=64.0, **fields)
    )
    assert len(states) == expected
    assert (
        {s.scale for s in states}
        == {s.newest for s in states}
        == {2.0**e for e in range(L)}
    )


def test_reachable_states_of_torch_rule() -> None:
    """No floor, no threshold: every power of two of float32, and 0, which no growth leaves."""
    interval = 12
    states = reachable(Rule(growth_interval=interval))
    scales = {s.scale for s in states}
    assert scales == {0.0, *(2.0**e for e in range(-149, 128))}
    assert len(states) == 278 * interval == 3_336
    for tracker in range(interval):
        assert (
            update(Rule(growth_interval=interval), State(0.0, tracker), False).scale
            == 0.0
        )
    at_the_top = update(
        Rule(growth_interval=interval), State(2.0**127, interval - 1), False
    )
    assert at_the_top == State(2.0**127, 0)


# ---------------------------------------------------------------- every history: two other machines


def every_history(rule: Rule, length: int) -> list[list[State]]:
    """levels[n][h]: the state after history h of n updates, h in binary, first update as its
    highest bit.
    """
    after = functools.cache(
        lambda state: [update(rule, state, bit) for bit in (False, True)]
    )
    levels = [[init(rule)]]
    for _ in range(length):
        levels.append([state for before in levels[-1] for state in after(before)])
    return levels


def moved(scale: np.ndarray, rule: Rule, direction: str) -> np.ndarray:
    """float32 (or float64) arithmetic by numpy's own operators; no intermediate double but torch's."""
    kind, real = rule.arithmetic, np.dtype(rule.arithmetic.dtype).type
    factor = rule.growth_factor if direction == "up" else rule.backoff_factor
    if direction == "up" or kind.backoff == "multiply":
        result = (
            scale * real(factor)
            if kind.round_factors
            else (np.float64(scale) * factor).astype(real)
        )
    elif kind.backoff == "divide":
        result = scale / real(rule.growth_factor)
    else:
        result = scale * (real(1) / real(rule.growth_factor))
    if kind.flush_subnormals:
        result = np.where(np.abs(result) < np.finfo(real).tiny, real(0), result)
    return result


def swarm(rule: Rule, length: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All histories at once in numpy arrays; the delay is a look into the past."""
    real = np.dtype(rule.arithmetic.dtype).type
    scale, streak, passed = (
        np.array([real(rule.init_scale)]),
        np.array([0]),
        np.array([0]),
    )
    computed, out = [scale], [(scale, streak, passed)]
    for n in range(1, length + 1):
        scale, streak, passed = (
            np.repeat(scale, 2),
            np.repeat(streak, 2),
            np.repeat(passed, 2),
        )
        bad = np.tile([False, True], len(scale) // 2)
        down = bad & (passed >= rule.hysteresis - 1)
        streak = np.where(bad, 0, streak + 1)
        up = ~bad & (streak == rule.growth_interval)
        with np.errstate(over="ignore", under="ignore"):
            higher, lower = moved(scale, rule, "up"), moved(scale, rule, "down")
        if rule.max_scale is not None:
            higher = np.minimum(higher, real(rule.max_scale))
        if rule.min_scale is not None:
            lower = np.maximum(lower, real(rule.min_scale))
        if rule.arithmetic.keeps_finite:
            higher = np.where(np.isinf(higher), scale, higher)
        scale = np.where(up, higher, np.where(down, lower, scale))
        streak = np.where(up, 0, streak)
        passed = np.where(bad & ~down, passed + 1, passed)
        for name, happened in (("clean", ~bad), ("growth", up), ("backoff", down)):
            if name in rule.hysteresis_reset:
                passed = np.where(happened, 0, passed)
        computed.append(scale)
        past = max(0, n - rule.delay)
        out.append((np.repeat(computed[past], 2 ** (n - past)), streak, passed))
    return out


def assert_equal_on_every_history(rule: Rule, length: int) -> None:
    states = [state for level in every_history(rule, length) for state in level]
    ours = np.array([(s.scale, s.growth_tracker, s.overflow_tracker) for s in states])
    theirs = np.concatenate(
        [np.stack(level, 1) for level in swarm(rule, length)]
    )  # float64, all three
    np.testing.assert_array_equal(ours, theirs, err_msg=repr(rule))


TORCH, F32, F64 = (
    Arithmetic(),
    Arithmetic(round_factors=True),
    Arithmetic(dtype="float64"),
)
ARITHMETICS = {
    "torch 2 1/2": (TORCH, 2.0, 0.5),
    "torch 2 1/4": (TORCH, 2.0, 0.25),
    "torch 1.1 0.7": (TORCH, 1.1, 0.7),
    "f32 1.1 0.9": (F32, 1.1, 0.9),
    "f32 unguarded 4 0.7": (Arithmetic(round_factors=True, keeps_finite=False), 4.0, 0.7),
    "f32 divide 3": (Arithmetic(round_factors=True, backoff="divide"), 3.0, 1 / 3),
    "xla reciprocal 3": (
        Arithmetic(round_factors=True, backoff="reciprocal", flush_subnormals=True), 3.0, 1 / 3
    ),
    "f64 divide 1.7": (Arithmetic(dtype="float64", backoff="divide"), 1.7, 1 / 1.7),
}  # fmt: skip
RANGES = {
    "free": (8.0, None, None),
    "bounded": (8.0, 4.0, 30.0),
    "top of float32": (1.5 * 2.0**125, None, None),
    "subnormal": (3 * 2.0**-149, None, None),
}
REFILLS = [
    frozenset(
        name
        for name, bit in zip(("clean", "growth", "backoff"), bits, strict=True)
        if bit
    )
    for bits in product((False, True), repeat=3)
]


@pytest.mark.parametrize("bounds", RANGES)
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("length", [7, pytest.param(9, marks=pytest.mark.deep)])
def test_small_rules_match_vectorized_model(arithmetic, bounds, length) -> None:
    kind, growth, backoff = ARITHMETICS[arithmetic]
    start, low, high = RANGES[bounds]
    patience = [(1, frozenset({"growth"})), *product((2, 3), REFILLS)]
    for delay, (interval, (hysteresis, reset)) in enumerate(
        product((1, 2, 3), patience)
    ):
        rule = Rule(
            start,
            growth,
            backoff,
            interval,
            min_scale=low,
            max_scale=high,
            hysteresis=hysteresis,
            hysteresis_reset=reset,
            delay=delay % 3,  # 17 kinds of patience, 3 delays: every pair occurs
            arithmetic=kind,
        )
        assert_equal_on_every_history(rule, length)


@pytest.mark.parametrize(("growth", "backoff"), [(2.0, 0.5), (1.1, 0.7)])
@pytest.mark.parametrize(
    "start", [65536.0, 1.5 * 2.0**125, 3 * 2.0**-149], ids=["usual", "top", "bottom"]
)
def test_11_updates_match_torch_kernel(start, growth, backoff) -> None:
    torch = pytest.importorskip("torch", reason="pip install 'ampsim[torch]'")
    rule, length = Rule(start, growth, backoff, 2), 11
    flags = [torch.zeros(1), torch.ones(1)]
    level = [(torch.tensor([start]), torch.tensor([0], dtype=torch.int32))]
    for states in every_history(rule, length):
        assert [(s.scale, s.growth_tracker) for s in states] == [
            (float(s), int(c)) for s, c in level
        ]
        level = [
            (torch._amp_update_scale_(scale, count, flag, growth, backoff, 2), count)
            for s, c in level
            for flag in flags
            for scale, count in [(s.clone(), c.clone())]
        ]
