"""What `help` shows of a class: each field, by its name."""

import dataclasses
import importlib
import re

import pytest

CORE = ["ampsim", "ampsim.core.policies", "ampsim.core.theory"]
PACKAGES = [*CORE, "ampsim.jax", "ampsim.probe", "ampsim.testing", "ampsim.testing.conductor", "ampsim.torch"]


def undocumented(cls: type) -> list[str]:
    names = [each.name for each in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else cls._fields
    told = "\n".join(each.__doc__ or "" for each in cls.__mro__)
    return [name for name in names if not re.search(rf"^ +{name}: \S", told, re.MULTILINE)]


@pytest.mark.parametrize("package", PACKAGES)
def test_fields_of_public_classes_are_told(package: str) -> None:
    if package not in CORE:
        extra = "jax" if package == "ampsim.jax" else "torch"
        pytest.importorskip(extra, reason=f"pip install -c constraints.txt 'ampsim[{extra}]'")
    module = importlib.import_module(package)
    classes = [found for name in module.__all__ if isinstance(found := getattr(module, name), type)]
    records = [cls for cls in classes if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")]
    assert records
    assert {cls.__name__: undocumented(cls) for cls in records if undocumented(cls)} == {}


def test_a_field_that_is_not_told_is_seen() -> None:
    @dataclasses.dataclass
    class Planted:
        """A class.

        Attributes:
            told: in seconds.
        """

        told: float
        untold: float

    assert undocumented(Planted) == ["untold"]
