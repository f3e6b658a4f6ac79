"""A file that is read: its tree, its functions, what its names were made by, and what it asks to ignore."""

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ampsim.lint.names import kind_by_class, kind_by_name, leaf, name_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
CONCERNED = re.compile(r"scaler|scale_loss|DynamicScale|dynamic_scale|DynamicLossScale", re.I)
_IGNORE = re.compile(r"#\s*ampsim:\s*ignore(?:\[([^\]]*)\])?", re.I)
_LIBRARIES = {"torch", "transformers", "timm", "diffusers", "lightning", "pytorch_lightning", "paddle", "accelerate"}
_TOUCHED = {"step", "backward", "scale", "unscale_", "update", "zero_grad", "grad", "update_parameters", "scale_loss"}
_TOUCHED_NAME = re.compile(r"clip_grad|ema|average|scaler", re.I)


class UnreadableError(Exception):
    """A file that is no Python source: says where, and what was expected."""

    def __init__(self, what: str, line: int = 1, column: int = 1) -> None:
        super().__init__(what)
        self.line, self.column = line, column


class Codes(Container[str]):
    """The codes in the brackets of ``# ampsim: ignore[...]``; without brackets, all."""

    def __init__(self, said: str | None) -> None:
        self.codes = None if said is None else {code.strip().upper() for code in said.split(",")}

    def __contains__(self, code: object) -> bool:
        """Return whether a code is among them."""
        return self.codes is None or code in self.codes


@dataclass
class Source:
    """A parsed file.

    Attributes:
        tree: its syntax tree.
        text: as it was decoded.
    """

    tree: ast.Module
    text: str
    functions: dict[str, list[Function]] = field(default_factory=dict)
    methods: dict[str, dict[str, Function]] = field(default_factory=dict)
    bases: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        inside: set[ast.AST] = set()
        for node in self.nodes:
            if isinstance(node, ast.ClassDef):
                own = {each.name: each for each in node.body if isinstance(each, Function)}
                self.methods[node.name] = own
                self.bases[node.name] = [leaf(name_of(base, {})) for base in node.bases]
                inside.update(own.values())
            elif isinstance(node, Function) and node not in inside:
                self.functions.setdefault(node.name, []).append(node)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree: it is walked once."""
        return [*ast.walk(self.tree)]

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """The kinds of names, by their last part, that are assigned what a known class makes."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if kind := kind_by_class(name_of(node.value.func, {})):
                    found.update({leaf(name_of(target, {})): kind for target in targets if name_of(target, {}) != "?"})
        return found

    @cached_property
    def foreign(self) -> frozenset[str]:
        """The names, by their last part, of what a class from another file of the same project makes."""
        imports = [each for each in self.nodes if isinstance(each, ast.ImportFrom)]
        classes = {
            alias.asname or alias.name
            for each in imports
            for alias in each.names
            if each.level or (each.module or "").partition(".")[0] not in _LIBRARIES
        }
        made = [each for each in self.nodes if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)]
        return frozenset(
            leaf(name_of(target, {}))
            for each in made
            for target in each.targets
            if isinstance(each.value, ast.Call) and name_of(each.value.func, {}) in classes
        )

    @cached_property
    def disabled(self) -> bool:
        """Whether each scaler that the file makes is made with ``enabled=False``."""
        made = [each for each in self.nodes if isinstance(each, ast.Call) and "GradScaler" in name_of(each.func, {})]
        off = [
            any(
                word.arg == "enabled" and isinstance(word.value, ast.Constant) and not word.value.value
                for word in each.keywords
            )
            for each in made
        ]
        return bool(off) and all(off)

    def kind(self, name: str) -> str:
        """Return what a name stands for, or ""."""
        return kind_by_name(name) or self.kinds.get(leaf(name), "")

    def method(self, owner: str, name: str, depth: int = 0) -> Function | None:
        """Return a method of a class of this file, or of its bases in this file."""
        if found := self.methods.get(owner, {}).get(name):
            return found
        above = self.bases.get(owner, []) if depth < 5 else []
        return next((found for base in above if (found := self.method(base, name, depth + 1))), None)

    @cached_property
    def touched(self) -> frozenset[str]:
        """The names of functions that do something that a rule looks at, or call one that does."""
        calls = {each: _mentioned(each) for each in self.all_functions}
        found = {each.name for each, said in calls.items() if said & _TOUCHED or any(map(_TOUCHED_NAME.search, said))}
        while more := {each.name for each, said in calls.items() if each.name not in found and said & found}:
            found |= more
        return frozenset(found)

    @cached_property
    def all_functions(self) -> list[Function]:
        """Every function and method, in the order of the file."""
        return [node for node in self.nodes if isinstance(node, Function)]

    @cached_property
    def ignored(self) -> Mapping[int, Container[str]]:
        """The codes that a line asks to ignore, by the number of the line."""
        found: dict[int, Container[str]] = {}
        try:
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                if token.type == tokenize.COMMENT and (asked := _IGNORE.search(token.string)):
                    found[token.start[0]] = Codes(asked[1])
        except (tokenize.TokenError, SyntaxError):
            pass  # the tree was parsed, so that nothing but the end of the file can be odd
        return found


def _mentioned(node: ast.AST) -> set[str]:
    return {
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute | ast.Name)
    }


def decode(data: bytes) -> str:
    """Return bytes as text, decoded as Python would. UnreadableError: they are none."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise UnreadableError(f"{error}; expected Python source in its declared encoding, or UTF-8") from error


def read(path: Path) -> str:
    """Return the text of a file; - is standard input. UnreadableError: it is none."""
    try:
        return decode(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
    except OSError as error:
        raise UnreadableError(f"{error.strerror}; expected a file that can be read") from error


def parse(text: str) -> Source | None:
    """Return the source, or None where no word in it concerns a loss scaler. UnreadableError: it does not parse."""
    if not CONCERNED.search(text):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in somebody's string is no concern of ours
            return Source(ast.parse(text), text)
    except SyntaxError as error:
        raise UnreadableError(f"{error.msg}; expected Python 3", error.lineno or 1, error.offset or 1) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"{error}; expected Python 3") from error
