"""The mutants of a file, by mutmut's operators and two of our own, and a sample of them.

mutmut itself mutates inside functions without a decorator only, and calls them through a trampoline, which JAX's
static arguments, torch.compile and the tests that order threads do not survive. Its operators are used by themselves.
Texts are left alone (`operator_string`): most are messages, and a message with XX in it teaches nothing.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

ROOT = Path(__file__).parent.parent.parent


class Room(NamedTuple):
    """Code that is mutated, and the tests that judge it; folders."""

    code: str
    tests: str


NAMES = ("core", "jax", "torch", "watch", "testing", "peers", "diagnose")
ROOMS = {name: Room(f"ampsim/{name}", f"tests/{name}") for name in NAMES}
ROOMS["runner"] = Room("experiments/runner", "tests/experiments")


@dataclass(frozen=True)
class Mutant:
    """A file with one expression changed."""

    file: str
    line: int
    operator: str
    diff: str  # the lines that differ, each with - or + before it
    source: str  # of the whole file

    @property
    def unit(self) -> str:
        return f"{self.file}:{self.line} {self.operator}\n{self.diff}"


def operator_condition(node: cst.If) -> Iterator[cst.If]:
    """Take the branch never, and always."""
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    for operator, name in ((cst.And(), "False"), (cst.Or(), "True")):
        yield node.with_changes(test=cst.BooleanOperation(left=test, operator=operator, right=cst.Name(name)))


def operator_statement(node: cst.Expr | cst.Raise | cst.Del) -> Iterator[cst.Pass]:
    """Leave a statement out."""
    if not isinstance(node, cst.Expr) or isinstance(node.value, cst.Call | cst.Await):
        yield cst.Pass()


Operator = Callable[[Any], Iterable[cst.CSTNode]]
OPERATORS: list[tuple[type | tuple[type, ...], Operator]] = [
    *((kind, operator) for kind, operator in mutators.mutation_operators if operator is not mutators.operator_string),
    (cst.If, operator_condition),
    ((cst.Expr, cst.Raise, cst.Del), operator_statement),
]
# What runs once, at import, or never: a change there fails every test or none.
LEFT_OUT = (cst.Annotation, cst.Import, cst.ImportFrom, cst.Decorator)


class _Places(cst.CSTVisitor):
    """The places of a file where an operator applies: (line, operator) -> pairs of a node and what replaces it."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[int, str], list[tuple[cst.CSTNode, cst.CSTNode]]] = defaultdict(list)

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, LEFT_OUT) or _is_all(node):
            return False
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                for replacement in operator(node):
                    line = self.get_metadata(PositionProvider, node).start.line
                    self.found[line, operator.__name__.removeprefix("operator_")].append((node, replacement))
        return True


def _is_all(node: cst.CSTNode) -> bool:
    names = [getattr(t.target, "value", "") for t in node.targets] if isinstance(node, cst.Assign) else []
    return names == ["__all__"]


def sample(package: str, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of a room, at most one per line and operator.

    They are those with the smallest hashes of the seed and their text, so that a change of other lines leaves the
    sample as it is.
    """
    ranked = []
    for path in sorted((ROOT / ROOMS[package].code).rglob("*.py")):
        source, file = path.read_text(), path.relative_to(ROOT).as_posix()
        wrapper, places = MetadataWrapper(cst.parse_module(source)), _Places()
        wrapper.visit(places)
        lines, seen = source.splitlines(), defaultdict(int)
        for (number, operator), pairs in sorted(places.found.items(), key=lambda item: item[0]):
            key = f"{seed} {file} {operator} {lines[number - 1].strip()}"
            seen[key] += 1
            rank = hashlib.sha256(f"{key} {seen[key]}".encode()).hexdigest()
            ranked.append((rank, file, number, operator, pairs, wrapper.module))
    found = (_mutant(*place) for place in sorted(ranked, key=lambda place: place[0]))
    return [mutant for mutant, _ in zip(filter(None, found), range(count), strict=False)]


def _mutant(rank: str, file: str, line: int, operator: str, pairs: list[Any], module: cst.Module) -> Mutant | None:
    """Return one of the mutants of a place; None where it is no Python."""
    node, replacement = pairs[int(rank, 16) % len(pairs)]
    source = module.deep_replace(node, replacement).code
    try:
        compile(source, file, "exec")
    except SyntaxError:
        return None
    changes = list(unified_diff(module.code.splitlines(), source.splitlines(), n=0, lineterm=""))[3:]
    diff = "\n".join(change[0] + " " + change[1:].strip() for change in changes if not change.startswith("@@"))
    return Mutant(file, line, operator, diff, source)
