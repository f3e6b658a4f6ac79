"""Builds the paper: `python -m paper [--check | --draft | --here]`.

Evaluates every number in it, writes the ledger `paper/numbers.json` and `paper/ampsim.pdf`. What cannot be traced to a
fresh data file is refused, all of it at once, with exit status 1.

--check  builds again in a clean folder, from the data, and compares all bytes with what lies here
--here   builds it from the data and figures in build/here, and marks the sentences that they do not bear out
--draft  builds although data is stale, and says so on every page
"""

import sys
from collections.abc import Sequence

from ampsim.core.extras import needing

with needing("paper"):
    from paper import build
    from paper.sources import ROOT, PaperError

USAGE = "usage: python -m paper [--check | --draft | --here]"
HERE = ROOT / "build" / "here"


def main(argv: Sequence[str]) -> int:
    """Return the exit status."""
    if {"-h", "--help"} & set(argv):
        print(f"{USAGE}\n\n{__doc__}")
        return 0
    if len(argv) > 1 or not set(argv) <= {"--check", "--draft", "--here"}:
        print(
            f"paper: error: {' '.join(argv)!r}: expected --check, --draft, --here or nothing\n{USAGE}", file=sys.stderr
        )
        return 2
    try:
        if "--here" in argv:
            return _build_here()
        return _check() if "--check" in argv else _build(draft="--draft" in argv)
    except PaperError as error:
        for line in str(error).splitlines():
            print(f"paper: error: {line}", file=sys.stderr)
        return 1


def _build(*, draft: bool) -> int:
    files = build.build(draft=draft)
    for name, content in files.items():
        (ROOT / name).write_bytes(content)
    print(f"paper: {build.pages(files['paper/ampsim.pdf'])} pages, written to paper/ampsim.pdf")
    return 0


def _build_here() -> int:
    (HERE / "paper").mkdir(parents=True, exist_ok=True)
    files = build.build_here(HERE / "data" / "cpu", HERE / "figures")
    marks = files.pop("marks").decode().split()
    for name, content in files.items():
        (HERE / name).write_bytes(content)
    pages = build.pages(files["paper/ampsim.pdf"])
    marked = f"sentences that do not hold here are marked: {', '.join(marks)}" if marks else "all its claims hold here"
    print(f"paper: {pages} pages, written to {(HERE / 'paper' / 'ampsim.pdf').relative_to(ROOT)}; {marked}")
    return 0


def _check() -> int:
    wrong = build.check()
    for name in wrong:
        print(f"paper: {name}: DIFFERS from what the data gives; run `python -m figures` and `python -m paper`")
    if not wrong:
        print("paper: same bytes")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
