"""Renders the figures, and the gallery of all: `python -m figures [--check] [STEM ...]`.

`--check` renders to a temporary folder and compares the bytes with the committed files; exit 1 names those that
differ. Exit 2: wrong use.
"""

import difflib
import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from figures import _gallery, _style, results
from figures.rendering import render

USAGE = "usage: python -m figures [--check] [STEM ...]"


def stems() -> list[str]:
    """Return the name of every figure: those of the gallery's sections that have a file here."""
    named = (stem for part in _gallery.SECTIONS.values() for stem in part)
    return sorted(stem for stem in named if (_style.HERE / f"{stem}.py").exists())


def sources(stem: str, root: Path = results.DATA) -> list[Path]:
    """Return the folders of the devices that have this figure's data."""
    return results.folders(importlib.import_module(f"figures.{stem}").DATA, root)


def differing(paths: Sequence[Path], committed: Path = _style.HERE) -> list[str]:
    """Return names of rendered files whose committed counterpart is missing or has other bytes."""
    pairs = [(path, committed / path.name) for path in paths]
    return [new.name for new, old in pairs if not old.exists() or old.read_bytes() != new.read_bytes()]


def check(names: Sequence[str], committed: Path = _style.HERE) -> int:
    """Compare each figure with the committed one; 1 if one differs."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="ampsim-figures-") as folder:
        for stem in names:
            bad = [name for data in sources(stem) for name in differing(render(stem, Path(folder), data), committed)]
            print(f"figures: {stem}: {'DIFFERS' if bad else 'same bytes'}")
            wrong += bad
        if list(names) == stems():
            wrong += differing([_gallery.write(Path(folder), names)], committed)
    if wrong:
        print(
            f"figures: {', '.join(wrong)}: expected the bytes that the committed data and matplotlib "
            "3.11.2 give; run `python -m figures` and commit the result",
            file=sys.stderr,
        )
    return 1 if wrong else 0


def main(argv: Sequence[str]) -> int:
    """Return the exit status."""
    options, names = [a for a in argv if a.startswith("-")], [a for a in argv if not a.startswith("-")]
    if {"-h", "--help"} & set(options):
        print(f"{USAGE}\n\n{__doc__}\nfigures: {', '.join(stems())}")
        return 0
    for given, allowed in [(o, ["--check", "--help"]) for o in options] + [(n, stems()) for n in names]:
        if given not in allowed:
            near = difflib.get_close_matches(given, allowed, n=1, cutoff=0.0)[0]
            expected = ", ".join(allowed)
            print(f"figures: error: {given!r}: expected one of {expected}; did you mean {near!r}?", file=sys.stderr)
            return 2
    try:
        return check(names or stems()) if options else render_all(names or stems())
    except (FileNotFoundError, ValueError) as error:
        print(f"figures: error: {error}; `python -m experiments all` makes the data", file=sys.stderr)
        return 1


def render_all(names: Sequence[str]) -> int:
    """Write the figures where they are committed, one line each."""
    for number, stem in enumerate(names, start=1):
        paths = [path for data in sources(stem) for path in render(stem, _style.HERE, data)]
        print(f"figures: {number} of {len(names)}: {', '.join(path.name for path in paths)}", flush=True)
    if list(names) == stems():
        _gallery.write(_style.HERE, names)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
