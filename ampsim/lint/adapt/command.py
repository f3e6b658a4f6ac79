"""``ampsim adapt``: write what check-loop needs for a loop. Exit status: 0 written, 1 with marks, 2 error."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ampsim.lint.adapt.module import adapt
from ampsim.lint.source import UnreadableError, read


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the module to the standard output, and what is left to fill in to standard error."""
    made = argparse.ArgumentParser(
        prog="ampsim adapt",
        description="Write a loop as a module for ampsim check-loop, as far as its source has it; TODO marks the rest.",
        epilog="example: ampsim adapt train.py > my_loop.py; ampsim check-loop my_loop:make",
    )
    made.add_argument("path", metavar="FILE", help="the source; - is standard input")
    made.add_argument("--line", type=int, metavar="N", help="in the loop that is meant; else the first with a step")
    options = made.parse_args(arguments)
    try:
        text, marks = adapt(read(Path(options.path)), options.path, options.line)
    except UnreadableError as error:
        print(f"ampsim adapt: {options.path}:{error.line}: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    for mark in marks:
        print(f"ampsim adapt: {options.path}: to fill in: {mark.removeprefix('TODO: ')}", file=sys.stderr)
    return 1 if marks else 0
