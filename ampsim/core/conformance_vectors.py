"""Conformance vectors: settings, overflow sequences, and expected scales, for loss scalers in any
language.

A vector is a `Rule` as plain data, an overflow sequence, and the outcome of each update. The
reference state machine computes the vectors from the dialects. `conformance_vectors.md` describes
the file format.
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
"""Version of the set. After a release, lines change only with a new version."""
LICENCE = "Apache-2.0"
GIVES_UP = "gives up"
"""Outcome of the update at which a scaler raises; it is the last outcome."""

Data = dict[str, object]
Outcome = tuple[float | None, ...]


@dataclass(frozen=True)
class Vector:
    """One line of the set.

    Attributes:
        family: Behavior that the vector tests.
        dialect: Name of a dialect; empty for a custom rule.
        params: Parameters under the framework's own names.
        config: The rule as plain data, see `as_data`.
        found_inf: One flag per update.
        outcome: Scale after each update; the last is None if the scaler raises.
        synchronous: One flag per update: whether its scale is used at once. Empty if all are False.
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
        """Return the vector of a rule and an overflow sequence, without names."""
        late = [not at_once for at_once in synchronous] or None
        outcome = tuple(_outcome(rule, found_inf, late))
        return cls(
            "", "", {}, as_data(rule), tuple(found_inf), outcome, tuple(synchronous)
        )

    def question(self) -> str:
        """Return the input line of a program: the vector without outcome and names."""
        return _json(self._input())

    def line(self) -> str:
        """Return the line of the vector in the file."""
        outcome = [
            GIVES_UP if scale is None else as_hex(scale) for scale in self.outcome
        ]
        params = {
            name: as_hex(value) if isinstance(value, float) else value
            for name, value in self.params.items()
        }
        named = {"family": self.family, "dialect": self.dialect, "params": params}
        return _json({**named, **self._input(), "outcome": outcome})

    def _input(self) -> Data:
        data: Data = {
            "config": self.config,
            "found_inf": [int(flag) for flag in self.found_inf],
        }
        return data | (
            {"synchronous": [int(flag) for flag in self.synchronous]}
            if self.synchronous
            else {}
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
    """Parse the answer of a program; None if it declined. Raise ValueError for an invalid form."""
    form = f'expected a JSON list such as ["0x1p+16", "0x1p+15"], with {updates} entries, one per update'
    try:
        entries = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{error}; {form}") from None
    if entries is None:
        return None
    if not isinstance(entries, list):
        raise ValueError(f"{type(entries).__name__}; {form}")
    scales = tuple(
        None if entry == GIVES_UP else parse_scale(entry) for entry in entries
    )
    if len(scales) != updates and not (
        scales and scales[-1] is None and len(scales) < updates
    ):
        raise ValueError(
            f"{len(scales)} entries; {form}, or fewer with {GIVES_UP!r} last"
        )
    if None in scales[:-1]:
        raise ValueError(f"{GIVES_UP!r} before the last entry; {form}")
    return scales


def first_difference(expected: Outcome, actual: Outcome) -> int | None:
    """Return the first update whose outcomes differ in any bit, or where one sequence ends."""
    differ = (
        n
        for n, (a, b) in enumerate(zip(expected, actual, strict=False))
        if not _same(a, b)
    )
    return next(
        differ,
        None if len(expected) == len(actual) else min(len(expected), len(actual)),
    )


def _same(a: float | None, b: float | None) -> bool:
    return a == b or (
        a is not None and b is not None and math.isnan(a) and math.isnan(b)
    )


def as_hex(x: float) -> str:
    """Return a number as the shortest hexadecimal float, e.g. 0x1.8p+1 for 3.0, or ``inf``."""
    mantissa, p, exponent = float(x).hex().partition("p")
    return mantissa.rstrip("0").rstrip(".") + p + exponent if p else mantissa


def parse_scale(entry: object) -> float:
    """Return the scale in a JSON entry: a number, or text of a decimal or hexadecimal number, inf,
    or nan.

    Raises:
        ValueError: If the entry is none of these. Text is hexadecimal only with 0x: "65536.0" is a
            decimal number.
    """
    try:
        if isinstance(entry, str):
            return float.fromhex(entry) if "0x" in entry.lower() else float(entry)
        if isinstance(entry, int | float) and not isinstance(entry, bool):
            return float(entry)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"scale {entry!r}: expected a number such as '0x1.8p+1', 3.0, or 'inf'"
    )


def as_data(rule: Rule) -> Data:
    """Return a rule as JSON data: field -> number, text, list, or object; quirks by name."""
    quirks = [{"name": type(quirk).__name__, **_fields(quirk)} for quirk in rule.quirks]
    reset = sorted(rule.hysteresis_reset)
    arithmetic = _fields(rule.arithmetic)
    return _fields(rule) | {
        "hysteresis_reset": reset,
        "arithmetic": arithmetic,
        "quirks": quirks,
    }


def _fields(value: object) -> Data:
    def plain(field: dataclasses.Field[object]) -> object:
        held = getattr(value, field.name)
        return (
            as_hex(held)
            if field.type in (float, float | None) and held is not None
            else held
        )

    return {field.name: plain(field) for field in dataclasses.fields(value)}  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------
# the set


def _random(seed: int, often: float, updates: int = 40) -> str:
    draw = random.Random(seed)  # noqa: S311
    return "".join("01"[draw.random() < often] for _ in range(updates))


_COUNT = {"init_scale": 1024.0, "growth_interval": 3}
_THIRDS = {"growth_factor": 3.0, "backoff_factor": 1 / 3}
FAMILIES: tuple[tuple[str, Mapping[str, float], tuple[str, ...]], ...] = (
    ("defaults", {}, ("0110",)),
    ("counting", _COUNT, ("0000000000", "00100001100001000100000")),
    ("counting", {"init_scale": 1024.0, "growth_interval": 1}, ("0010110111000",)),
    ("hysteresis", {**_COUNT, "hysteresis": 2}, ("10101100011010001001110001",)),
    ("hysteresis", {**_COUNT, "hysteresis": 3}, ("11011100010101000011111011",)),
    (
        "rounding",
        {
            "init_scale": 1000 / 3,
            "growth_interval": 2,
            "growth_factor": 1.7,
            "backoff_factor": 0.3,
        },
        (_random(1, 0.3),),
    ),
    (
        "rounding",
        {"init_scale": 0.7, "growth_interval": 1, **_THIRDS},
        (_random(2, 0.4),),
    ),
    (
        "largest scales",
        {"init_scale": 2.0**126, "growth_interval": 1},
        ("000010011000",),
    ),
    (
        "largest scales",
        {"init_scale": 2.0**126, "growth_interval": 1, **_THIRDS},
        ("0000100110",),
    ),
    (
        "largest scales",
        {"init_scale": 2.0**1022, "growth_interval": 1},
        ("000010011000",),
    ),
    (
        "smallest scales",
        {"init_scale": 2.0**-120, "growth_interval": 2},
        ("1" * 31 + "000011",),
    ),
    (
        "smallest scales",
        {"init_scale": 2.0**-1060, "growth_interval": 2},
        ("1" * 16 + "0000",),
    ),
    (
        "min_scale",
        {"init_scale": 6.0, "growth_interval": 2, "min_scale": 1.0},
        ("1111010100110",),
    ),
    (
        "max_scale",
        {"init_scale": 1000.0, "growth_interval": 1, "max_scale": 4096.0, **_THIRDS},
        ("0000110000010",),
    ),
    (
        "giving up",
        {"init_scale": 2.0**9, "growth_interval": 9, "hysteresis": 1},
        ("1" * 24,),
    ),
    (
        "random",
        {"init_scale": 2.0**12, "growth_interval": 4, "hysteresis": 2},
        (_random(3, 0.2, 60), _random(4, 0.5)),
    ),
)
# Options of dialects -> fields of `Rule`.
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
    """Return all vectors: each dialect, with each option, in each family whose settings it has."""
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
    """Return fields of a `Rule` under a framework's own names; omit fields that it does not have."""
    targets = {
        **dialect.parameters,
        **{name: to for name, to in OPTIONS.items() if name in dialect.options},
    }
    targets = {
        name: "growth_factor" if to == "factor" else to for name, to in targets.items()
    }
    return {name: fields[to] for name, to in targets.items() if to in fields}


def _add(
    made: dict[str, Vector], name: str, params: Data, family: str, history: str
) -> None:
    """Add a vector, unless the dialect rejects the settings or already has this line."""
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


# -----------------------------------------------------------------------------------------------------
# the file


def as_file(vectors: Sequence[Vector], version: str) -> bytes:
    """Return the vectors as JSON Lines; the first line has the sha256 of all following bytes."""
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
