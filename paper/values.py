"""Numbers and tables that the text shows by name."""

from collections.abc import Callable
from dataclasses import dataclass

from figures.results import Result
from paper import number_format, sources
from paper.number_format import Value


@dataclass(frozen=True)
class Number:
    """A number of a data file.

    Attributes:
        stem: The file's stem; of another folder than the text's, as in `scale_crash@cpu-new-seeds`.
        value: A function of the file's content.
        form: How the value is printed; see `paper.number_format.show`.
    """

    stem: str
    value: Callable[[Result], Value]
    form: str = ".2f"

    def compute(self) -> Value:
        """Return the value in the current data files."""
        return self.value(sources.load(self.stem))


@dataclass(frozen=True)
class Formula:
    """A number of the library, or of several data files."""

    value: Callable[[], Value]
    form: str = ".2f"

    def compute(self) -> Value:
        """Return the value."""
        return self.value()


Cell = str | Number | Formula  # a text is Typst markup


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        columns: The heads.
        rows: The cells.
        align: One letter (l, c, r) per column.
        groups: Spanning heads: a text and the number of columns it spans.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    align: str
    groups: tuple[tuple[str, int], ...] = ()


def markup(cell: Cell) -> str:
    """Return a cell, or a number of the text, as Typst markup.

    Raises:
        ValueError: The value does not fit its form.
    """
    if isinstance(cell, str):
        return cell
    value = cell.compute()
    if isinstance(value, float) and cell.form != "2^":
        value = float(f"{value:.12g}")  # numpy's last bits are the processor's
    return number_format.show(value, cell.form)
