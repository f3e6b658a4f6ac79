"""Other projects' scalers, driven as they are: no copy of a rule, no stand-in for a class.

Each file of `adapters` drives one project's package by the few methods of `Adapter`, and `load`
returns the class that does so. ``make frameworks`` installs the packages. Importing this module
loads nothing but the standard library.

>>> from ampsim.frameworks import load
>>> adapter = load("torch")()
>>> adapter.start(init_scale=1024.0, growth_interval=1)
>>> adapter.step([2048.0])
Step(used=1024.0, stepped=True, unscaled=(2.0,), scale=2048.0)
"""

from ampsim.frameworks.registry import REGISTRY, load

__all__ = ["REGISTRY", "load"]
