"""Writes the module: what make() sets up, the step, what is in a checkpoint."""

import ast
import builtins
import re
from collections.abc import Iterator, Sequence

from ampsim.lint.adapt.facts import line_of, optimizer
from ampsim.lint.adapt.names import MODEL, Scope
from ampsim.lint.adapt.statements import Statements
from ampsim.lint.adapt.text import OWN, indented, lasting, names
from ampsim.lint.adapt.unroll import unrolled
from ampsim.lint.engine import RULES
from ampsim.lint.names import AVERAGE, OPTIMIZER, SCHEDULE
from ampsim.lint.rules.scaler import mentions_a_scaler, saved_optimizers
from ampsim.lint.source import Function, Source, UnreadableError, parse
from ampsim.lint.walk import traces_of

BATCHES = 6
REFUSED = ("AMP104", "AMP105", "AMP109")  # which torch's scaler answers with an error
HEAD = '''"""A loop for `ampsim check-loop`, read from {place} by `ampsim adapt`.

The order of calls is the source's. The models, losses and batches are stand-ins; a comment says what a line is for.
What is logged, and how a batch is split, is not in it: Loop takes logged= and split=.{todo}
"""

import torch
{imports}
from ampsim.testing import Loop

draw = torch.Generator().manual_seed(7)
batches = [torch.randn(8, 3, generator=draw) for _ in range({batches})]
'''
LOSS_OF = """

def loss_of(net, batch):
    return (net(batch) - 1.0).square().mean()
"""
ITERATE = '''

def iterate(scaler, loss, optimizer, parameters, clip_grad=None, update_grad=True, need_update=True):
    """As timm's NativeScaler, which is called instead of a torch scaler."""
    scaler.scale(loss).backward()
    if update_grad and need_update:
        scaler.unscale_(optimizer)
        if clip_grad:
            nn.utils.clip_grad_norm_(parameters, clip_grad)
        scaler.step(optimizer)
        scaler.update()
'''


class Module(Statements):
    """A loop as a module with ``make(scaler)``."""

    def module(self) -> str:
        """Return the whole file."""
        step = self.elsewhere(self.fixed())
        for name in self.stepped():
            self.objects.setdefault(name, OPTIMIZER)
        code = re.sub("#.*", "", "\n".join([step, *(text for text, _ in self.helpers.values())]))
        said = names(ast.parse(code).body, ast.Load) | names(ast.parse(code).body, ast.Store)
        self.kept = {name: first for name, first in self.kept.items() if name in said}
        self.settings = {name: each for name, each in self.settings.items() if name in said}
        lines = [*self.setup(), *(f"{name} = {first}" for name, first in self.kept.items())]
        for function, (text, params) in reversed(self.helpers.items()):
            lines += self.function(function.name, params, text, ())
        lines += self.function("step", (), step, sorted(self.counting & self.kept.keys()))
        if any(saved_optimizers(self.source)):
            lines += self.checkpoint()
        lines += self.returned_loop()
        for name in self.undefined(lines):
            lines.insert(1, f"{name} = None  # TODO: what the file does not say")
            self.todo.append(name)
        text = self.head() + LOSS_OF + ITERATE * ("iterate" in self.uses)
        return text + "\n\ndef make(scaler):\n" + "\n".join(each.rstrip() for each in indented(lines)) + "\n"

    def head(self) -> str:
        """Return what stands before the functions."""
        imports = {line_of(root, self.modules[root]) for root in self.uses if root in self.modules}
        lines = [*sorted(imports - {"import torch", "from torch import nn"}), "from torch import nn"]
        if AVERAGE in self.objects.values():
            lines.append("from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn")
        marks = f" TODO marks what could not be read: {len(self.todo)}." if self.todo else ""
        place = f"{self.path}:{getattr(self.place, 'lineno', 1)}"
        return HEAD.format(place=place, todo=marks, imports="\n".join(lines) + "\n", batches=BATCHES)

    def fixed(self) -> str:
        """Return the statements of the step, once all is known that outlives an iteration."""
        self.scope = Scope(getattr(self.place, "body", []), step=True)
        match self.place:
            case ast.For(
                target=ast.Tuple(elts=[ast.Name(id=counter), *_]), iter=ast.Call(func=ast.Name(id="enumerate"))
            ):
                self.counting.add(counter)
            case ast.For(target=ast.Name(id=counter), iter=ast.Call(func=ast.Name(id="range" | "trange"))):
                self.counting.add(counter)
        self.kept |= dict.fromkeys(self.counting, "-1")
        while True:
            before = {*self.kept}
            self.todo, self.helpers, self.settings = [], {}, {}
            step = self.written(self.scope)
            for name in sorted(lasting(step) - {*self.objects, "scaler"}):
                if not self.is_loss(name):
                    self.kept.setdefault(name, self.guess(name)[0])
            if before == {*self.kept}:
                return re.sub(r"(^|\n)return$", "", step)

    def elsewhere(self, step: str) -> str:
        """Return the step of a function that only steps, with what must have happened before it."""
        code = "\n".join([step, *(text for text, _ in self.helpers.values())])
        lines = []
        if "zero_grad(" not in code and isinstance(self.place, Function):
            lines += [f"{each}.zero_grad()" for each in dict.fromkeys(self.stepped())]
        if not re.search(r"backward\(|iterate\(", code):
            nets = dict.fromkeys(map(self.net, self.stepped()))
            lines += [f"scaler.scale(loss_of({net}, batch)).backward()" for net in nets]
        lines = [*(f"{each}  # which is done elsewhere" for each in lines), step]
        if "scaler.step(" in code and not re.search(r"\bupdate\(", code):
            mark = "" if isinstance(self.place, Function) else "TODO: no update() is seen in the loop"
            self.todo += [mark] * bool(mark)
            lines.append(f"scaler.update()  # {mark or 'which is done elsewhere'}")
        return "\n".join(lines)

    def function(self, name: str, params: Sequence[str], text: str, counters: Sequence[str]) -> list[str]:
        """Return the lines of a function in make()."""
        stored = names(ast.parse(text).body, ast.Store) | {*counters}
        outer = [each for each in self.kept if each in stored and each not in params]
        first = [f"nonlocal {', '.join(outer)}"] * bool(outer) + [f"{each} += 1" for each in counters]
        return ["", f"def {name}({', '.join(['batch', *params])}):", *indented([*first, text or "pass"])]

    def returned_loop(self) -> Iterator[str]:
        """Yield the last line of make(): a Loop with what training carries; counters of batches are data."""
        state = {each: each for each in self.carried()}
        state |= {f"data.{name}": f"lambda: {name}" for name, first in self.kept.items() if first != "None"}
        shown = ", ".join(f'"{key}": {value}' for key, value in state.items())
        last = ", save=save, load=load" if any(saved_optimizers(self.source)) else ""
        yield ""
        yield f"return Loop(step, {{{shown}}}{last})"

    def undefined(self, lines: Sequence[str]) -> list[str]:
        """Return the names that the lines of make() read, and nothing sets."""
        body = ast.parse("\n".join(lines).replace("\nreturn Loop", "\nLoop")).body
        inside = [each for part in body for each in ast.walk(part)]
        known = names(body, ast.Store) | {each.arg for each in inside if isinstance(each, ast.arg)} | {*dir(builtins)}
        known |= {each.name for each in inside if isinstance(each, ast.FunctionDef)} | {*OWN, *self.uses}
        return sorted(
            names(body, ast.Load) - known - {"torch", "nn", "scaler", "AveragedModel", "get_ema_multi_avg_fn"}
        )

    def carried(self) -> Iterator[str]:
        """Yield the objects that training carries, by their names in the written file."""
        optimizers = [name for name, kind in self.objects.items() if kind == OPTIMIZER]
        yield from dict.fromkeys(self.net(each) for each in optimizers)
        yield from (name for name, kind in self.objects.items() if kind in (OPTIMIZER, SCHEDULE, AVERAGE))

    def setup(self) -> Iterator[str]:
        """Yield the lines that make the objects and the settings."""
        of = {kind: [name for name, each in self.objects.items() if each == kind] for kind in self.objects.values()}
        optimizers = of.get(OPTIMIZER, ["optimizer"])
        yield "torch.manual_seed(0)"
        for net in dict.fromkeys(map(self.net, optimizers)):
            yield f"{net} = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))"
        for name in of.get(MODEL, ()):
            yield f"{name} = {self.net(self.trainer(name, optimizers))}"
        for name in optimizers:
            made, line, _ = optimizer(self.source, name)
            yield f"{name} = torch.optim.{made}({self.net(name)}.parameters(), lr=0.01)" + f"  # line {line}" * bool(
                line
            )
        for name in of.get(SCHEDULE, ()):
            yield f"{name} = torch.optim.lr_scheduler.StepLR({optimizers[0]}, 1, 0.9)"
        for name in of.get(AVERAGE, ()):
            yield f"{name} = AveragedModel({self.net(optimizers[0])}, multi_avg_fn=get_ema_multi_avg_fn(0.9))"
        for name, (value, where) in self.settings.items():
            said = self.names.get(name, name)
            about = ", ".join(each for each in (said if said != name else "", where) if each)
            yield f"{name} = {value}" + f"  # {about}" * bool(about)

    def trainer(self, model: str, optimizers: list[str]) -> str:
        """Return the optimizer of a model: the one that is made with it, or that is named alike."""
        made = {name: optimizer(self.source, name)[2] for name in optimizers}
        mine = [name for name, text in made.items() if re.search(rf"\b{model}\b", text)]
        alike = [
            name for name in optimizers if {*re.split("_|opt.*", name.lower())} & {*model.lower().split("_")} - {""}
        ]
        return [*mine, *alike, *optimizers][0]

    def checkpoint(self) -> Iterator[str]:
        """Yield save() and load() with what the file saves: the scaler only where it is mentioned."""
        carried = [*self.carried(), *["scaler"] * mentions_a_scaler(self.source)]
        saved = [name for name, first in self.kept.items() if first != "None" or not self.is_loss(name)]
        yield from ("", "def save():", "    return {")
        yield from (f'        "{name}": {name}.state_dict(),' for name in carried)
        yield from (f'        "{name}": {name},' for name in saved)
        yield from ("    }", "", "def load(checkpoint):")
        yield from (f"    nonlocal {', '.join(saved)}",) * bool(saved)
        yield from (f'    {name}.load_state_dict(checkpoint["{name}"])' for name in carried)
        yield from (f'    {name} = checkpoint["{name}"]' for name in saved)


def adapt(text: str, path: str, line: int | None = None) -> tuple[str, list[str]]:
    """Return a module with ``make(scaler)`` for the loop of a source, and its marks.

    Args:
        text: of the source.
        path: of it, as it is named in the module.
        line: in the loop that is meant; None is the first with a scaler's step.

    Raises:
        UnreadableError: the source is no Python, or no scaler steps in it, or not around this line.
    """
    source = parse(text)
    if source is not None:
        source = Source(unrolled(source.tree), text)
        for node in source.nodes:  # names of the module's own
            for name in {"id", "arg", "name"} & {*getattr(node, "_fields", ())}:
                if getattr(node, name) in OWN and not isinstance(node, ast.alias):
                    setattr(node, name, f"{getattr(node, name)}_")
        source.traces += traces_of(source)
    for trace in source.traces if source else ():
        for step in [*trace.of("step"), *(each for each in trace.of("bare") if trace.scaled(each))]:
            made = Module(source, trace, step, path)  # type: ignore[arg-type]
            made.refused = {node for code in REFUSED for node, _ in RULES[code].find(source)}  # type: ignore[arg-type]
            place = made.place
            if line is None or getattr(place, "lineno", 0) <= line <= (getattr(place, "end_lineno", 0) or 0):
                return made.module(), made.todo
    where = f" around line {line}" if line else ""
    raise UnreadableError(f"no scaler.step(optimizer) is seen{where}; expected a loop with torch's GradScaler")
