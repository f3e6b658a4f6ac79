"""What the lines of a loop mean: whose names they are, on which way they lie, what a function or a class brings in."""

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
    "a loss that is scaled is multiplied from the left": (
        f"""\
{MAKES}for batch in loader:
    optimizer.zero_grad()
    (2 * scaler.scale(model(batch))).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
{END}""",
        ["5 AMP103"],
    ),
    "a flag that the other way of a condition sets": (
        f"""\
{MAKES}{LOOP}    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(params, 1.0)
    ok = True
    if norm <= 5.0:
        pass
    else:
        ok = False
    if ok:
        scaler.step(optimizer)
        scaler.update()
""",
        ["14 AMP110"],
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
    "arguments without a name have the parameter's": (
        f"""\
def finish(scaler, optimizer):
{END}for batch in loader:
    scaler.scale(model(batch)).backward()
    finish(state().amp, state().first)
    scheduler.step()
""",
        ["7 AMP101"],
    ),
    "gradients that are added by hand make no average": (
        f"""\
{MAKES}{LOOP}{END}    for p in model.parameters():
        p.data.mul_(0.9).add_(p.grad)
""",
        [],
    ),
    "values that are set to a part of themselves": (
        f"""\
{MAKES}{LOOP}{END}    for p in model.parameters():
        p.data = p.data * (1 - 0.1)
""",
        ["7 AMP131"],
    ),
    "of two functions of one name neither is known": (
        f"""\
if a:
    def finish():
        scheduler.step()
else:
    def finish():
        pass
{MAKES}def fit(loader):
    for batch in loader:
        optimizer.zero_grad()
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        finish()
""",
        [],
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
    "an assignment to two names": (
        f"""\
{MAKES}for batch in loader:
    optimizer.zero_grad()
    kept = loss = scaler.scale(model(batch))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
{END}""",
        ["6 AMP103"],
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
    "a state that is printed": (
        f"""\
{MAKES}{LOOP}{END}print(optimizer.state_dict())
""",
        [],
    ),
    "an import of the old name alone": (
        f"""\
{MAKES}import torch.cuda.amp
{LOOP}{END}""",
        [],
    ),
    "a scaler that is enabled by its second keyword": (
        f"""\
scaler = torch.amp.GradScaler(init_scale=2.0, enabled=bf16)
{LOOP}{END}""",
        ["1 AMP132"],
    ),
    "inf is looked for in a loss": (
        f"""\
{MAKES}{LOOP}    if torch.isinf(loss).any():
        continue
{END}""",
        [],
    ),
    "a scale that is read on the line of the update": (
        f"""\
{MAKES}{LOOP}    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update(); skip = scaler.get_scale() < before
    if not skip:
        scheduler.step()
""",
        [],
    ),
    "a scale that is read twice": (
        f"""\
{MAKES}{LOOP}    before = scaler.get_scale()
{END}    before = scaler.get_scale()
    print(before)
    skip = before > scaler.get_scale()
    if not skip:
        scheduler.step()
""",
        ["10 AMP129"],
    ),
    "an update on either way": (
        f"""\
{MAKES}{LOOP}    scaler.unscale_(optimizer)
    norm = clip_grad_norm_(params, 1)
    if torch.isfinite(norm):
        scaler.step(optimizer)
        scaler.update()
    else:
        scaler.update()
""",
        [],
    ),
    "gradients that are cleared on either way": (
        f"""\
{MAKES}for batch in loader:
    scaler.scale(model(batch)).backward()
    scale = scaler.get_scale()
{END}    if scaler.get_scale() >= scale:
        optimizer.zero_grad()
    else:
        optimizer.zero_grad()
""",
        [],
    ),
    "gradients that are cleared on one way": (
        f"""\
{MAKES}for batch in loader:
    scaler.scale(model(batch)).backward()
    scale = scaler.get_scale()
{END}    if scaler.get_scale() >= scale:
        optimizer.zero_grad()
""",
        ["8 AMP124"],
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
    "of two divisions by a short window the first is told": (
        f"""\
{MAKES}for i, batch in enumerate(loader):
    loss = model(batch) / accum
    other = head(batch) / accum
    scaler.scale(loss).backward()
    if (i + 1) % accum == 0 or i + 1 == len(loader):
        scaler.step(optimizer)
        scaler.update()
""",
        ["3 AMP115"],
    ),
    "a schedule where the scaler is on": (
        f"""\
{MAKES}{LOOP}{END}    if scaler.is_enabled():
        scheduler.step()
""",
        ["8 AMP101"],
    ),
    "a schedule in a loop that does more": (
        f"""\
{MAKES}{LOOP}{END}    for _ in range(window):
        print(1)
        scheduler.step()
""",
        [],
    ),
    "a flag is compared with False": (
        f"""\
{MAKES}{LOOP}    if flag == False:
        scaler.step(optimizer)
        scaler.update()
    if flag:
        scheduler.step()
""",
        [],
    ),
    "a flag that is not True": (
        f"""\
{MAKES}{LOOP}    if flag is not True:
        scaler.step(optimizer)
        scaler.update()
    if not flag:
        scheduler.step()
""",
        ["9 AMP101"],
    ),
    "a half model that is made whole again": (
        f"""\
{MAKES}model = model.half()
optimizer = SGD(model.parameters(), lr=0.1)
model.float()
{LOOP}{END}""",
        [],
    ),
    "a norm before steps on two ways": (
        f"""\
{MAKES}{LOOP}    print(torch.norm(p.grad))
    if a:
        scaler.step(optimizer)
    if not a:
        scaler.step(second)
    scaler.update()
""",
        ["5 AMP106"],
    ),
    "unscaled in a loop": (
        f"""\
{MAKES}{LOOP}    for _ in range(2):
        scaler.unscale_(optimizer)
{END}""",
        [],
    ),
    "two steps, of which one ends a window": (
        f"""\
{MAKES}for i, batch in enumerate(loader):
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    if i % accum == 0:
        scaler.step(optimizer)
{END}""",
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
    "blocks within blocks that save are told once": (
        f"""\
{MAKES}{LOOP}{END}if a:
    if b:
        torch.save(optimizer.state_dict(), p)
    torch.save(optimizer.state_dict(), q)
""",
        ["10 AMP112"],
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
    "a long text is no word": (
        f"""\
{MAKES}{LOOP}{END}    if mode == "the steps that the scaler skipped are none of these":
        scheduler.step()
""",
        ["8 AMP101"],
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
    "one call of a function that is called twice": (
        f"""\
{MAKES}def ready():
    scaler.unscale_(optimizer)
{LOOP}    ready()
    ready()
{END}""",
        [],
    ),
    "a norm apart from the step that follows": (
        f"""\
{MAKES}{LOOP}    if not a:
        print(torch.norm(p.grad))
    if a:
        scaler.step(optimizer)
    scaler.step(second)
    scaler.update()
""",
        [],
    ),
}


@pytest.mark.parametrize(("text", "codes"), LOOPS.values(), ids=LOOPS)
def test_what_is_read_of_a_loop(text: str, codes: list[str]) -> None:
    assert [f"{each.line} {each.code}" for each in lint(text, codes=RULES)] == codes
