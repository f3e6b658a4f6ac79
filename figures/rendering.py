"""Draw a figure by its name, and write its files."""

import gc
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure

from ampsim.core.files import write_atomically
from figures import _style, results
from figures.results import Result


def render(stem: str, folder: Path, *data: Path) -> list[Path]:
    """Draw one figure, and return the files written to `folder`.

    They are named ``<stem>.svg``, with ``<stem>.html`` where the figure has a page.

    Args:
        stem: the figure's name.
        folder: where its files go.
        data: folders of data files, each asked where those before it lack a file; the CPU's if none
            is named.
    """
    data = data or (results.CPU,)
    with _style.style(), uncollected():
        figure = draw(stem, *data)
        return [
            _style.save(figure, folder, stem),
            *write_page(stem, folder / f"{stem}.html", *data),
        ]


def write_page(stem: str, path: Path, *data: Path) -> list[Path]:
    """Write the page of a figure that has one, and return its path."""
    module = importlib.import_module(f"figures.{stem}")
    if not hasattr(module, "page"):
        return []
    page = module.page(*[results.load(name, *data) for name in module.DATA])
    write_atomically(path, page.encode())
    return [path]


def draw(stem: str, *data: Path) -> Figure:
    """Return one figure, with the name of the device in its corner."""
    return draw_results(
        stem,
        [
            results.load(name, *data)
            for name in importlib.import_module(f"figures.{stem}").DATA
        ],
    )


def draw_results(stem: str, runs: Sequence[Result]) -> Figure:
    """Return the figure of these results."""
    module = importlib.import_module(f"figures.{stem}")
    require_arms(stem, runs)
    figure: Figure = module.plot(*runs)
    _style.stamp(figure, getattr(module, "SOURCE", _style.devices(runs)))
    return figure


def experiments_of(stem: str) -> tuple[str, ...]:
    """Return the experiments whose data a figure draws."""
    names: tuple[str, ...] = importlib.import_module(f"figures.{stem}").DATA
    return names


def require_arms(stem: str, runs: Sequence[Result]) -> None:
    """Check the arms without which a figure cannot be drawn; it draws any others that there are.

    Raises:
        ValueError: An arm is missing; the message names it.
    """
    needs = getattr(importlib.import_module(f"figures.{stem}"), "NEEDS", {})
    for run in runs:
        found = ", ".join(run.arms)
        for arm in needs.get(run.stem, ()):
            if arm not in run.arms:
                raise ValueError(
                    f"{run.path}: the figure {stem} needs the arm {arm!r}; found {found}; add the arm"
                )


def render_file(stem: str, file: Path, folder: Path) -> Path:
    """Draw one figure from your own data file, as ``<file>.svg`` in `folder`; return its path.

    Other data that the figure reads is the committed data.

    Raises:
        OSError: The file cannot be opened, or the figure cannot be written.
        ValueError: The file is not data for this figure.
    """
    stems = importlib.import_module(f"figures.{stem}").DATA
    own = results.read(file, *stems)
    runs = [own if name == own.stem else results.load(name) for name in stems]
    with _style.style(), uncollected():
        try:
            figure = draw_results(stem, runs)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            reason = f"{type(error).__name__}: {error.args[0] if error.args else error}"
            raise ValueError(
                f"{file}: the data lacks arms or columns that {stem} draws: {reason}"
            ) from error
        return _style.save(figure, folder, file.stem)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector off: an eighth of the time goes into objects that live until the
    figure is saved.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
