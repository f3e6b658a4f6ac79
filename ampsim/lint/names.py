"""What the names in a training loop stand for: scalers, optimizers, schedules, averages."""

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

SCALER = "scaler"
OPTIMIZER = "optimizer"
SCHEDULE = "schedule"
AVERAGE = "average"

_BY_CLASS = {  # of what is called to make it
    SCALER: r"(?i)GradScaler|NativeScaler|LossScaler|AmpScaler",
    AVERAGE: (
        r"AveragedModel|ModelEma|ExponentialMovingAverage|EMAModel|EmaModel|"
        r"(^|\.)(EMA|Ema[A-Z])|EMA$"
    ),
    SCHEDULE: (
        r"(?i)lr_scheduler\.|Scheduler[^.]*$|LR$|LambdaLR|get_\w*schedule|CosineAnnealing|"
        r"ReduceLROnPlateau"
    ),
    OPTIMIZER: (
        r"(^|\.)(optim\.[A-Z]|Adam\w*$)|Optimizer$|"
        r"(^|\.)(SGD|RMSprop|LBFGS|Lion|Lamb|LAMB|Adafactor|RAdam|NAdam|Adagrad)$"
    ),
}
_BY_NAME = {
    SCALER: r"(?i)(?<!re)scaler",
    SCHEDULE: r"(?i)sched|lr_sche$|lr_policy",
    AVERAGE: r"(?a)(^|_)(ema|swa)(_|\d|$)|^(ema|swa)[A-Z]|averaged_model|EMA",
    OPTIMIZER: r"(?i)optim|^opt(_|\d|s?$)|_opts?(_|\d|$)|^opt[A-Z]",
}
_NO_AVERAGE = re.compile(r"(?i)loss|acc|time|meter|metric|norm|grad_")


def name_of(node: ast.AST) -> str:
    """Return a dotted name for an expression; "?" where it has none."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{name_of(value)}.{attr}"
        case ast.Subscript(value=value, slice=ast.Constant(value=str() | int() as key)):
            return f"{name_of(value)}[{key!r}]"
        case ast.Subscript(value=value):
            return f"{name_of(value)}[]"
        case ast.Call(func=func):
            return f"{name_of(func)}()"
    return "?"


@cache
def leaf(name: str) -> str:
    """Return the last part of a dotted name: ``self.state['ema']`` gives ``ema``."""
    key = re.search(r"\['([^']*)'\]$", name)
    return key[1] if key else re.sub(r"\[.*?\]|\(\)", "", name).rpartition(".")[2]


def called(node: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return leaf(name_of(node.func))


@cache
def kind_by_class(made_by: str) -> str:
    """Return the kind of what a call of this name makes, or ""."""
    for kind, pattern in _BY_CLASS.items():
        if re.search(pattern, made_by):
            return kind
    return ""


@cache
def kind_by_name(name: str) -> str:
    """Return the kind that a name alone says, or ""."""
    name = leaf(name)
    for kind, pattern in _BY_NAME.items():
        if re.search(pattern, name):
            averages_others = kind == AVERAGE and _NO_AVERAGE.search(name)
            return "" if averages_others else kind
    return ""


def parts_of(tree: ast.AST, kinds: Any) -> Iterator[Any]:
    """Yield the nodes of some kinds in a tree."""
    return (node for node in ast.walk(tree) if isinstance(node, kinds))


def assigned_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target of a statement with the value that it is assigned."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield target, value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value


def arguments_of(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, also those given by keyword."""
    return [*call.args, *(word.value for word in call.keywords)]


def keywords_of(call: ast.Call) -> dict[str | None, ast.expr]:
    """Return the arguments given by keyword."""
    return {word.arg: word.value for word in call.keywords}


def words_in(node: ast.AST) -> Iterator[str]:
    """Yield the identifiers and short strings in a tree, and ``.grad``, ``%``, and ``==``."""
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name):
                yield name
            case ast.Attribute(attr="grad", value=value) if not is_module(value):
                yield ".grad"
            case ast.Attribute(attr=attr):
                yield attr
            case ast.Constant(value=str(text)) if len(text) < 40:
                yield text
            case ast.Mod():
                yield "%"
            case ast.Compare(ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                yield from [] if isinstance(right, ast.Constant) else ["=="]


def is_wrapper(name: str) -> bool:
    """Return whether a name is what accelerate's or Fabric's object is called."""
    return bool(re.search(r"accelerator$|fabric$", leaf(name)))


def is_module(node: ast.AST) -> bool:
    """Return whether ``node.grad`` is a function, as in torch.autograd.grad."""
    return bool(
        re.fullmatch("autograd|jax|func|tape|nnx|eqx|mx|ag", leaf(name_of(node)))
    )


def has(words: Collection[str], pattern: str) -> bool:
    """Return whether a word is like a pattern, in upper or lower case."""
    return any(re.search(pattern, word, re.I) for word in words)
