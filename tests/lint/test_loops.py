"""What the lines of a loop mean: whose names they are, on which way they lie, what a function or a
class brings in.
"""

import pytest

from ampsim.lint.engine import RULES, lint
from tests.lint.loops import END, LOOP, MAKES

LOOPS = {
    "a function of a function sees its names": (
        f"""\
{MAKES}def train(loader):
    for batch in loader:
        optimizer.zero_grad()
        total = scaler.scale(model(batch))
        def back():
            total.backward()
        back()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
        ["9 AMP103"],
    ),
    "a class of the file that a keyword is said to be of": (
        """\
class Stepper:
    def advance(self, batch):
        self.scaler.scale(self.model(batch)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
def fit(loader, *, stepper: Stepper, scheduler):
    for batch in loader:
        stepper.advance(batch)
        scheduler.step()
""",
        ["9 AMP101"],
    ),
    "of two methods of one name the last counts": (
        """\
class T:
    def end(self):
        pass
    def end(self):
        self.scheduler.step()
    def fit(self):
        for batch in self.loader:
            self.scaler.scale(self.model(batch)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.end()
""",
        ["5 AMP101"],
    ),
    "a method of the second base": (
        """\
class Mixin:
    pass
class Base:
    def end(self):
        self.scheduler.step()
class T(Mixin, Base):
    def fit(self):
        for batch in self.loader:
            self.scaler.scale(self.model(batch)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.end()
""",
        ["5 AMP101"],
    ),
    "what a function asks before it returns is none of the loop's": (
        f"""\
{MAKES}def tell(scaler):
    if scaler.get_scale() < 8:
        return
    optimizer.zero_grad()
{LOOP}{END}    tell(scaler)
    scheduler.step()
""",
        ["12 AMP101"],
    ),
    "unscaled where it is not clipped": (
        f"""\
{MAKES}{LOOP}    if a:
        scaler.unscale_(optimizer)
    else:
        pass
    if not a:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
{END}""",
        ["10 AMP103"],
    ),
    "gradients of an optimizer that steps elsewhere": (
        f"""\
{MAKES}for i, batch in enumerate(loader):
    first.zero_grad()
    scaler.scale(model(batch)).backward()
    if i % accum == 0:
        scaler.step(second)
        scaler.update()
""",
        [],
    ),
    "the last of two passes is still scaled": (
        f"""\
{MAKES}for batch in loader:
    scaler.scale(model(batch)).backward()
    scaler.unscale_(optimizer)
    scaler.scale(other(batch)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
{END}""",
        ["6 AMP103"],
    ),
    "ways that exclude each other at different depths": (
        f"""\
{MAKES}{LOOP}    if ready:
        if a:
            scaler.unscale_(optimizer)
    if not a:
        scaler.unscale_(optimizer)
{END}""",
        [],
    ),
    "a closure that a function of the file calls": (
        f"""\
{MAKES}def run(closure):
    scaler.unscale_(optimizer)
def train(loader):
    for batch in loader:
        def closure():
            optimizer.zero_grad()
            scaler.scale(model(batch)).backward()
        closure()
        run(closure)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
""",
        [],
    ),
    "unscaled before it raises": (
        f"""\
{MAKES}{LOOP}    if bad(batch):
        scaler.unscale_(optimizer)
        raise ValueError
    scaler.unscale_(optimizer)
{END}""",
        [],
    ),
}


@pytest.mark.parametrize(("text", "codes"), LOOPS.values(), ids=LOOPS)
def test_loops_give_expected_findings(text: str, codes: list[str]) -> None:
    # The loops are excerpts, of which many leave out where gradients are zeroed.
    found = lint(text, codes=RULES.keys() - {"AMP139"})
    assert [f"{each.line} {each.code}" for each in found] == codes
