"""The rules, by code."""

from collections.abc import Mapping
from importlib import import_module

from ampsim.lint.rule import Rule

_FILES = (
    *("schedule_on_skip", "average_on_skip", "clip_scaled", "unscale_after_step", "unscaled_twice"),
    *("scaled_gradients_read", "loss_not_scaled", "update_missing", "update_before_step", "update_skipped"),
    *("step_past_scaler", "scaler_not_saved", "scaler_in_the_loop", "half_model", "short_window", "deprecated_names"),
    *("isinf_alone", "verdict_dropped", "state_not_selected", "cleared_in_the_window", "scaled_loss_logged"),
    *("average_per_micro_batch", "hidden_overflow", "cleared_if_stepped", "clip_per_micro_batch", "two_updates"),
)
_RULES: tuple[Rule, ...] = tuple(import_module(f"ampsim.lint.rules.{name}").RULE for name in _FILES)
RULES: Mapping[str, Rule] = {rule.code: rule for rule in _RULES}
