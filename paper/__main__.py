"""Build the paper, `paper/ampsim.pdf`: `python -m paper [--check | --draft | --here]`.

Computes the numbers that the text names. If there are problems, such as stale data, prints all of
them and exits with status 1.

--check  compare with the committed paper instead of writing it
--here   build from the data and figures in build/here, and mark the sentences that this data refutes
--draft  build with stale data, with a notice on every page
"""

import sys
from collections.abc import Sequence

from ampsim.core.extras import needing
from ampsim.core.files import write_atomically

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
        message = f"{' '.join(argv)!r}: expected --check, --draft, --here or nothing"
        print(f"paper: error: {message}\n{USAGE}", file=sys.stderr)
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
    pdf = build.build(draft=draft)
    write_atomically(build.PDF, pdf)
    print(f"paper: {build.pages(pdf)} pages, written to paper/ampsim.pdf")
    return 0


def _build_here() -> int:
    pdf, marked = build.build_here(HERE / "data" / "cpu", HERE / "figures")
    write_atomically(HERE / "paper" / "ampsim.pdf", pdf)
    result = "all its claims hold here"
    if marked:
        result = f"sentences that do not hold here are marked: {', '.join(marked)}"
    print(
        f"paper: {build.pages(pdf)} pages, written to build/here/paper/ampsim.pdf; {result}"
    )
    return 0


def _check() -> int:
    if build.build() == build.PDF.read_bytes():
        print("paper: same bytes")
        return 0
    print(
        "paper: paper/ampsim.pdf: differs from the PDF that the data gives; run `python -m paper`"
    )
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
