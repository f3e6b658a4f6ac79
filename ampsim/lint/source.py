"""A file that is read: its tree, its functions, its names, its ignore comments."""

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from ampsim.lint.event import Event
from ampsim.lint.names import (
    OPTIMIZER,
    SCHEDULE,
    called,
    kind_by_class,
    kind_by_name,
    leaf,
    name_of,
    words_in,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
_CONCERNED = re.compile(
    r"scaler|scale_loss|DynamicScale|dynamic_scale|DynamicLossScale|cuda(\.| import )amp",
    re.I,
)
_WRAPPED = re.compile(r"(accelerator|fabric)\.backward\(|self\.(manual_backward)\(")
_WRAPPERS = {"accelerator": "accelerate", "fabric": "Fabric", "manual_backward": "Lightning"}
_LIBRARY = re.compile(
    r"import accelerate|from accelerate|sync_gradients|\.accumulate\(|\bFabric\b|lightning"
)
_FP16 = re.compile(
    r"(?<!variant=)(?<!revision=)['\"](fp16|16-mixed)['\"]|--mixed[-_]precision['\"]|"
    r"precision\s*=\s*16\b|step_was_skipped|GradScalerKwargs\(|accelerator\.mixed_precision"
)
_PRECISION = re.compile(
    r"(?:Accelerator|Fabric|Trainer)\((?:[^()]|\([^()]*\))*?precision\s*=\s*(?=['\"\d])(\S+?)[,\s)]"
)
_IGNORE = re.compile(r"#\s*ampsim:\s*ignore(?:\[([^\]]*)\])?", re.I)
_HINT = re.compile(r"clip_grad|ema|average|scaler|lerp_|clip_gradients", re.I)
_FIXED = re.compile(  # a scale of apex, or a level without one
    r"initialize\((?:[^()]|\([^()]*\))*\b(loss_scale=['\"]?[\d.]|opt_level=['\"]O[03])|"
    r"^\s*loss_scale = ['\"]?[\d.]",
    re.M,
)
_MAGIC = re.compile(r"^([ \t]*)(%%?[a-z]|!).*", re.M)  # of a notebook that was written to a file
_LIBRARIES = {
    "torch",
    "transformers",
    "timm",
    "diffusers",
    "lightning",
    "pytorch_lightning",
    "paddle",
    "accelerate",
}
_TOUCHED = {
    "step",
    "backward",
    "manual_backward",
    "autocast",
    "scale",
    "unscale_",
    "update",
    "zero_grad",
    ".grad",
    "update_parameters",
    "scale_loss",
    # of an average by hand
    "param_groups",
    "zip",
    "named_parameters",
    "state_dict",
}


class UnreadableError(Exception):
    """A file that is not Python source. The text says what was expected."""

    def __init__(self, what: str, line: int = 1, column: int = 1) -> None:
        super().__init__(what)
        self.line, self.column = line, column


class Source:
    """A parsed file: its tree, its text as it was decoded, and what happens in its functions.

    Attributes:
        nodes: every node of the tree, which is walked once; `functions`, `classes` and `calls` are some of them.
        owners: the classes of methods.
        assigned: the values that a name is assigned, by its last part.
        made: the last call that makes a name, by its last part.
        emptied: the names of what is emptied somewhere, as by a hook.
        imports: what imported names stand for, dotted; from a module beside this one, with a dot in front.
        wrapped: the library that has the scaler (accelerate, Fabric, Lightning), if the file asks for fp16; or "".
        accumulates: whether accelerate decides in this file which micro-batch ends a window.
        fixed: whether apex has a fixed scale, with which it skips nothing.
        disabled: whether each scaler that the file makes is made with ``enabled=False``.
    """

    def __init__(self, tree: ast.Module, text: str, path: Path = Path("<source>")) -> None:
        self.tree, self.text, self.path = tree, text, path
        self.traces: list[Trace] = []
        self._said: dict[ast.AST, frozenset[str]] = {}
        self.emptied = frozenset(re.findall(r"(\w+)\.(?:clear\(\)|pop\()", text))
        self.has_gradients = ".grad" in text
        self.wrapped, self.fixed = wrapped(text), bool(_FIXED.search(text))
        by_accelerate = self.wrapped == "accelerate" and ".accumulate(" in text
        self.accumulates = by_accelerate and "gradient_accumulation" in text
        made = re.findall(r"GradScaler\(([^)]*)", text)
        self.disabled = bool(made) and all(re.search(r"enabled\s*=\s*False", each) for each in made)
        self.nodes = [*ast.walk(tree)]
        self.functions = [node for node in self.nodes if isinstance(node, Function)]
        self.classes = {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.owners: dict[ast.AST, str] = {
            part: name for name, each in self.classes.items() for part in each.body
        }
        self.assigned: dict[str, list[ast.expr]] = {}
        self.imports: dict[str, str] = {}
        for node in self.nodes:
            self._note_names(node)
        self.made: dict[str, ast.Call] = {}
        for name, values in self.assigned.items():
            for call in filter(None, map(_made_by, values)):
                self.made[name] = call

    def _note_names(self, node: ast.AST) -> None:
        """Note what names are assigned or imported in a statement."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self.assigned.setdefault(leaf(name_of(target)), []).append(value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assigned.setdefault(leaf(name_of(target)), []).append(value)
            case ast.Import(names=names):
                for each in names:
                    root = each.name.partition(".")[0]
                    self.imports[each.asname or root] = each.name if each.asname else root
            case ast.ImportFrom(module=module, names=names, level=level):
                dotted = f"{'.' * level}{module or ''}"
                for each in names:
                    self.imports[each.asname or each.name] = f"{dotted}.{each.name}"

    def scalers(self) -> Iterator[tuple[ast.Call, str]]:
        """Yield the calls that make torch's scalers, each with the last part of its name."""
        for name, values in self.assigned.items():
            for call in filter(None, map(_made_by, values)):
                if called(call) in ("GradScaler", "ShardedGradScaler"):
                    yield call, name

    def is_chosen(self, call: ast.AST) -> bool:
        """Return whether a condition decides whether a call is made."""
        choices = (node for node in self.nodes if isinstance(node, ast.If | ast.IfExp))
        return any(call in ast.walk(choice) for choice in choices)

    def place_of(self, name: str) -> str:
        """Return where a name was made, to be printed after it: `` (made in line 41)``, or ""."""
        made = self.made.get(leaf(name))
        return f" (made in line {made.lineno})" if made else ""

    def said(self, node: ast.AST) -> frozenset[str]:
        """Return the words in a tree, which is asked for them again and again."""
        if node not in self._said:
            self._said[node] = frozenset(words_in(node))
        return self._said[node]

    @cached_property
    def foreign(self) -> frozenset[str]:
        """The names made by classes of the project that are not seen to count their calls.

        One called LR is torch's in kind.
        """
        found = set[str]()
        for name, call in self.made.items():
            dotted = self.imports.get(name_of(call.func), "torch")
            theirs = dotted.partition(".")[0] not in _LIBRARIES
            a_class = leaf(dotted)[:1].isupper() and not re.search("LR(?![a-z])", leaf(dotted))
            if theirs and a_class and not self._counts_calls(dotted):
                found.add(name)
        return frozenset(found)

    def _counts_calls(self, dotted: str) -> bool:
        """Return whether a class in a file near this one does not read an optimizer's count."""
        module, _, name = dotted.lstrip(".").rpartition(".")
        level = len(dotted) - len(dotted.lstrip("."))
        folders = self.path.resolve().parents[max(0, level - 1) : level or 6]
        files = (folder / f"{module.replace('.', '/')}.py" for folder in folders)
        file = next(filter(Path.is_file, files), None) if self.path.is_file() else None
        try:
            line = Source(_tree(read(file)), "").lineage(name) if file else []
        except UnreadableError:
            return False
        return bool(line) and not any("'step'" in ast.unparse(each) for each in line)

    @cached_property
    def prepared(self) -> bool:
        """Whether accelerate may have prepared the schedules, which wait for the step then."""
        optimizers_alone = False
        for call in self.calls_of("prepare") if self.wrapped == "accelerate" else ():
            kinds = {self.kind(name_of(arg)) for arg in call.args}
            if SCHEDULE in kinds or any(isinstance(arg, ast.Starred) for arg in call.args):
                return True
            optimizers_alone |= OPTIMIZER in kinds
        return self.wrapped == "accelerate" and not optimizers_alone

    @cached_property
    def touched(self) -> frozenset[str]:
        """The names of functions that do something that a rule looks at, or call one that does."""
        said = {each: {*words_in(each)} for each in self.functions}
        found = {
            each.name
            for each, words in said.items()
            if words & _TOUCHED or any(map(_HINT.search, words))
        }
        while more := {each.name for each, words in said.items() if words & found} - found:
            found |= more
        return frozenset(found)

    def kind(self, name: str) -> str:
        """Return what a name stands for, or ""."""
        return kind_by_name(name) or self.made_kind(name)

    def made_kind(self, name: str) -> str:
        """Return the kind of what makes a name, or ""."""
        made = self.made.get(leaf(name))
        return kind_by_class(name_of(made.func)) if made else ""

    def function(self, name: str) -> Function | None:
        """Return the function of this name that is no method, if there is one."""
        found = [each for each in self.functions if each.name == name and each not in self.owners]
        return found[0] if len(found) == 1 else None

    def lineage(self, name: str) -> list[ast.ClassDef]:
        """Return a class of this file, and its bases in this file."""
        line = [self.classes[name]] if name in self.classes else []
        for each in line:  # it grows by the bases
            bases = (self.classes.get(leaf(name_of(base))) for base in each.bases)
            line += [base for base in bases if base and base not in line]
        return line

    def heirs(self, name: str) -> list[str]:
        """Return the classes of this file that are a class or inherit from it."""
        lines = {each: self.lineage(each) for each in self.classes}
        return [each for each, line in lines.items() if name in (base.name for base in line)]

    def method(self, line: Sequence[ast.ClassDef], name: str) -> Function | None:
        """Return the first method of this name in some classes."""
        parts = (part for each in line for part in reversed(each.body))
        return next(
            (part for part in parts if isinstance(part, Function) and part.name == name), None
        )

    def events(self, *kinds: str) -> Iterator[tuple["Trace", Event]]:
        """Yield the events of some kinds, each with its trace."""
        return ((trace, event) for trace in self.traces for event in trace.of(*kinds))

    def calls_of(self, *names: str, scope: ast.AST | None = None) -> Iterator[ast.Call]:
        """Yield the calls of what has one of these last names, in a tree or the whole file."""
        nodes = self.calls if scope is None else ast.walk(scope)
        return (node for node in nodes if isinstance(node, ast.Call) and called(node) in names)

    def ignores(self, line: int, code: str) -> bool:
        """Return whether the comment at the end of a line asks to ignore a code."""
        asked = _IGNORE.search(self.text.split("\n")[line - 1])
        return asked is not None and (
            asked[1] is None or code in {each.strip().upper() for each in asked[1].split(",")}
        )


def _made_by(value: ast.expr) -> ast.Call | None:
    """Return the call that makes a value, also where a condition chooses it."""
    match value:
        case ast.Call() | ast.IfExp(body=ast.Call()):
            return value if isinstance(value, ast.Call) else _made_by(value.body)
        case ast.IfExp(orelse=ast.Call() as call):
            return call
    return None


class Trace(list[Event]):
    """The events of one function, `start`, and of the functions that it calls, in order."""

    def __init__(self, source: "Source", start: Function | None = None) -> None:
        super().__init__()
        self.source, self.start = source, start
        self.entered: dict[
            ast.Call, tuple[Function, list[Event]]
        ] = {}  # the functions that were followed, by call

    def of(
        self,
        *kinds: str,
        after: Event | None = None,
        before: Event | None = None,
        beside: Event | None = None,
        near: Event | None = None,
    ) -> list[Event]:
        """Return events between two, in one pass with `beside`, and in the loop of `near`."""
        part = self[self.index(after) + 1 if after else 0 : self.index(before) if before else None]
        beside = beside or near
        found = [each for each in part if each.kind in kinds]
        if beside:
            found = [each for each in found if not each.apart(beside)]
        return [each for each in found if not near or each.loops == near.loops]

    def skippable(self) -> list[Event]:
        """Return the steps that may be skipped: of scalers, and of optimizers in apex."""
        patched = [
            each
            for each in self.of("bare")
            if any(other.of == each.of for other in self.of("apex", beside=each))
        ]
        return self.of("step") + patched

    def scaled(self, before: Event) -> Event | None:
        """Return the last backward pass of a scaled loss before an event, on the way to it."""
        passes = self.of("backward", before=before, beside=before)
        return next((each for each in reversed(passes) if each.on.startswith("scaled")), None)

    def per_window(self, each: Event, steps: Sequence[Event]) -> bool:
        """Return whether an event happens per micro-batch, and some steps once per window."""
        return bool(steps and self.of("backward", near=each)) and all(
            each.within(step) for step in steps
        )


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
        raise UnreadableError(f"{error.strerror}: expected a readable file") from error
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise UnreadableError(
            f"{error}: expected Python source in its declared encoding, or UTF-8"
        ) from error


def parse(text: str, path: str = "<source>") -> Source | None:
    """Return the source, or None where no word in it concerns a loss scaler.

    Raises:
        UnreadableError: The text does not parse.
    """
    passes_back = "autocast" in text and ".backward(" in text
    concerned = passes_back or _CONCERNED.search(text) or wrapped(text)
    return Source(_tree(text), text, Path(path)) if concerned else None


def wrapped(text: str) -> str:
    """Return the library within which a text has its scaler, if it speaks of fp16; or ""."""
    found = _WRAPPED.search(text)
    by_hand = "GradScaler(" in text and ".scale(" in text
    if found is None or by_hand or not _FP16.search(text) or not _LIBRARY.search(text):
        return ""
    asked = _PRECISION.findall(text)  # where it is written, and not chosen
    if asked and not any(re.fullmatch("['\"]?(fp16|16|16-mixed)['\"]?", each) for each in asked):
        return ""
    return _WRAPPERS[found[1] or found[2]]


def _tree(text: str) -> ast.Module:
    """Return the tree of a text. UnreadableError: it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # an odd escape in somebody's string is no concern of ours
            try:
                return ast.parse(text)
            except SyntaxError:
                return ast.parse(_MAGIC.sub(r"\1pass", text))
    except SyntaxError as error:
        raise UnreadableError(
            f"{error.msg}: expected Python 3", error.lineno or 1, error.offset or 1
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableError(f"{error}: expected Python 3") from error
