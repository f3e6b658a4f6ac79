"""Draw the figures and their gallery: `python -m figures [--check | --pdf] [STEM ...]`.

Without options, writes the SVGs, the pages, and README.md into `figures/`. `--check` draws into a
temporary folder, compares the files with the committed ones, and exits with 1 if any differ. `--pdf`
writes PDFs into `build/figures`. `STEM --data FILE` draws one figure from your own data file, beside
that file. `--data FOLDER --out FOLDER` draws figures from a folder of data files; it uses committed
data for files that the folder lacks. Exit status: 0 success, 1 a difference or an error in the data,
2 invalid arguments.
"""

import argparse
import difflib
import importlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ampsim.core.extras import needing
from ampsim.core.output import run_command

with needing("figures"):
    from figures import _gallery, _style, results
    from figures.rendering import render, render_file, render_pdf


PDFS = _style.HERE.parent / "build" / "figures"


def stems() -> list[str]:
    """Return the name of every figure: the files with a function `plot`."""
    return sorted(
        path.stem
        for path in _style.HERE.glob("[a-z]*.py")
        if "\ndef plot(" in path.read_text("utf-8")
    )


def sources(stem: str, root: Path = results.DATA) -> list[Path]:
    """Return the folders of the devices that have this figure's data."""
    return results.folders(importlib.import_module(f"figures.{stem}").DATA, root)


def differing(paths: Sequence[Path], committed: Path = _style.HERE) -> list[str]:
    """Return names of rendered files whose committed counterpart is missing or has other bytes."""
    pairs = [(path, committed / path.name) for path in paths]
    return [
        new.name for new, old in pairs if not old.exists() or old.read_bytes() != new.read_bytes()
    ]


def check(names: Sequence[str], committed: Path = _style.HERE) -> int:
    """Compare each figure with the committed one; 1 if one differs."""
    wrong = []
    with tempfile.TemporaryDirectory(prefix="ampsim-figures-") as folder:
        for stem in names:
            bad = [
                name
                for data in sources(stem)
                for name in differing(render(stem, Path(folder), data), committed)
            ]
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
    given, unknown = parser().parse_known_args(argv)
    options = ["--check", "--pdf", "--data", "--out", "--help"]
    for name, allowed in [(name, options) for name in unknown] + [
        (name, stems()) for name in given.stems
    ]:
        if name not in allowed:
            near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.0)[0]
            expected = ", ".join(allowed)
            print(
                f"figures: error: {name!r}: expected one of {expected}; did you mean {near!r}?",
                file=sys.stderr,
            )
            return 2
    folder = bool(given.data and given.data.is_dir())
    wrong = (
        given.check or not given.out
        if folder
        else given.data and (given.check or len(given.stems) != 1)
    )
    if wrong or (given.out and not given.data) or (given.pdf and (given.check or given.data)):
        expected = (
            "[STEM ...] --data FOLDER --out FOLDER" if folder else "STEM --data FILE [--out FOLDER]"
        )
        print(f"figures: error: {' '.join(argv)}: expected {expected}", file=sys.stderr)
        return 2
    try:
        if folder:
            return render_folder(given.stems or stems(), given.data, given.out)
        if given.data:
            return render_own(given.stems[0], given.data, given.out or given.data.parent)
        if given.pdf:
            return render_pdfs(given.stems or stems())
        return check(given.stems or stems()) if given.check else render_all(given.stems or stems())
    except (OSError, ValueError) as error:
        command = (
            f"`python -m experiments.{given.stems[0]} --out FILE`"
            if given.data
            else "`python -m experiments all`"
        )
        print(f"figures: error: {error}; to create the data, run {command}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        "python -m figures", description=__doc__, epilog=f"figures: {', '.join(stems())}",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    made.add_argument("stems", nargs="*", metavar="STEM", help="figures to draw; default: all")
    made.add_argument("--check", action="store_true", help="compare with the committed figures")
    made.add_argument("--pdf", action="store_true", help="write PDFs into build/figures")
    made.add_argument("--data", type=Path, metavar="FILE", help="your own data: a file or a folder")
    made.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for the figures of --data; default: beside the file",
    )
    return made


def render_own(stem: str, file: Path, folder: Path) -> int:
    """Draw one figure from your own data file."""
    print(f"figures: {render_file(stem, file, folder)}")
    return 0


def render_folder(names: Sequence[str], data: Path, folder: Path) -> int:
    """Write the figures of a folder's data; copy the committed figure if one cannot be drawn."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, stem in enumerate(names, start=1):
        try:
            said = ", ".join(path.name for path in render(stem, folder, data, results.CPU))
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            for path in _style.HERE.glob(f"{stem}.[sh][vt][gm]*"):
                shutil.copy(path, folder)
            said = (
                f"{stem}: not drawn; copied the committed figure: {type(error).__name__}: {error}"
            )
        print(f"figures: {number} of {len(names)}: {said}", flush=True)
    if list(names) == stems():
        _gallery.write(folder, names, data, results.CPU)
    return 0


def render_pdfs(names: Sequence[str]) -> int:
    """Write the figures of the committed data as PDFs, one line each."""
    for number, stem in enumerate(names, start=1):
        print(f"figures: {number} of {len(names)}: {render_pdf(stem, PDFS)}", flush=True)
    return 0


def render_all(names: Sequence[str]) -> int:
    """Write the figures where they are committed, one line each."""
    for number, stem in enumerate(names, start=1):
        paths = [path for data in sources(stem) for path in render(stem, _style.HERE, data)]
        print(
            f"figures: {number} of {len(names)}: {', '.join(path.name for path in paths)}",
            flush=True,
        )
    if list(names) == stems():
        _gallery.write(_style.HERE, names)
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("figures", lambda: main(sys.argv[1:])))
