"""Read the sources of the paper: text, data files, and recorded traces.

A data file is *fresh* when its experiment, with today's source, defaults, and inputs, would write
the same header.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ampsim.core.files import DamagedFileError
from ampsim.core.json_lines import Record
from figures import results
from figures.results import CPU, DATA, Result

ROOT = Path(__file__).parent.parent
PAPER = ROOT / "paper"
TEXT = "".join(
    path.read_text(encoding="utf-8") for path in sorted((PAPER / "text").glob("*.typ"))
)
FOLDERS = [CPU]  # of the data files that the text is about: the first that has one


class PaperError(ValueError):
    """A reason why the paper cannot be built: the problem, what was expected, and the fix."""


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Read the data files of a folder in place of the committed ones of the same names."""
    FOLDERS.insert(0, folder)
    try:
        yield
    finally:
        FOLDERS.remove(folder)


def named(call: str, text: str = TEXT) -> list[str]:
    """Return the names that a text gives to a function of `lib.typ`, such as `num`, each once."""
    return list(dict.fromkeys(re.findall(rf'#{call}\("([^"]+)"', text)))


def load(stem: str) -> Result:
    """Return the content of a data file, or for "traces" of the recorded runs.

    Args:
        stem: The file's stem; of another folder than the text's, as in `scale_crash@cpu-new-seeds`.

    Raises:
        PaperError: No such file, or one that cannot be read.
    """
    name, _, folder = stem.partition("@")
    folders = [DATA / folder] if folder else FOLDERS
    try:
        return results.load(name, *folders)
    except (FileNotFoundError, DamagedFileError) as error:
        raise PaperError(str(error).replace(f"{ROOT}/", "")) from None


def origins(stems: Iterable[str]) -> dict[str, Record]:
    """Return the headers of data files by stem; without traces and files of other folders."""
    return {
        stem: load(stem).provenance
        for stem in stems
        if stem != "traces" and "@" not in stem
    }


def stale(stems: Iterable[str]) -> list[str]:
    """Name the data files that are not fresh, each with the reason and the command to run.

    Those of other folders are what an experiment wrote once, and stay.
    """
    from experiments.runner import provenance  # it loads what runs experiments

    return [
        f"experiments/data/cpu/{stem}.jsonl: stale, {why}; `python -m experiments.{stem} --force`"
        for stem, origin in origins(stems).items()
        if (why := provenance.why_stale(stem, origin))
    ]
