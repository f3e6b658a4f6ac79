"""What a dynamic loss scale costs, in closed form: theorems T1 to T10.

The state is x = log2 of the scale, in *bits*, and the growth tracker. A growth adds a =
log2(growth_factor), a backoff takes b = -log2(backoff_factor); G is the growth interval and rho = a
/ b. Step t overflows, and is skipped, when the current loss scale is above that step's *overflow
threshold*. The *skip rate* is skipped steps over steps in the long run; the *headroom* is threshold
- x, averaged over finite steps: bits of fp16's range that stay unused.

Each theorem states its assumptions and whether it is exact or a limit. Bounds of the scale and the
rounding of factors that are no powers of two are ignored, unless a theorem names them. Formulas are
above the lines that compute them; `properties.skips_stay_within_budget` is T1 as a check on
observed runs.

`pathwise` has the theorems without probability, `stochastic` the others. Statements and proofs are
in the paper and in `docs/theorems.md`, which maps the names T1 to T10 to the paper's numbers.
"""

from ampsim.core.theory.pathwise import (
    Recovery,
    Stale,
    bits,
    bits_lost_to_ranks,
    drifting_skip_rate,
    headroom,
    hysteresis_bound,
    hysteresis_skip_rate,
    hysteresis_skips,
    recovery,
    skip_rate,
    skips,
    stale,
    trade_off,
)
from ampsim.core.theory.stochastic import (
    FP16_BINADES,
    Stationary,
    bad_step_drift,
    bad_step_headroom,
    bad_step_skip_rate,
    best_interval,
    critical_bad_rate,
    flushed_share,
    normal_thresholds,
    of_thresholds,
    stationary,
    tracked_quantile,
    widest_spread,
)

__all__ = [
    "FP16_BINADES", "Recovery", "Stale", "Stationary", "bad_step_drift", "bad_step_headroom",
    "bad_step_skip_rate", "best_interval", "bits", "bits_lost_to_ranks", "critical_bad_rate",
    "drifting_skip_rate", "flushed_share", "headroom", "hysteresis_bound", "hysteresis_skip_rate",
    "hysteresis_skips",
    "normal_thresholds", "of_thresholds", "recovery", "skip_rate", "skips", "stale", "stationary",
    "tracked_quantile", "trade_off", "widest_spread",
]  # fmt: skip
