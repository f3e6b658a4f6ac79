"""Vectors: what a loss scaler does under given settings, as lines that a program in any language can be judged by.

A vector is a `Rule` as plain data, a history of overflows, and the outcome of each update. The set is made from the
dialects, by the machine; `conformance_vectors.md` is the page for those who read the file, and
says what its lines mean.
"""

import dataclasses
import functools
import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ampsim.core import dialects
from ampsim.core.dialects import Dialect
from ampsim.core.machine import Rule
from ampsim.core.replay.fold import states

VERSION = 1
"""Of the set. Lines may change until a release has it, then with another version alone."""
LICENCE = "Apache-2.0"
GIVES_UP = "gives up"
"""Stands for the update at which a scaler raises; none follows."""

Data = dict[str, object]
Outcome = tuple[float | None, ...]


@dataclass(frozen=True)
class Vector:
    """One line of the set.

    Attributes:
        family: what it asks after.
        dialect: a name that `dialects.get` knows, empty for a rule of nobody's.
        params: under the framework's own names.
        config: the rule as plain data, see `as_data`.
        found_inf: one flag per update.
        outcome: the scale after each update; None, last, where the scaler gives up.
        synchronous: per update, whether its scale is in force at once; empty where none is.
    """

    family: str
    dialect: str
    params: Mapping[str, object]
    config: Mapping[str, object]
    found_inf: tuple[bool, ...]
    outcome: Outcome
    synchronous: tuple[bool, ...] = ()

    @classmethod
    def of(
        cls, rule: Rule, found_inf: Sequence[bool], synchronous: Sequence[bool] = ()
    ) -> "Vector":
        """Return what the machine does under a rule, as a vector without names."""
        late = [not at_once for at_once in synchronous] or None
        outcome = tuple(_outcome(rule, found_inf, late))
        return cls("", "", {}, as_data(rule), tuple(found_inf), outcome, tuple(synchronous))

    def question(self) -> str:
        """Return the line that a judged program reads: everything but the outcome and the names."""
        return _json(self._asked())

    def line(self) -> str:
        """Return the line of the set."""
        outcome = [GIVES_UP if scale is None else as_hex(scale) for scale in self.outcome]
        params = {
            name: as_hex(value) if isinstance(value, float) else value
            for name, value in self.params.items()
        }
        named = {"family": self.family, "dialect": self.dialect, "params": params}
        return _json({**named, **self._asked(), "outcome": outcome})

    def _asked(self) -> Data:
        asked: Data = {"config": self.config, "found_inf": [int(flag) for flag in self.found_inf]}
        return asked | (
            {"synchronous": [int(flag) for flag in self.synchronous]} if self.synchronous else {}
        )


def _outcome(
    rule: Rule, found_inf: Sequence[bool], late: Sequence[bool] | None
) -> Iterator[float | None]:
    try:
        for state in states(rule, found_inf, is_async=late):
            yield state.scale
    except Exception:  # the framework's own, of any type
        yield None


def answer(line: str, updates: int) -> Outcome | None:
    """Return what a program answered, None if it declined; a ValueError says what was expected of its form."""
    form = f'expected a JSON list such as ["0x1p+16", "0x1p+15"], {updates} entries for as many updates'
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{error}; {form}") from None
    if given is None:
        return None
    if not isinstance(given, list):
        raise ValueError(f"{type(given).__name__}; {form}")
    scales = tuple(None if entry == GIVES_UP else _scale(entry) for entry in given)
    if len(scales) != updates and not (scales and scales[-1] is None and len(scales) < updates):
        raise ValueError(f"{len(scales)} entries; {form}, or fewer with {GIVES_UP!r} last")
    if None in scales[:-1]:
        raise ValueError(f"{GIVES_UP!r} before the last entry; {form}")
    return scales


def first_difference(expected: Outcome, seen: Outcome) -> int | None:
    """Return the first update at which two outcomes differ in any bit, or of which one knows nothing."""
    differ = (n for n, (a, b) in enumerate(zip(expected, seen, strict=False)) if not _same(a, b))
    return next(differ, None if len(expected) == len(seen) else min(len(expected), len(seen)))


def _same(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


def as_hex(x: float) -> str:
    """Return a number as the shortest hexadecimal float: 0x1.8p+1 for 3.0; inf is written as such."""
    mantissa, p, exponent = float(x).hex().partition("p")
    return mantissa.rstrip("0").rstrip(".") + p + exponent if p else mantissa


def _scale(entry: object) -> float:
    try:
        if isinstance(entry, str):
            return float.fromhex(entry) if "0x" in entry.lower() else float(entry)
        if isinstance(entry, int | float) and not isinstance(entry, bool):
            return float(entry)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{entry!r}: expected a scale, such as '0x1.8p+1', 3.0, 'inf' or {GIVES_UP!r}")


def as_data(rule: Rule) -> Data:
    """Return a rule as JSON can hold it: field -> number, text, list, or an object of these; quirks by name."""
    quirks = [{"name": type(quirk).__name__, **_fields(quirk)} for quirk in rule.quirks]
    reset, arithmetic = sorted(rule.hysteresis_reset), _fields(rule.arithmetic)
    return _fields(rule) | {"hysteresis_reset": reset, "arithmetic": arithmetic, "quirks": quirks}


def _fields(value: object) -> Data:
    def plain(each: dataclasses.Field[object]) -> object:
        held = getattr(value, each.name)
        return as_hex(held) if each.type in (float, float | None) and held is not None else held

    return {each.name: plain(each) for each in dataclasses.fields(value)}  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ the set


def _random(seed: int, often: float, updates: int = 40) -> str:
    draw = random.Random(seed)  # noqa: S311 - a fixed history
    return "".join("01"[draw.random() < often] for _ in range(updates))


_COUNT = {"init_scale": 1024.0, "growth_interval": 3}
_THIRDS = {"growth_factor": 3.0, "backoff_factor": 1 / 3}
FAMILIES: tuple[tuple[str, Mapping[str, float], tuple[str, ...]], ...] = (
    ("defaults", {}, ("0110",)),
    ("counting", _COUNT, ("0000000000", "00100001100001000100000")),
    ("counting", {"init_scale": 1024.0, "growth_interval": 1}, ("0010110111000",)),
    ("patience", {**_COUNT, "hysteresis": 2}, ("10101100011010001001110001",)),
    ("patience", {**_COUNT, "hysteresis": 3}, ("11011100010101000011111011",)),
    (
        "rounding",
        {"init_scale": 1000 / 3, "growth_interval": 2, "growth_factor": 1.7, "backoff_factor": 0.3},
        (_random(1, 0.3),),
    ),
    ("rounding", {"init_scale": 0.7, "growth_interval": 1, **_THIRDS}, (_random(2, 0.4),)),
    ("top", {"init_scale": 2.0**126, "growth_interval": 1}, ("000010011000",)),
    ("top", {"init_scale": 2.0**126, "growth_interval": 1, **_THIRDS}, ("0000100110",)),
    ("top", {"init_scale": 2.0**1022, "growth_interval": 1}, ("000010011000",)),
    ("bottom", {"init_scale": 2.0**-120, "growth_interval": 2}, ("1" * 31 + "000011",)),
    ("bottom", {"init_scale": 2.0**-1060, "growth_interval": 2}, ("1" * 16 + "0000",)),
    ("floor", {"init_scale": 6.0, "growth_interval": 2, "min_scale": 1.0}, ("1111010100110",)),
    (
        "threshold",
        {"init_scale": 1000.0, "growth_interval": 1, "max_scale": 4096.0, **_THIRDS},
        ("0000110000010",),
    ),
    ("giving up", {"init_scale": 2.0**9, "growth_interval": 9, "hysteresis": 1}, ("1" * 24,)),
    (
        "random",
        {"init_scale": 2.0**12, "growth_interval": 4, "hysteresis": 2},
        (_random(3, 0.2, 60), _random(4, 0.5)),
    ),
)
# What a dialect takes as an option of its own, in the words of `Rule`.
OPTIONS = {
    "hysteresis": "hysteresis",
    "growth_interval": "growth_interval",
    "min_loss_scale": "min_scale",
    "max_loss_scale": "max_scale",
}
_FRACTIONS = {"tolerance": 0.25}
_LONG = ("giving up", "mindspore.amp.DynamicLossScaleManager", "1" * 1001)
_MIXED = "roundpipe.GradScaler[mixed]"


@functools.cache
def make() -> tuple[Vector, ...]:
    """Return the set: each dialect with each of its options, in each family that it has the settings for."""
    made: dict[str, Vector] = {}
    for name in dialects.names():
        dialect = dialects.ALL[name]
        for options in _variants(dialect):
            for family, fields, histories in FAMILIES:
                for history in histories:
                    _add(made, name, named(dialect, fields) | options, family, history)
    family, name, history = _LONG
    _add(made, name, {}, family, history)
    return tuple(made.values())


def _variants(dialect: Dialect) -> Iterator[Data]:
    yield {}
    for name, default in dialect.options.items():
        if isinstance(default, bool):
            yield {name: not default}
        elif name in _FRACTIONS:
            yield {name: _FRACTIONS[name]}


def named(dialect: Dialect, fields: Mapping[str, float]) -> Data:
    """Return fields of a `Rule` under a framework's own names, without those that it does not have."""
    targets = {
        **dialect.parameters,
        **{name: to for name, to in OPTIONS.items() if name in dialect.options},
    }
    targets = {name: "growth_factor" if to == "factor" else to for name, to in targets.items()}
    return {name: fields[to] for name, to in targets.items() if to in fields}


def _add(made: dict[str, Vector], name: str, params: Data, family: str, history: str) -> None:
    """Add a vector, unless the dialect refuses the settings or has this line already."""
    try:
        rule = dialects.get(name, **params)
    except ValueError:
        return
    found_inf = [digit == "1" for digit in history]
    synchronous = [n % 3 == 2 for n in range(len(history))] if name == _MIXED else ()
    vector = Vector.of(rule, found_inf, synchronous)
    made.setdefault(
        name + vector.question(),
        dataclasses.replace(vector, family=family, dialect=name, params=params),
    )


# ----------------------------------------------------------------------------------------------------- the file


def as_file(vectors: Sequence[Vector], version: str) -> bytes:
    """Return the set as JSON Lines: first what it is, with the sha256 of all bytes after that line."""
    body = "".join(vector.line() + "\n" for vector in vectors).encode()
    head = {
        "vectors": VERSION,
        "ampsim": version,
        "licence": LICENCE,
        "lines": len(vectors),
        "sha256": _sha256(body),
    }
    return _json(head).encode() + b"\n" + body


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
