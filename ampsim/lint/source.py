"""A file that is read: its tree, its functions, its names, its ignore comments."""

import ast
import io
import re
import sys
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from ampsim.lint.names import (
    SCHEDULE,
    assigned_in,
    called,
    keywords_of,
    kind_by_class,
    kind_by_name,
    leaf,
    name_of,
    parts_of,
    words_in,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
# A text without any of these has nothing to do with loss scaling, and is not walked.
_CONCERNED = re.compile(
    r"(?i)scaler|scale_loss|DynamicScale|dynamic_scale|DynamicLossScale|cuda(\.| import )amp",
)
_WRAPPED = re.compile(
    r"(?P<accelerate>accelerator\.backward\()|(?P<Fabric>fabric\.backward\()|"
    r"(?P<Lightning>self\.manual_backward\()"
)
_FP16 = re.compile(
    r"(?<!variant=)(?<!revision=)['\"](fp16|16-mixed)['\"]|--mixed[-_]precision['\"]|"
    r"precision\s*=\s*(16\b|[a-z_.]+\W)|step_was_skipped|GradScalerKwargs\(|"
    r"accelerator\.(mixed_precision|unscale_gradients)"
)
_OTHER_PRECISION = re.compile(  # where it is written, and not chosen
    r"(?:Accelerator|Fabric|Trainer)\((?:[^()]|\([^()]*\))*?precision\s*=\s*"
    r"(?!['\"]?(?:fp16|16|16-mixed)['\"]?[,\s)])(?:['\"][^'\"]*['\"]|\d+)\s*[,)]"
)
_IGNORE = re.compile(r"(?i)#\s*ampsim:\s*ignore(?:\[([^\]]*)\])?")
COMMENT = re.compile(r"#.*")
_FIXED = re.compile(  # a scale of apex, or a level without one
    r"(?m)initialize\((?:[^()]|\([^()]*\))*\b(loss_scale=['\"]?[\d.]|opt_level=['\"]O[03])|"
    r"^\s*loss_scale = ['\"]?[\d.]",
)
_MAGIC = re.compile(
    r"(?m)^([ \t]*)(%%?[a-z]|!).*"
)  # of a notebook that was written to a file


class UnreadableError(Exception):
    """A file that is not Python source. The text says what was expected."""


class Source:
    """A parsed file, and an index of it.

    Attributes:
        tree, text: the file; its text as it was decoded.
        nodes: every node of the tree; `functions`, `classes` and `calls` are some of them.
        classes: the classes by name; `owners` has the class of each method.
        assigned: the values that a name is assigned, by its last part.
        creations: the calls that make a name, each with the last part of the name.
        made: the last call that makes a name, by its last part.
        makers: what is called to make a name, or the class that a parameter is said to be of.
        wrapped: the library that has the scaler (accelerate, Fabric, Lightning), or "".
        fixed: whether apex has a fixed scale, with which it skips nothing.
        accumulates: whether accelerate decides in this file which micro-batch ends a window.
    """

    def __init__(self, tree: ast.Module, text: str) -> None:
        self.tree = tree
        self.text = text
        self.nodes = [*ast.walk(tree)]
        self.functions = [*parts_of(tree, Function)]
        self.calls = [*parts_of(tree, ast.Call)]
        self.classes = {node.name: node for node in parts_of(tree, ast.ClassDef)}
        self.owners: dict[ast.AST, str] = {}
        for name, each in self.classes.items():
            self.owners |= dict.fromkeys(each.body, name)
        self.assigned = defaultdict[str, list[ast.expr]](list)
        self.makers: dict[str, str] = {}
        for node in self.nodes:
            self._note_names(node)
        self.creations = list[tuple[ast.Call, str]]()
        for name, values in self.assigned.items():
            for call in filter(None, map(_made_by, values)):
                self.creations.append((call, name))
                self.makers[name] = name_of(call.func)
        self.made = {name: call for call, name in self.creations}
        self.wrapped = wrapped(text)
        self.fixed = bool(_FIXED.search(text))
        by_accelerate = self.wrapped == "accelerate" and ".accumulate(" in text
        self.accumulates = by_accelerate and "gradient_accumulation" in text
        self._words: dict[ast.AST, frozenset[str]] = {}

    def _note_names(self, node: ast.AST) -> None:
        """Note what names are assigned in a statement."""
        for target, value in assigned_in(node):
            self.assigned[leaf(name_of(target))].append(value)
        if isinstance(node, ast.arg) and node.annotation:
            self.makers[node.arg] = name_of(node.annotation)

    def scalers(self) -> Iterator[tuple[ast.Call, str]]:
        """Yield the calls that make torch's scalers, each with the last part of its name."""
        for call, name in self.creations:
            if called(call) in ("GradScaler", "ShardedGradScaler"):
                yield call, name

    @cached_property
    def disabled(self) -> bool:
        """Whether each scaler that the file makes is made with ``enabled=False``."""
        enabled = [keywords_of(call).get("enabled") for call, _ in self.scalers()]
        return bool(enabled) and all(
            isinstance(value, ast.Constant) and value.value is False
            for value in enabled
        )

    def defines(self, name: str) -> bool:
        """Return whether a function, method, or class of this file has a name."""
        return name in self.classes or any(each.name == name for each in self.functions)

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {
            part: node for node in self.nodes for part in ast.iter_child_nodes(node)
        }

    def around(self, node: ast.AST, kinds: Any = ast.AST) -> Iterator[Any]:
        """Yield the nodes of some kinds around a node, from the innermost to the module."""
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, kinds):
                yield node

    def place_of(self, name: str) -> str:
        """Return where a name was made, to be printed after it: `` (made in line 41)``, or ""."""
        made = self.made.get(leaf(name))
        return f" (made in line {made.lineno})" if made else ""

    def words(self, node: ast.AST) -> frozenset[str]:
        """Return the words in a tree, which is asked for them again and again."""
        if node not in self._words:
            self._words[node] = frozenset(words_in(node))
        return self._words[node]

    def kind(self, name: str) -> str:
        """Return the kind of what a name stands for, or ""."""
        made_by = self.makers.get(leaf(name), "")
        return kind_by_name(name) or kind_by_class(made_by)

    @cached_property
    def prepared(self) -> bool:
        """Whether accelerate may have prepared the schedules, which wait for the step then."""
        if self.wrapped != "accelerate":
            return False
        given = [arg for call in self.calls_of("prepare") for arg in call.args]
        kinds = {self.kind(name_of(arg)) for arg in given}
        return SCHEDULE in kinds or any(isinstance(arg, ast.Starred) for arg in given)

    def function(self, name: str) -> Function | None:
        """Return the function of this name that is no method, if there is one."""
        found = [each for each in self.functions if each.name == name]
        alone = [each for each in found if each not in self.owners]
        return alone[0] if len(alone) == 1 else None

    def method(self, owner: str, name: str) -> Function | None:
        """Return the method of a class of this file, or of the bases that are in this file."""
        line = [owner]
        for each in line:  # it grows by the bases
            found = self.classes.get(each)
            if found is None:
                continue
            for part in reversed(found.body):
                if isinstance(part, Function) and part.name == name:
                    return part
            bases = [leaf(name_of(base)) for base in found.bases]
            line += [base for base in bases if base not in line]
        return None

    def calls_of(self, name: str, scope: ast.AST | None = None) -> Iterator[ast.Call]:
        """Yield the calls of what has this last name, in a tree or the whole file."""
        calls = parts_of(scope, ast.Call) if scope else self.calls
        for call in calls:
            if called(call) == name:
                yield call

    def kinds_of(self, method: str) -> list[str]:
        """Return the kinds of the objects on which a method is called."""
        return [self.kind(name_of(owner)) for owner in self.owners_of(method)]

    def owners_of(
        self, method: str, scope: ast.AST | None = None
    ) -> Iterator[ast.expr]:
        """Yield the objects on which a method is called, in a tree or the whole file."""
        for call in self.calls_of(method, scope):
            if isinstance(call.func, ast.Attribute):
                yield call.func.value

    def ignores(self, line: int, code: str) -> bool:
        """Return whether the comment at the end of a line asks to ignore a code."""
        asked = _IGNORE.search(self.text.split("\n")[line - 1])
        if asked is None:
            return False
        return asked[1] is None or code in re.findall(r"\w+", asked[1].upper())


def _made_by(value: ast.expr) -> ast.Call | None:
    """Return the call that makes a value, also where a condition chooses it."""
    match value:
        case ast.Call():
            return value
        case (
            ast.IfExp(body=ast.Call() | ast.IfExp() as chosen)
            | ast.IfExp(orelse=ast.Call() as chosen)
        ):
            return _made_by(chosen)
    return None


def read(path: Path) -> str:
    """Return the text of a file, decoded as Python would; - is standard input.

    Raises:
        UnreadableError: The file is a notebook, cannot be read, or is not text.
    """
    if path.suffix == ".ipynb":
        raise UnreadableError(
            "a notebook: expected Python source; first run: jupyter nbconvert --to script"
        )
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except OSError as error:
        raise UnreadableError(
            f"{error.strerror}: expected a Python file, or a folder of some"
        ) from error
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise UnreadableError(
            f"{error}: expected Python source in its declared encoding, or UTF-8"
        ) from error


def parse(text: str) -> Source | None:
    """Return the source, or None where no word in it concerns a loss scaler.

    Raises:
        UnreadableError: The text does not parse.
    """
    tree = _tree(text)
    passes_back = "autocast" in text and ".backward(" in text
    concerned = passes_back or _CONCERNED.search(text) or wrapped(text)
    return Source(tree, text) if concerned else None


def wrapped(text: str) -> str:
    """Return the library within which a text has its scaler, if it speaks of fp16; or ""."""
    text = COMMENT.sub("", text)
    found = _WRAPPED.search(text)
    by_hand = "GradScaler(" in text and ".scale(" in text
    if (
        found is None
        or by_hand
        or not _FP16.search(text)
        or _OTHER_PRECISION.search(text)
    ):
        return ""
    return found.lastgroup or ""


def _tree(text: str) -> ast.Module:
    """Return the tree of a text. UnreadableError: it does not parse."""
    try:
        with warnings.catch_warnings():
            # An odd escape in somebody's string is no concern of this package.
            warnings.simplefilter("ignore")
            try:
                return ast.parse(text)
            except SyntaxError:
                return ast.parse(_MAGIC.sub(r"\1pass", text))
    except SyntaxError as error:
        what = f"{error.msg} in line {error.lineno or 1}"
        raise UnreadableError(f"{what}: expected Python 3") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"{error}: expected Python 3") from error
