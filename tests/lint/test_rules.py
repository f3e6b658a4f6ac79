"""Each rule: its wrong example has it, its right one has nothing, and what it says of itself is
true.
"""

import re
from pathlib import Path
from textwrap import indent

import pytest

from ampsim.lint.engine import RULES, lint
from ampsim.lint.output import explained
from ampsim.lint.source import UnreadableError
from tests.lint.loops import END, LOOP, MAKES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("code", RULES)
def test_wrong_example_has_only_its_finding(code: str) -> None:
    assert {each.code for each in lint(RULES[code].wrong, codes=RULES)} == {code}


@pytest.mark.parametrize("code", RULES)
def test_names_change_no_finding(code: str) -> None:
    renamed = re.sub(r"\bscaler\b", "amp_scaler", RULES[code].wrong)
    renamed = re.sub(r"\boptimizer\b", "opt", renamed)
    expected = {each.code for each in lint(RULES[code].wrong, codes=RULES)}
    assert {each.code for each in lint(renamed, codes=RULES)} == expected


@pytest.mark.parametrize("code", RULES)
def test_a_function_hides_no_finding(code: str) -> None:
    text = f"def train(model, loader, scaler, optimizer):\n{indent(RULES[code].wrong, '    ')}"
    expected = {each.code for each in lint(RULES[code].wrong, codes=RULES)}
    assert {each.code for each in lint(text, codes=RULES)} >= expected


@pytest.mark.parametrize("code", RULES)
def test_right_example_has_no_findings(code: str) -> None:
    assert lint(RULES[code].right, codes=RULES) == []


@pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.check])
def test_rule_names_an_existing_check(code: str) -> None:
    judge = pytest.importorskip(
        "ampsim.testing.loop.judge",
        reason="pip install -c constraints.txt 'ampsim[testing]'",
    )
    assert RULES[code].check in judge.CHECKS


@pytest.mark.parametrize("both", ["amp and last", "not (not amp or not last)"])
def test_negated_conjunction_allows_one_condition(both: str) -> None:
    body = f"    if {both}:\n        pass\n    else:\n        scaler.step(optimizer)\n"
    clip = "    if amp:\n        clip_grad_norm_(params, 1.0)\n"
    text = MAKES + LOOP + clip + body
    assert [each.code for each in lint(text, codes=["AMP103"])] == ["AMP103"]


@pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.thread])
def test_thread_is_an_issue_url(code: str) -> None:
    assert re.fullmatch(
        r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", RULES[code].thread
    )


@pytest.mark.parametrize("code", RULES)
def test_docs_page_matches_explain_output(code: str) -> None:
    """Made by: for each code, ampsim lint --explain CODE > docs/lint/CODE.md."""
    assert (ROOT / "docs/lint" / f"{code}.md").read_text() == explained(RULES[code])


RIGHT = {
    "a schedule that asks": """\
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped = scale > scaler.get_scale()
    if skipped:
        continue
    scheduler.step()
""",
    "a schedule that asks what a function found": """\
    scaler.step(optimizer)
    scaler.update()
    if moved(optimizer):
        scheduler.step()
""",
    "a schedule of epochs": """\
    scaler.step(optimizer)
    scaler.update()
scheduler.step()
""",
    "a diffusion scheduler": """\
    noise_scheduler.step(output, time, sample)
    scaler.step(optimizer)
    scaler.update()
""",
    "a mean of losses": """\
    scaler.step(optimizer)
    scaler.update()
    ema_loss.update(loss.item())
""",
    "clipping without a scaler": """\
    if scaler is None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
""",
    "clipping where a scaler is not used": """\
    if amp:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "a limit that is scaled": """\
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
""",
    "two optimizers": """\
    for each in optimizers:
        scaler.unscale_(each)
    for each in optimizers:
        scaler.step(each)
    scaler.update()
""",
    "a schedule of the branch without a scaler": """\
    if args.amp:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
        scheduler.step()
""",
    "clipping where one of two conditions excludes the scaler": """\
    if scaler is None and args.clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
""",
    "a schedule that waits for the optimizer's own count": """\
    taken = optimizer._step_count
    scaler.step(optimizer)
    scaler.update()
    if taken < optimizer._step_count < limit:
        scheduler.step()
""",
    "a rate by epoch of a schedule that knows its steps": """\
    scaler.step(optimizer)
    scaler.update()
    warmup = OneCycleLR(optimizer, steps_per_epoch=steps)
    adjust_lr(optimizer, warmup, epoch)
""",
    "an average that is a model": """\
    scaler.step(optimizer)
    scaler.update()
    print(ema(batch), ema_model(batch), validate_ema(model), scheduler.step(val_loss_of_step))
    ema = EMA(model)
""",
    "a state that is shown, copied into another optimizer, and handed on": """\
    scaler.step(optimizer)
    scaler.update()
    print(optimizer.state_dict(), optimizer.state_dict()["state"])
    other.load_state_dict(optimizer.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
class Wrapper:
    def state_dict(self):
        return self.optimizer.state_dict()
""",
    "a norm after the step": """\
    scaler.step(optimizer)
    print(max(param.grad.norm() for param in model.parameters()))
    scaler.update()
""",
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_correct_loop_variants_have_no_findings(body: str) -> None:
    assert lint(MAKES + LOOP + body, codes=RULES) == []


WRONG = {
    "behind a setting": ("AMP101", f"{END}    if args.sched:\n        sched.step()\n"),
    "before the step": ("AMP101", f"    lr_scheduler.step()\n{END}"),
    "in a try": (
        "AMP102",
        "    try:\n        scaler.step(optimizer)\n        ema.update(model)\n    finally:\n        scaler.update()\n",
    ),
    "by value": ("AMP103", f"    nn.utils.clip_grad_value_(params, 1)\n{END}"),
    "a schedule behind a part of the step's condition and a setting": (
        "AMP101",
        "    if ready(batch):\n        scaler.step(optimizer)\n        scaler.update()\n"
        "    if ready(batch) and scheduler is not None:\n        scheduler.step()\n",
    ),
    "an average by hand": (
        "AMP102",
        f"{END}    for slow, fast in zip(teacher.parameters(), model.parameters()):\n"
        "        slow.data.mul_(0.9).add_(0.1 * fast.data)\n",
    ),
    "an average by hand in a dictionary": (
        "AMP102",
        f"{END}    for name, p in model.named_parameters():\n        slow[name] = d * slow[name] + (1 - d) * p.data\n",
    ),
    "an average in a function of any name": (
        "AMP102",
        f"{END}    follow(slow, fast)\ndef follow(slow, fast):\n"
        "    for s, f in zip(slow.parameters(), fast.parameters()):\n"
        "        s.data.mul_(0.9).add_(f.data, alpha=0.1)\n",
    ),
    "an average in a function, by the names of the parameters": (
        "AMP102",
        f"{END}    follow(slow, fast)\ndef follow(slow, fast):\n"
        "    ours, theirs = dict(slow.named_parameters()), dict(fast.named_parameters())\n"
        "    for key in ours:\n        ours[key].data.mul_(0.9).add_(theirs[key].data, alpha=0.1)\n",
    ),
    "an average in a dictionary, in place": (
        "AMP102",
        f"{END}    for name, p in model.named_parameters():\n        slow[name].mul_(d).add_(p.data, alpha=1 - d)\n",
    ),
    "an average by a function": (
        "AMP102",
        f"{END}    apply_multi_tensor_ema(decay, *pairs)\n",
    ),
    "the optimizer in a file of its own": (
        "AMP112",
        f"{END}    torch.save(optimizer.state_dict(), path)\n",
    ),
    "the optimizer's state given to a class of the project": (
        "AMP112",
        f"{END}    save(asdict(Snapshot(state=optimizer.state_dict())))\n",
    ),
    "the optimizer's state behind a condition": (
        "AMP112",
        f"{END}    state = optimizer.state_dict() if optimizer else None\n    save(dict(state=state))\n",
    ),
}


@pytest.mark.parametrize(("code", "body"), WRONG.values(), ids=WRONG)
def test_bug_variants_are_found(code: str, body: str) -> None:
    assert {each.code for each in lint(MAKES + LOOP + body, codes=RULES)} == {code}


METHODS = """\
class Trainer:
    def __init__(self, model):
        self.amp = torch.amp.GradScaler()
        self.adapt = torch.optim.SGD(model.parameters())
        self.decay = torch.optim.lr_scheduler.StepLR(self.adapt, 1)

    def backward(self, loss):
        amp = self.amp
        amp.scale(loss).backward()

    def advance(self):
        nn.utils.clip_grad_norm_(self.params, 1.0)
        self.amp.step(self.adapt)
        self.amp.update()
        self.decay.step()

    def fit(self, loader):
        for batch in loader:
            self.backward(self.model(batch))
            self.advance()
            self.adapt.zero_grad()
"""


def test_names_are_followed_through_methods() -> None:
    assert [(each.line, each.code) for each in lint(METHODS)] == [
        (12, "AMP103"),
        (15, "AMP101"),
    ]
    unscaled = METHODS.replace(
        "        nn.utils", "        self.amp.unscale_(self.adapt)\n        nn.utils"
    )
    assert [each.code for each in lint(unscaled)] == ["AMP101"]


def test_loop_target_may_be_attribute() -> None:
    text = """\
class Trainer:
    def train(self):
        for self.epoch in range(9):
            for self.step, self.batch in self.loader:
                self.scaler.scale(self.model(self.batch)).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
            self.scheduler.step()
"""
    assert lint(text) == []
    assert [
        each.code
        for each in lint(
            text.replace("            self.sched", "                self.sched")
        )
    ] == ["AMP101"]


def test_branches_exclude_each_other() -> None:
    body = """\
    if limit is not None and limit > 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params, limit)
    else:
        scaler.unscale_(optimizer)
"""
    assert lint(MAKES + LOOP + body + END, codes=RULES) == []


@pytest.mark.parametrize(
    "test",
    ["args.amp and native", "args.amp or native", "scaler is not None and native"],
)
def test_repeated_condition_branches_exclude_each_other(
    test: str,
) -> None:
    text = f"""\
{MAKES}for batch in loader:
    loss = model(batch)
    if {test}:
        scaler.scale(loss).backward()
    else:
        loss.backward()
    if {test}:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
    elif limit > 0:
        torch.nn.utils.clip_grad_norm_(params, limit)
    if {test}:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()
"""
    assert lint(text) == []
    wrong = text.replace("        scaler.unscale_(optimizer)\n", "")
    assert [(each.line, each.code) for each in lint(wrong)] == [(9, "AMP103")]


def test_notebook_magics_are_ignored() -> None:
    text = f"%%file train.py\nif colab:\n    !pip install timm\n%matplotlib inline\n{RULES['AMP101'].wrong}"
    assert [(each.line, each.code) for each in lint(text)] == [(11, "AMP101")]
    with pytest.raises(UnreadableError, match="invalid syntax"):
        lint(f"{text}%%time\nif else:\n")
    assert lint("told = ('a scaler of %s'\n%name)\n") == []
