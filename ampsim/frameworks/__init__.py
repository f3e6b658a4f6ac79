"""Adapters for the loss scalers of other frameworks, which run the frameworks' own code.

Each file of `adapters` drives one framework's package by the methods of `Adapter`; `load` returns
the adapter class. ``make frameworks`` installs the packages. Importing this module loads only the
standard library.

>>> from ampsim.frameworks import load
>>> adapter = load("torch")()
>>> adapter.start(init_scale=1024.0, growth_interval=1)
>>> adapter.step([2048.0])
Step(used=1024.0, stepped=True, unscaled=(2.0,), scale=2048.0)
"""

from ampsim.frameworks.registry import REGISTRY, load

__all__ = ["REGISTRY", "load"]
