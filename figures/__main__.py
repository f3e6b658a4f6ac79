"""Draw the figures and their gallery: `python -m figures [--check] [STEM ...]`.

Without options, writes the SVGs, the pages, and README.md into `figures/`. `--check` draws into a
temporary folder, compares the files with the committed ones, and exits with 1 if any differ.
`STEM --data FILE` draws one figure from your own data file, beside that file. `--data FOLDER --out
FOLDER` draws figures from a folder of data files; it uses committed data for files that the folder
lacks. Exit status: 0 success, 1 a difference or an error in the data, 2 invalid arguments.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ampsim.core.extras import needing
from ampsim.core.output import run_command

with needing("figures"):
    from figures import _gallery, _style, results
    from figures.rendering import render, render_file


def stems() -> list[str]:
    """Return the name of every figure: the files with a function `plot`."""
    return sorted(
        path.stem
        for path in _style.HERE.glob("[a-z]*.py")
        if "\ndef plot(" in path.read_text("utf-8")
    )


def differing(paths: Sequence[Path], committed: Path = _style.HERE) -> list[str]:
    """Return names of rendered files whose committed counterpart is missing or has other bytes."""
    pairs = [(path, committed / path.name) for path in paths]
    return [
        new.name
        for new, old in pairs
        if not old.exists() or old.read_bytes() != new.read_bytes()
    ]


def check(names: Sequence[str], committed: Path = _style.HERE) -> int:
    """Compare each figure with the committed one; 1 if one differs."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="ampsim-figures-") as folder:
        for stem in names:
            bad = differing(render(stem, Path(folder)), committed)
            print(f"figures: {stem}: {'differs' if bad else 'unchanged'}")
            wrong += bad
        if list(names) == stems():
            wrong += differing([_gallery.write(Path(folder), names)], committed)
    if wrong:
        print(
            f"figures: {', '.join(wrong)}: differs from what the committed data gives with matplotlib 3.11.2; "
            "run `python -m figures` and commit the result",
            file=sys.stderr,
        )
    return 1 if wrong else 0


def main(argv: Sequence[str]) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(
        "python -m figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("stems", nargs="*", metavar="STEM", help=", ".join(stems()))
    add("--check", action="store_true", help="compare with the committed figures")
    add("--data", type=Path, metavar="FILE", help="your own data: a file or a folder")
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="for the figures of --data; default: beside it",
    )
    given = parser.parse_args(argv)
    names = given.stems or stems()
    if unknown := {*names} - {*stems()}:
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(stems())}")
    if (given.check and given.data) or (given.out and not given.data):
        parser.error(
            f"{' '.join(argv)}: expected [STEM ...] --data FILE [--out FOLDER], or --check"
        )
    if given.data and given.data.is_dir() and not given.out:
        parser.error(
            f"--data {given.data}: expected --out FOLDER for the figures of a folder"
        )
    if given.data and not given.data.is_dir() and len(given.stems) != 1:
        parser.error(f"--data {given.data}: expected one STEM for a file, or a folder")
    try:
        if given.check:
            return check(names)
        if given.data and given.data.is_dir():
            return render_folder(names, given.data, given.out)
        if given.data:
            print(
                f"figures: {render_file(names[0], given.data, given.out or given.data.parent)}"
            )
            return 0
        return render_all(names)
    except (OSError, ValueError) as error:
        print(
            f"figures: error: {error}; to create the data, run `python -m experiments STEM`",
            file=sys.stderr,
        )
        return 1


def render_folder(names: Sequence[str], data: Path, folder: Path) -> int:
    """Write the figures of a folder's data; copy the committed figure if one cannot be drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, stem in enumerate(names, start=1):
        try:
            said = ", ".join(
                path.name for path in render(stem, folder, data, results.CPU)
            )
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            for path in _style.HERE.glob(f"{stem}.[sh][vt][gm]*"):
                shutil.copy(path, folder)
            said = f"{stem}: not drawn; copied the committed figure: {type(error).__name__}: {error}"
        print(f"figures: {number} of {len(names)}: {said}", flush=True)
    if list(names) == stems():
        _gallery.write(folder, names, data, results.CPU)
    return 0


def render_all(names: Sequence[str]) -> int:
    """Write the figures where they are committed, one line each."""
    for number, stem in enumerate(names, start=1):
        said = ", ".join(path.name for path in render(stem, _style.HERE))
        print(f"figures: {number} of {len(names)}: {said}", flush=True)
    if list(names) == stems():
        _gallery.write(_style.HERE, names)
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("figures", lambda: main(sys.argv[1:])))
