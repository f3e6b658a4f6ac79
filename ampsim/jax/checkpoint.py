"""Checkpoints by ``flax.serialization``: `saved` is a class decorator.

Classes are registered when flax is imported, before or after this package; this package does not import flax. A state
dict has the fields that are not part of a rule. On restore, the rule is that of the target, as for static fields in
flax.
"""

import dataclasses
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ampsim.jax.finite import Tree

C = TypeVar("C")
FLAX = "flax.serialization"
_CLASSES: list[type] = []


def saved(cls: type[C]) -> type[C]:
    """Register a pytree dataclass for ``to_state_dict``, ``to_bytes``, and checkpoints of flax.

    A restore raises ValueError if a field is missing or unknown, or its shape or dtype differs from the target's.
    """
    _CLASSES.append(cls)
    if FLAX in sys.modules:
        _register(sys.modules[FLAX], cls)
    return cls


def _register(flax: Any, cls: type) -> None:
    def to_state_dict(value: Any) -> dict[str, Any]:
        return {name: flax.to_state_dict(field) for name, field in _fields(value).items()}

    def from_state_dict(target: Any, state: dict[str, Any]) -> Any:
        fields = _fields(target)
        if fields.keys() != state.keys():
            raise ValueError(
                f"{cls.__name__} saved with {sorted(state)}: expected {sorted(fields)}, at path {flax.current_path()}; "
                "restore into a target with the rule it was saved with"
            )
        restored = {
            name: flax.from_state_dict(field, state[name], name) for name, field in fields.items()
        }
        return dataclasses.replace(target, **jax.tree.map(_restored, fields, restored))

    flax.register_serialization_state(cls, to_state_dict, from_state_dict)


def _fields(value: Any) -> dict[str, Tree]:
    data = (field.name for field in dataclasses.fields(value) if not field.metadata.get("static"))
    return {name: field for name in data if (field := getattr(value, name)) is not None}


def _restored(target: Any, leaf: Any) -> Any:
    (was, dtype), (shape, found) = (
        (jnp.shape(x), getattr(x, "dtype", jnp.result_type(x))) for x in (target, leaf)
    )
    if (was, dtype) != (shape, found):
        raise ValueError(
            f"saved as {found}{shape}: expected {dtype}{was}; restore into a target with the rule it was saved with"
        )
    return jnp.asarray(leaf)


class _Waiting(importlib.abc.MetaPathFinder):
    """An import finder that detects the import of flax, then removes itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
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
            for cls in _CLASSES:
                _register(module, cls)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if FLAX not in sys.modules:
    sys.meta_path.insert(0, _Waiting())
