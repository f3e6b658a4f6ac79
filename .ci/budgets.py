"""Compare the size of each package with its budget: `python .ci/budgets.py [--lower]`.

pyproject.toml has three numbers per package: syntax nodes (`ast.expr` and `ast.stmt`), lines of
more than 100 columns, and comprehensions inside comprehensions. Budgets only fall. If a package
exceeds a budget, the script names the package and exits with status 1. `--lower` writes the current
numbers where they are lower, so that a reviewer sees each budget that rises.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
NAMES = ("syntax nodes", "lines over 100 columns", "nested comprehensions")
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def package_of(path: Path) -> str:
    """Return the package of a file: a folder of ampsim, or else the top folder."""
    folders = path.relative_to(ROOT).parts[:-1]
    return "/".join(folders[:2]) if folders[0] == "ampsim" else folders[0]


def measure(source: str) -> Counter[str]:
    """Count the three numbers of one file, by name."""
    found: Counter[str] = Counter()
    for node in ast.walk(ast.parse(source)):
        found["syntax nodes"] += isinstance(node, ast.expr | ast.stmt)
        if isinstance(node, COMPREHENSIONS):
            inner = (each for each in ast.walk(node) if each is not node)
            found["nested comprehensions"] += any(
                isinstance(each, COMPREHENSIONS) for each in inner
            )
    found["lines over 100 columns"] = sum(
        len(line) > 100 for line in source.splitlines()
    )
    return found


def measure_all() -> dict[str, list[int]]:
    """Count the numbers of each package, in the order of `NAMES`."""
    totals: dict[str, Counter[str]] = {}
    for folder in ("ampsim", "experiments", "figures", "paper", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            numbers = measure(path.read_text(encoding="utf-8"))
            totals.setdefault(package_of(path), Counter()).update(numbers)
    return {
        package: [numbers[name] for name in NAMES]
        for package, numbers in totals.items()
    }


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--lower",
        action="store_true",
        help="write the current numbers where they are lower",
    )
    lower = parser.parse_args().lower
    text = PROJECT.read_text(encoding="utf-8")
    budgets = tomllib.loads(text)["tool"]["budgets"]
    failures = []
    for package, numbers in measure_all().items():
        if package not in budgets:
            failures.append(
                f'{package}: no budget; add "{package}" = {numbers} to pyproject.toml'
            )
            continue
        for name, number, budget in zip(NAMES, numbers, budgets[package], strict=True):
            if number > budget:
                failures.append(
                    f"{package}: {number:,} {name}, expected at most {budget:,}"
                )
        if lower:
            lowest = [min(pair) for pair in zip(numbers, budgets[package], strict=True)]
            line = rf'(?m)^"{re.escape(package)}" = \[.*\]$'
            text = re.sub(line, f'"{package}" = {lowest}', text)
    if lower:
        PROJECT.write_text(text, encoding="utf-8")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
