"""What named values say of a run, by the names of the table of formats."""

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar

from ampsim.diagnose.formats import TABLE

_FIELD = {
    name: (field, rank)
    for field, names in TABLE["fields"].items()
    for rank, name in enumerate(names.split())
}
_OTHER = re.compile(r"[^a-z0-9_]+|(?<=[a-z])(?=loss$)")  # CTCLoss is a loss of its own kind
_SOME_LOSS = re.compile(
    r"loss(?:es)?[a-z]?\d*"
)  # a word of a name that is not known, as in "Gen Loss Total" or lossD
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
NOT_TRAINING, NO_LOSS, ALONE, LOGARITHM, MEAN = (
    frozenset(TABLE["names"][name].split())
    for name in ("not_training", "no_loss", "alone", "logarithm", "mean")
)
STEPS_OF = frozenset(TABLE["names"]["steps_of"].split())
KINDS = {"scale": "bare"} | dict.fromkeys(
    MEAN, "means"
)  # of names of a scale: another quantity may be a mere scale
COMPANY = frozenset({"step", "epoch", "loss", "norm", "skipped", "wall"})
"""A scale without one of them stands in a configuration."""

UNKNOWN = 999  # the rank of a name that stands for no field
WORDS = 6  # of a name, at most
SOME = "loss "  # how the field of a loss under a name that is not known begins; the name is the rest of it
Named = TypeVar("Named", bound=tuple[Any, ...])
Entry = dict[
    str, float
]  # field -> its number, of one line; and of its scale's name, "means" or "bare"


def entry_of(pairs: Iterable[tuple[str, object]]) -> Entry:
    """Return the fields among some named values; of two names for one field the better known counts."""
    found: Entry = {}
    for field, (number, (name, _)) in chosen(pairs).items():
        last = field_of(name)[2]
        found[field] = (
            number if last not in LOGARITHM else 2.0**number if abs(number) < 1022 else math.nan
        )
        if field == "scale" and last in KINDS:
            found[KINDS[last]] = 1.0
    if "summary" in found:
        return {"whole": found["loss"]} if "loss" in found else {}
    return settled(found)


def chosen(named: Iterable[Named]) -> dict[str, tuple[float, Named]]:
    """Return for each field the best known of its names, and its number; `named`: a name, a value, whatever else."""
    best: dict[str, tuple[float, Named]] = {}
    ranks: dict[str, int] = {}
    for each in named:
        field, rank, _ = field_of(each[0])
        if field != "skipped" and str(each[1]) in ("True", "False"):
            continue  # a setting's
        if rank > ranks.get(field, UNKNOWN - 1) or (number := as_number(each[1])) is None:
            continue
        other = field in ("loss", "norm") and field in best and each[0] != best[field][1][0]
        more = other and (
            not math.isfinite(number) or (field == "norm" and number > best[field][0])
        )
        if rank < ranks.get(field, UNKNOWN) or more:  # nor is a sum of these finite
            ranks[field], best[field] = rank, (number, each)
        elif (
            field in best
            and rank == ranks[field]
            and not other
            and field not in ("loss", "step", "epoch")
        ):
            del best[
                field
            ]  # of two values nothing tells which is meant; of losses icefall's first is its batch's
    return (
        {field: found for field, found in best.items() if not field.startswith(SOME)}
        if "loss" in best
        else best
    )


def settled(found: Entry) -> Entry:
    """Return fields with what Megatron leaves out put back, as it averages finite losses."""
    if found.get("nans", 0.0) > 0:
        found["loss"] = math.inf
    return found


def kinds(entry: Entry) -> set[str]:
    """Return the fields of an entry, a loss under any name as one."""
    return {field.partition(" ")[0] for field in entry}


def in_company(entry: Entry) -> Entry:
    """Return an entry; nothing if a scale stands alone, as in a configuration, or a norm, as where one overflows."""
    alone = "scale" in entry and COMPANY.isdisjoint(kinds(entry))
    return {} if alone or entry.keys() == {"norm"} else entry


def with_loss(entry: Entry, read: str) -> str:
    """Give an entry its loss, and return the field that the run's is read from, which was `read` so far.

    Of names that are not known it is the first one's; where a run has a known one, none of them that is finite.
    """
    if "loss" in entry:
        return "loss"
    some = [field for field in entry if field.startswith(SOME)]
    bad = [
        field for field in some if not math.isfinite(entry[field])
    ]  # a sum with it is not finite either
    read = read or (some[0] if some else "")
    if bad or read in entry:
        entry["loss"] = entry[bad[0] if bad else read]
    return read


@lru_cache(1_000)  # a log has few names, and many lines
def field_of(name: str) -> tuple[str, int, str]:
    """Return the field and rank of a name's last words, and these: "INFO step" is a step, "moe_gate_loss" no loss."""
    path, _, last = (
        name.lower().replace("eval/loss", "eval_loss").removesuffix("/train").rpartition("/")
    )
    last = (
        last if last in _FIELD else last.removesuffix("_step")
    )  # Lightning logs a loss as train_loss_step
    words = _OTHER.sub("_", last).strip("_").split("_")
    if not NOT_TRAINING.isdisjoint(_OTHER.sub("_", path).split("_")):
        return "", UNKNOWN, ""
    for start in range(min(len(words), WORDS)):
        rest = "_".join(words[start:])
        known = _FIELD.get(rest)
        alone = (
            start and rest in ALONE and not words[start - 1].isdigit()
        )  # "step 10 scale" is a scale
        per = known and known[0] == "step" and path and path not in STEPS_OF  # "ms/step"
        if known and not alone and not per and NOT_TRAINING.isdisjoint(words[:start]):
            return known[0], known[1] + 20 * start, rest
    words = [
        word
        for word in [*_OTHER.sub("_", path).split("_"), *words]
        if word and not word[0].isdigit()
    ]
    if (
        len(words) <= WORDS
        and any(map(_SOME_LOSS.fullmatch, words))
        and (NOT_TRAINING | NO_LOSS).isdisjoint(words)
    ):
        return SOME + "_".join(words), 0, ""
    return "", UNKNOWN, ""


def as_number(value: object) -> float | None:
    """Return a number that was written down in any of the usual ways; None if it is none."""
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        text = value.strip() if isinstance(value, str) else ""
        text = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
        return (
            float(text == "True")
            if text in ("True", "False")
            else as_number(text)
            if text != value
            else None
        )
