"""What the names in a training loop stand for: scalers, optimizers, schedules, averages."""

import ast
import re
from collections.abc import Iterator, Mapping

SCALER, OPTIMIZER, SCHEDULE, AVERAGE = "scaler", "optimizer", "schedule", "average"

_BY_CLASS = (  # of what is called to make it
    (SCALER, re.compile(r"GradScaler|NativeScaler|LossScaler|AmpScaler", re.I)),
    (AVERAGE, re.compile(r"AveragedModel|ModelEma|ExponentialMovingAverage|^EMA|EMA$|EMAModel|EmaModel|^Ema[A-Z]")),
    (SCHEDULE, re.compile(r"Scheduler|LR$|LambdaLR|get_\w*schedule|CosineAnnealing\w+|ReduceLROnPlateau", re.I)),
    (OPTIMIZER, re.compile(r"^(SGD|Adam\w*|RMSprop|LBFGS|Lion|Lamb|LAMB|Adafactor|RAdam|NAdam|Adagrad)$|Optimizer$")),
)
_BY_NAME = (
    (SCALER, re.compile(r"scaler", re.I)),
    (SCHEDULE, re.compile(r"sched|lr_policy", re.I)),
    (AVERAGE, re.compile(r"(^|_)(ema|swa)(_|\d|$)|^(ema|swa)[A-Z]|averaged_model|EMA", re.A)),
    (OPTIMIZER, re.compile(r"optim|^opt(_|\d|s?$)|_opts?(_|\d|$)|^opt[A-Z]", re.I)),
)
_NO_AVERAGE = re.compile(r"loss|acc|time|meter|metric|norm|grad_", re.I)


def leaf(name: str) -> str:
    """Return the last part of a dotted name: ``self.state['ema']`` gives ``ema``."""
    if key := re.search(r"\['([^']*)'\]$", name):
        return key[1]
    return re.sub(r"\[.*?\]|\(\)", "", name).rpartition(".")[2]


def name_of(node: ast.AST, env: Mapping[str, str]) -> str:
    """Return a dotted name for an expression, by what `env` says of it; "?" where it has none."""
    match node:
        case ast.Name(id=name):
            found = name
        case ast.Attribute(value=value, attr=attr):
            found = f"{name_of(value, env)}.{attr}"
        case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
            found = f"{name_of(value, env)}[{key!r}]"
        case ast.Subscript(value=value, slice=ast.Constant(value=int(place))):
            found = f"{name_of(value, env)}[{place}]"
        case ast.Subscript(value=value):
            found = f"{name_of(value, env)}[]"
        case ast.Call(func=func):
            found = f"{name_of(func, env)}()"
        case _:
            return "?"
    return env.get(found, found)


def kind_by_class(called: str) -> str:
    """Return the kind of what a call of this name makes, or ""."""
    if "lr_scheduler." in called:
        return SCHEDULE
    if re.search(r"(^|\.)optim\.[A-Z]", called):
        return OPTIMIZER
    return next((kind for kind, pattern in _BY_CLASS if pattern.search(leaf(called))), "")


def kind_by_name(name: str) -> str:
    """Return the kind that a name alone says, or ""."""
    found = next((kind for kind, pattern in _BY_NAME if pattern.search(leaf(name))), "")
    return "" if found == AVERAGE and _NO_AVERAGE.search(leaf(name)) else found


def words_of(node: ast.AST, defined: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the identifiers and short strings in an expression and in what its names were assigned.

    A gradient, ``p.grad``, is the word ``.grad``, and a remainder the word ``%``.
    """
    return frozenset(_words(node, defined))


def _words(node: ast.AST, defined: Mapping[str, frozenset[str]]) -> Iterator[str]:
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name):
                yield name
                yield from defined.get(name, ())
            case ast.Attribute(attr="grad", value=value) if not is_module(value):
                yield ".grad"
            case ast.Attribute(attr=attr):
                yield attr
            case ast.Constant(value=str(text)) if len(text) < 40:
                yield text
            case ast.Mod():
                yield "%"


def is_module(node: ast.AST) -> bool:
    """Return whether ``node.grad`` is a function, as in torch.autograd.grad."""
    return name_of(node, {}).rpartition(".")[2] in ("autograd", "jax", "func", "tape", "nnx", "eqx", "mx", "ag")
