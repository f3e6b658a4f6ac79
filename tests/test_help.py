"""What `help` shows of a class: each field, by its name."""

import dataclasses
import importlib
import re

import pytest

FOUR = ["ampsim", "ampsim.probe", "ampsim.testing", "ampsim.testing.conductor"]


def undocumented(cls: type) -> list[str]:
    names = [each.name for each in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else cls._fields
    return [name for name in names if not re.search(rf"^ +{name}: \S", cls.__doc__ or "", re.MULTILINE)]


@pytest.mark.parametrize("package", FOUR)
def test_fields_of_public_classes_are_told(package: str) -> None:
    if package != "ampsim":
        pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
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
