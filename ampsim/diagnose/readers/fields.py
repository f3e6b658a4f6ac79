"""What people call the step, the scale, the norm, the loss and the skips."""

import math
import re
from collections.abc import Mapping

NAMES = {
    "step": "iteration iterations step steps global_step iter num_updates optimizer_step train_step train_steps _step",
    "scale": "loss_scale grad_scale scale amp_scale scaler_scale loss_scaler_scale fp16_loss_scale cur_scale "
    "current_loss_scale scaler grad_scaler_scale log2_scale",
    "norm": "grad_norm gnorm gradient_norm grad_norm_total total_norm global_grad_norm norm grad_l2_norm",
    "loss": "lm_loss loss train_loss training_loss total_loss mlm_loss nll_loss",
    "skipped": "number_of_skipped_iterations skipped skipped_steps num_skipped skipped_iterations skip "
    "number_of_nan_iterations",
}
"""Field -> the names it goes by, best first; a name in front of a slash, as in ``train/loss``, does not matter."""

_FIELD = {name: (field, rank) for field, names in NAMES.items() for rank, name in enumerate(names.split())}
_OTHER = re.compile(r"[^a-z0-9_]+")


Entry = dict[str, float]
"""Field -> its number, of one line."""


def entry_of(values: Mapping[str, object]) -> Entry:
    """Return the fields among some named values; of two names for one field the better known counts."""
    found: Entry = {}
    ranks: dict[str, int] = {}
    for name, value in values.items():
        field, rank = _field_of(name)
        if field and rank < ranks.get(field, 99) and (number := as_number(value)) is not None:
            ranks[field] = rank
            found[field] = 2.0**number if name.endswith("log2_scale") else number
    return found


def _field_of(name: str) -> tuple[str, int]:
    known = _FIELD.get(name)
    if known is None:
        words = _OTHER.sub("_", name.rsplit("/", 1)[-1].strip().lower()).strip("_").split("_")
        suffixes = ("_".join(words[start:]) for start in range(min(len(words), 6)))  # "INFO step" is a step
        known = next((_FIELD[each] for each in suffixes if each in _FIELD), ("", 99))
        if len(_FIELD) < 10_000:  # a log has few names, and many lines
            _FIELD[name] = known
    return known


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
