"""`python -m experiments` lists the experiments; `all` runs those whose data is missing or stale.

`python -m experiments STEM [options]` is the same as `python -m experiments.STEM [options]`.
"""

import ast
import difflib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

USAGE = (
    "usage: python -m experiments [all | STEM] "
    "[--device cpu|cuda] [--smoke] [--jobs N] [--force | --reproduce] [--help]"
)
SHARED = ("--device", "--jobs", "--smoke", "--force", "--reproduce")  # what `all` understands


def stems() -> list[str]:
    """Every experiment, by name."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))


def question(stem: str) -> str:
    """The first paragraph of its docstring, without importing torch."""
    source = (Path(__file__).parent / f"{stem}.py").read_text(encoding="utf-8")
    doc = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(doc.split("\n\n")[0].split())


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0 good, 1 a run failed, 2 wrong use, 130 stopped by the user."""
    name, options = (argv[0], argv[1:]) if argv else ("", [])
    if name in ("", "-h", "--help"):
        print(USAGE)
        for stem in stems():
            print(f"\n{stem}\n    {question(stem)}")
        return 0
    if name != "all" and name not in stems():
        near = difflib.get_close_matches(name, [*stems(), "all"], n=1, cutoff=0.0)[0]
        print(f"experiments: error: {name!r}: expected one of {', '.join(stems())} or all; "
              f"did you mean {near!r}?", file=sys.stderr)  # fmt: skip
        return 2
    if name == "all" and (unknown := [o for o in options if o.startswith("-") and o.split("=")[0] not in SHARED]):
        print(f"experiments: error: {unknown[0]}: expected {', '.join(SHARED)} after all; "
              "to change a field name one experiment", file=sys.stderr)  # fmt: skip
        return 2
    from experiments.runner import cli

    return cli.main(name, options) if name != "all" else run_all(options)


def run_all(options: Sequence[str]) -> int:
    """One after the other, in workers that stay; what measures time has processes of its own."""
    from experiments.runner import cli, pool

    device = device_of(options)
    with pool.Workers() as workers:
        for stem in stems():
            status = 0
            if device not in cli.devices(stem):
                print(f"{stem}: left out, it does not run on {device}")
            elif missing := cli.missing_packages(stem):
                names = " and ".join(missing)
                print(f"{stem}: left out, {names} not installed: pip install 'ampsim[experiments,peers,trackers]'")
            elif cli.measures_time(stem):
                status = alone(stem, options)
            else:
                status = cli.main(stem, options, workers)
            sys.stdout.flush()  # what another process prints comes after it
            if status:
                return status
    return 0


def device_of(options: Sequence[str]) -> str:
    """The value of ``--device``; the default is cpu."""
    words = [word for option in options for word in option.split("=")]
    return words[words.index("--device") + 1] if "--device" in words[:-1] else "cpu"


def alone(stem: str, options: Sequence[str]) -> int:
    """One experiment in a process of its own: another one's threads and settings of XLA would be measured with it."""
    child = subprocess.Popen([sys.executable, "-m", "experiments", stem, *options])  # noqa: S603 - our own names
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:  # the child has it too, and says what it kept
            continue


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
