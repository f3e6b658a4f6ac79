"""Every example in a docstring is run; `test_docs` has those of pages."""

import doctest
import importlib
import pkgutil

import pytest

import ampsim

MODULES = [
    m.name
    for m in pkgutil.walk_packages(ampsim.__path__, "ampsim.")
    if not m.name.endswith("__main__")
]


@pytest.mark.parametrize("name", ["ampsim", *MODULES])
def test_examples_in_docstrings(name: str) -> None:
    if ".callbacks." in name:  # each needs its framework
        pytest.importorskip(name, exc_type=ModuleNotFoundError)
    assert doctest.testmod(importlib.import_module(name)).failed == 0
