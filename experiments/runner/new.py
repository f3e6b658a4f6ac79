"""`python -m experiments new NAME` writes a small experiment that runs: a start for one's own."""

import argparse
import keyword
import re
from collections.abc import Sequence
from pathlib import Path

from experiments.runner.provenance import ROOT

TEMPLATES = Path(__file__).parent / "templates"
NEXT = """added a claim to {1}
To run it:
  python -m experiments.{0} --out build/{0}.jsonl
  python -m figures {0} --data build/{0}.jsonl
  python -m pytest tests/experiments/test_{0}.py
To write its data and figure into the checkout, and to check the claims:
  python -m experiments {0}
  python -m figures {0}
  python -m experiments claims
Describe the columns of its records in experiments/data/README.md."""


def main(argv: Sequence[str], root: Path = ROOT) -> int:
    """Write an experiment, its figure, its claim, and its test; return the exit status.

    Args:
        argv: Options of the command line.
        root: Folder of the checkout.
    """
    parser = argparse.ArgumentParser(
        "python -m experiments new",
        description="Write experiments/NAME.py, figures/NAME.py, and tests/experiments/test_NAME.py, "
        "and add a claim to figures/claims.py. What is written runs; change it to your question.",
    )
    parser.add_argument("name", metavar="NAME", help="a new name, such as growth_rate")
    name: str = parser.parse_args(argv).name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        parser.error(f"{name}: expected lower-case letters, digits, and underscores")
    claims = root / "figures" / "claims.py"
    places = {
        "experiment": root / "experiments" / f"{name}.py",
        "figure": root / "figures" / f"{name}.py",
        "test": root / "tests" / "experiments" / f"test_{name}.py",
    }
    if taken := [str(path) for path in places.values() if path.exists()]:
        parser.error(f"{', '.join(taken)}: expected a name without such a file")
    for template, path in {**places, "claim": claims}.items():
        text = (TEMPLATES / f"{template}.txt").read_text(encoding="utf-8")
        with path.open("a", encoding="utf-8") as file:
            file.write(text.replace("NAME", name))
    print("\n".join(f"wrote {path}" for path in places.values()))
    print(NEXT.format(name, claims))
    return 0
