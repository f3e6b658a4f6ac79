"""What people call the step, the scale, the norm, the loss and the skips."""

import math
import re
from collections.abc import Mapping
from functools import lru_cache

NAMES = {
    "step": "iteration iterations step steps global_step iter num_updates optimizer_step train_step train_steps _step",
    "scale": "loss_scale grad_scale scale amp_scale scaler_scale loss_scaler_scale fp16_loss_scale cur_scale "
    "current_loss_scale scaler grad_scaler_scale log2_scale gradscale lossscale loss_scaling",
    "norm": "grad_norm gnorm gradient_norm grad_norm_total total_norm global_grad_norm norm grad_l2_norm "
    "grad_2_0_norm_total",
    "loss": "lm_loss loss train_loss training_loss total_loss mlm_loss nll_loss",
    "skipped": "number_of_skipped_iterations skipped skipped_steps num_skipped skipped_iterations skip",
    "nans": "number_of_nan_iterations",
}
"""Field -> the names it goes by, best first; a name in front of a slash, as in ``train/loss``, does not matter."""

_FIELD = {name: (field, rank) for field, names in NAMES.items() for rank, name in enumerate(names.split())}
_OTHER = re.compile(r"[^a-z0-9_]+")
NOT_TRAINING = frozenset({
    "eval", "val", "valid", "validation", "test", "best", "param", "params", "weight", "weights", "act", "actv",
    "activation", "aux", "moe", "gate", "lr",
})  # fmt: skip
"""Words before a known name that make it another quantity: ``eval_loss``, ``params_norm``."""
ALONE = frozenset({"norm", "scale", "scaler", "skip"})
"""Names that mean something else behind other words: ``tok_norm``, ``lr_scale``."""

Entry = dict[str, float]
"""Field -> its number, of one line."""


def entry_of(values: Mapping[str, object]) -> Entry:
    """Return the fields among some named values; of two names for one field the better known counts."""
    if "train_runtime" in values:  # what the Trainer says at its end: the mean of all losses
        return {}
    found: Entry = {}
    ranks: dict[str, int] = {}
    for name, value in values.items():
        field, rank = _field_of(name)
        if field and rank < ranks.get(field, 999) and (number := as_number(value)) is not None:
            ranks[field] = rank
            found[field] = 2.0 ** min(number, 1023) if name.endswith("log2_scale") else number
    if found.pop("nans", 0.0) > 0 or (found.get("loss") == 0 and not math.isfinite(found.get("norm", 0.0))):
        found["loss"] = math.inf  # Megatron and the Trainer leave losses that are not finite out of their means
    return found


@lru_cache(1_000)  # a log has few names, and many lines
def _field_of(name: str) -> tuple[str, int]:
    """Return the field and rank of a name's last words: "INFO step" is a step, "moe_gate_loss" no loss."""
    path, _, last = name.lower().rpartition("/")
    last = last if last in _FIELD else last.removesuffix("_step")  # Lightning logs a loss as train_loss_step
    words = _OTHER.sub("_", last).strip("_").split("_")
    if not NOT_TRAINING.isdisjoint(_OTHER.sub("_", path).split("_")):
        return "", 99
    for start in range(min(len(words), 6)):
        known = _FIELD.get("_".join(words[start:]))
        alone = start and words[start] in ALONE and not words[start - 1].isdigit()  # "step 10 scale" is a scale
        if known and not alone and NOT_TRAINING.isdisjoint(words[:start]):
            return known[0], known[1] + 20 * start
    return "", 99


def as_number(value: object) -> float | None:
    """Return a number that was written down in any of the usual ways; None if it is none."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str):
        try:
            return float(value.strip().replace(",", ""))
        except ValueError:
            return None
    return None
