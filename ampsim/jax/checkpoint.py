"""Registration of the classes of this package: with JAX, ``jax.export``, and flax.

A rule is static, no leaf of the tree. So a checkpoint of leaves would restore into another rule
without an error. Two places hold the rule: the name of one leaf, by which orbax matches the leaves
of a checkpoint and a target, and an entry of flax's state dict.
"""

import dataclasses
import importlib.abc
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import export
from jax.tree_util import GetAttrKey

from ampsim.core.machine import Arithmetic, Rule
from ampsim.jax.trees import Tree

C = TypeVar("C")
FLAX = "flax.serialization"
SETTINGS = "settings"
_CLASSES: list[
    tuple[type, list[str], list[str]]
] = []  # fields saved, and fields compared


def pytree(marked: str | None = None) -> Callable[[type[C]], type[C]]:
    """Return a decorator that registers a frozen dataclass as a pytree that can be saved.

    Fields with the metadata ``static`` are no leaves. A restore by flax raises ValueError if a
    field is missing or unknown.

    Args:
        marked: Field whose name in a checkpoint includes the static fields, so that orbax and flax
            raise if those of the target differ. None: static fields are not compared.
    """

    def register(cls: type[C]) -> type[C]:
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        static = [field.name for field in fields if field.metadata.get("static")]
        data = [field.name for field in fields if field.name not in static]
        names = [*data, *static]

        def flatten(value: Any) -> tuple[list[Tree], tuple[Any, ...]]:
            held = value.__dict__
            return [held[name] for name in data], tuple([held[name] for name in static])

        def flatten_with_keys(
            value: Any,
        ) -> tuple[list[tuple[GetAttrKey, Tree]], tuple[Any, ...]]:
            children, values = flatten(value)
            mark = f" of {_text(values)}"
            keys = [
                GetAttrKey(name + mark if name == marked else name) for name in data
            ]
            return list(zip(keys, children, strict=True)), values

        def unflatten(values: tuple[Any, ...], children: Iterable[Tree]) -> C:
            # Not by __init__: each compiled call does this, and a frozen dataclass is slow to make.
            value = object.__new__(cls)
            value.__dict__.update(zip(names, (*children, *values), strict=True))
            return value

        jax.tree_util.register_pytree_with_keys(
            cls, flatten_with_keys, unflatten, flatten
        )
        export.register_pytree_node_serialization(
            cls,
            serialized_name=f"ampsim.{cls.__name__}",
            serialize_auxdata=lambda values: _text(values).encode(),
            deserialize_auxdata=lambda text: tuple(map(_decode, json.loads(text))),
        )
        _CLASSES.append((cls, data, static if marked else []))
        if FLAX in sys.modules:
            _register(sys.modules[FLAX], *_CLASSES[-1])
        return cls

    return register


def _text(values: Sequence[Any]) -> str:
    """Return static fields as JSON; of a dataclass, the fields that are not the defaults."""
    return json.dumps(values, default=_encode)


def _encode(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    if not dataclasses.is_dataclass(value):
        return value.item() if hasattr(value, "item") else repr(value)
    encoded = {"class": type(value).__name__}
    for field in dataclasses.fields(value):
        default = field.default
        make = field.default_factory
        if make is not dataclasses.MISSING:
            default = make()
        item = getattr(value, field.name)
        if item != default:
            encoded[field.name] = item
    return encoded


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = {name: _decode(item) for name, item in value.items() if name != "class"}
    return {"Rule": Rule, "Arithmetic": Arithmetic}[value["class"]](**fields)


def _register(flax: Any, cls: type, data: list[str], compared: list[str]) -> None:
    def to_state_dict(value: Any) -> dict[str, Any]:
        fields = {name: getattr(value, name) for name in data}
        saved = {
            name: flax.to_state_dict(x) for name, x in fields.items() if x is not None
        }
        settings = _text([getattr(value, name) for name in compared])
        return saved | {SETTINGS: settings} if compared else saved

    def from_state_dict(target: Any, state: dict[str, Any]) -> Any:
        expected = to_state_dict(target)
        place = f"at path {flax.current_path()}"
        if expected.keys() != state.keys():
            raise ValueError(
                f"{cls.__name__} saved with {sorted(state)}: expected {sorted(expected)}, {place}; "
                "restore into a target with the rule it was saved with"
            )
        if compared and state[SETTINGS] != expected[SETTINGS]:
            raise ValueError(
                f"saved with {state[SETTINGS]}: expected {expected[SETTINGS]}, {place}; restore "
                "into a target with the rule it was saved with, then continue under another with "
                "LossScale.from_state(rule, restored.state)"
            )
        restored = {}
        for name in expected.keys() - {SETTINGS}:
            field = getattr(target, name)
            leaves = flax.from_state_dict(field, state[name], name)
            restored[name] = jax.tree.map(jnp.asarray, leaves)
        return dataclasses.replace(target, **restored)

    flax.register_serialization_state(cls, to_state_dict, from_state_dict)


class _Waiting(importlib.abc.MetaPathFinder):
    """An import finder that detects the import of flax, then removes itself."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != FLAX:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for registered in _CLASSES:
                _register(module, *registered)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FLAX not in sys.modules:
    sys.meta_path.insert(0, _Waiting())
