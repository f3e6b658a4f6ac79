"""From a figure's name to the figure, and to its files."""

import gc
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure

from figures import _style, results


def render(stem: str, folder: Path, data: Path = results.CPU) -> list[Path]:
    """Draw one figure from the data files in `data`, and return the files written to `folder`.

    They are named ``<stem>.svg`` and ``<stem>.pdf``, and ``<stem>.<device>.svg`` where `data` is not the CPU's.
    """
    with _style.style(), uncollected():
        figure = draw(stem, data)
        return _style.save(figure, folder, stem if data.name == "cpu" else f"{stem}.{data.name}")


def draw(stem: str, data: Path = results.CPU) -> Figure:
    """Return one figure, with the name of the device in its corner."""
    module = importlib.import_module(f"figures.{stem}")
    runs = [results.load(name, data) for name in module.DATA]
    figure: Figure = module.plot(*runs)
    _style.stamp(figure, runs)
    return figure


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector off: an eighth of the time goes into objects that live until the figure is saved."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
