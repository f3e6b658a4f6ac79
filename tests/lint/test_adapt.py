"""`ampsim adapt`: what it writes for a wrong loop is caught by the loop's law, and for a right one it is not."""

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ampsim.lint.adapt.module import adapt
from ampsim.lint.engine import RULES
from ampsim.lint.source import UnreadableError
from tests.lint.test_bugs import STEPS, TREE

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

SCALE, SKIP, RESUME = "scale_is_invisible", "skipped_step_never_happened", "resume_is_invisible"
CAUGHT = {  # of the corpus: where neither what is logged nor how a batch is split shows the bug
    "unet_468_clipped_before_unscaling": SCALE,
    "nerfacc_307_never_unscaled": SCALE,
    "areal_1659_one_branch_not_scaled": SCALE,
    "lightning_18828_schedule_goes_on": SKIP,
    "raft_104_schedule_between_step_and_update": SKIP,
    "lerobot_4652_average_goes_on": SKIP,
    "applio_860_second_optimizer_called_directly": SKIP,
    "paddle_67895_gradients_not_cleared": SKIP,
    "levanter_973_zero_gradients_for_a_skip": SKIP,
}
WHOLE = """
import torch
from torch.cuda.amp import GradScaler, autocast
from project.average import ModelEma

class Trainer:
    def __init__(self, args, model):
        self.args, self.model, self.ema = args, model, ModelEma(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        self.scaler = GradScaler(enabled=args.fp16)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.window, self.steps = 4, 0

    def train(self, loader):
        for index, (images, labels) in enumerate(loader):
            images, labels = images.cuda(), labels.cuda()
            with autocast():
                loss = self.criterion(self.model(images), labels)
            loss = loss / self.window
            self.scaler.scale(loss).backward()
            if (index + 1) % self.window == 0:
                {step}
            if index % self.args.print_freq == 0:
                print(f"loss {{loss.item()}}")

    def update(self):
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return self.scaler.get_scale() >= scale

    def save(self, path):
        torch.save({{"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(){saved}}}, path)
"""
SAVED = ', "scaler": self.scaler.state_dict(), "schedule": self.schedule.state_dict()'
GATED = "if self.update():\n                    self.schedule.step()\n                    self.ema.update(self.model)"
FREE = "self.update()\n                self.schedule.step()"


def broken(
    source: str, line: int | None = None, laws: Sequence[str] = (SCALE, SKIP, RESUME)
) -> tuple[list[str], list[str]]:
    """The laws that the written loop breaks, and its marks."""
    from ampsim.testing.loop.judge import judge_loop

    text, marks = adapt(source, "train.py", line)
    module: dict[str, Any] = {}
    exec(compile(text, "my_loop.py", "exec"), module)  # noqa: S102 - it was written here
    return [each.law.name for each in judge_loop(module["make"], module["batches"], laws) if each.is_finding], marks


def alone(step: str) -> str:
    """The corpus with this step as the only one."""
    others = {each for name, each in STEPS.items() if name != step}
    return ast.unparse(ast.Module([node for node in TREE.body if node not in others], []))


@pytest.mark.parametrize(("name", "law"), CAUGHT.items(), ids=CAUGHT)
def test_a_wrong_loop_of_the_corpus_is_caught_as_it_is_written(name: str, law: str) -> None:
    source = alone(name)
    laws, marks = broken(source, 1 + source[: source.index(f"def {name}(")].count("\n"), [law])
    assert (laws, len(marks)) == ([law], name == "levanter_973_zero_gradients_for_a_skip")  # which asks t.params()


@pytest.mark.parametrize(
    ("step", "saved", "laws"),
    [(GATED, SAVED, []), (FREE, SAVED, [SKIP]), (GATED, "", [RESUME])],
    ids=["right", "free", "lost"],
)
def test_methods_windows_averages_and_checkpoints_are_followed(step: str, saved: str, laws: list[str]) -> None:
    assert broken(WHOLE.format(step=step, saved=saved)) == (laws, [])


def test_what_is_written_is_the_order_of_calls_with_what_it_stands_for() -> None:
    text, _ = adapt(WHOLE.format(step=GATED, saved=SAVED), "train.py")
    assert "\n        loss = loss_of(net, batch)  # for self.criterion(self.model(images), labels), line 18\n" in text
    assert "    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)  # line 9\n" in text
    assert "    window = 2  # self.window, 4 in line 12\n" in text
    assert "print" not in text


STRANGE = """
class Trainer:
    def __init__(self, model, weights):
        self.scaler, self.optimizer = GradScaler(), torch.optim.SGD(model.parameters(), lr=0.1)

    def run(self, batch, train=True):
        self.optimizer.zero_grad()
        outputs = self.model(batch)
        loss = outputs
        mask = outputs.get("mask", None)
        areas = [each.area for each in batch]
        if mask is not None and self.weights[batch.kind]:
            loss = loss + torch.stack(areas)
        if train:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def fit(self, loader, held_out):
        for batch in loader:
            self.run(batch, True)
        for batch in held_out:
            self.run(batch, False)
"""


def test_no_number_stands_for_what_has_elements_or_becomes_a_loss() -> None:
    assert broken(STRANGE) == ([], [])


TWO = """
scaler = GradScaler()
both = [opt_a, opt_b]
for batch in loader:
    opt_a.zero_grad(), opt_b.zero_grad()
    scaler.scale(model(batch)).backward()
    for opt in {over}:
        scaler.unscale_(opt)
    for opt in {over}:
        {step}
    scaler.update()
"""


@pytest.mark.parametrize("over", ["(opt_a, opt_b)", "both"])
def test_a_loop_over_optimizers_is_each_of_them_once(over: str) -> None:
    source = TWO.format(over=over, step="scaler.step(opt)")
    assert broken(source) == ([], [])
    assert adapt(source, "train.py")[0].count("    scaler.step(opt_b)\n") == 1


def test_a_loop_over_optimizers_that_are_not_all_named_has_one_of_them() -> None:
    for source in (TWO.replace("both =", "both.append(opt_c)\nboth ="), TWO.replace("both = [opt_a, opt_b]\n", "")):
        text, marks = adapt(source.format(over="both", step="scaler.step(opt)"), "train.py")
        assert (text.count("scaler.step(opt)"), "range(2)" in text, marks) == (1, False, [])


def test_a_loop_over_optimizers_and_their_schedules_steps_with_each() -> None:
    source = TWO.replace("for opt in {over}:\n        {step}", "for opt, each in zip(both, {over}):\n        {step}")
    step = "scaler.step(opt)\n        each.step()"
    text, marks = adapt(source.format(over="(schedule_a, schedule_b)", step=step), "train.py")
    assert (text.count("    scaler.step(opt_b)\n        schedule_b.step()\n"), marks) == (1, [])
    text, marks = adapt(source.format(over="schedules", step=step), "train.py")
    assert ("opt = both\n        each = schedules\n        scaler.step(opt)\n        each.step()" in text, marks) == (
        True,
        [],
    )


def test_a_loop_over_optimizers_with_a_jump_stays_a_loop() -> None:
    step = "if frozen:\n            continue\n        scaler.step(opt)"
    assert "scaler.step(opt_b)" not in adapt(TWO.format(over="both", step=step), "train.py")[0]


def test_a_loop_that_says_not_to_train_is_none() -> None:
    line = STRANGE[: STRANGE.index("for batch in held_out")].count("\n") + 1
    with pytest.raises(UnreadableError, match="around line"):
        adapt(STRANGE, "train.py", line)


def test_a_loop_is_meant_by_any_of_its_lines() -> None:
    first = 1 + WHOLE[: WHOLE.index("for index")].count("\n")
    last = 1 + WHOLE[: WHOLE.index("print(f")].count("\n")
    whole = WHOLE.format(step=GATED, saved="") + "\ndef other():\n    pass\n"
    last += GATED.count("\n")
    for line in (first, last):
        assert f"train.py:{first} by" in adapt(whole, "train.py", line)[0]
    for line in (first - 1, last + 1):
        with pytest.raises(UnreadableError, match=f"around line {line}"):
            adapt(whole, "train.py", line)


def test_a_backward_pass_that_is_elsewhere_stands_before_the_step_of_a_loop() -> None:
    loop = "scaler = GradScaler()\nfor batch in loader:\n    train.forward(batch)\n    scaler.step(optimizer)\n"
    assert (
        "\n        scaler.scale(loss_of(net, batch)).backward()  # which"
        in adapt(loop + "    scaler.update()\n", "x")[0]
    )


def test_what_is_written_does_not_depend_on_the_hash_seed() -> None:
    names = [f"last_{k}" for k in range(9)]
    lines = [f"    if not {name}:\n        scaler.update()\n    {name} = len({name}_seen)" for name in names]
    source = "scaler = GradScaler()\nfor batch in loader:\n    scaler.step(optimizer)\n" + "\n".join(lines)
    text, _ = adapt(source, "train.py")
    assert re.findall(r"nonlocal (.*)", text) == [", ".join(names)]


@pytest.mark.parametrize("code", ["AMP101", "AMP102", "AMP103", "AMP110", "AMP111", "AMP123", "AMP124"])
def test_the_examples_of_rules_are_judged_as_they_are_meant(code: str) -> None:
    rule = RULES[code]
    assert [broken(loop, None, [rule.law])[0] for loop in (rule.wrong, rule.right)] == [[rule.law], []]


def test_what_cannot_be_read_is_marked_and_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from project.schedule import Warmup\nscaler, schedule = GradScaler(), None\nschedule = Warmup(optimizer)\n"
        "for batch in loader:\n    optimizer.zero_grad()\n    scaler.scale(model(batch)).backward()\n"
        "    scaler.step(optimizer)\n    scaler.update()\n    schedule.step()\n"
    )
    command = [sys.executable, "-m", "ampsim", "adapt", str(tmp_path / "train.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, "may count the optimizer's steps" in done.stderr) == (1, True)
    assert "schedule.step()  # TODO: schedule is of another file" in done.stdout
    (tmp_path / "train.py").write_text("scaler = 1\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected a loop with torch's GradScaler" in done.stderr


LOSS = "loss = model(batch) * rescaler"
LOOP = f"""
scaler = GradScaler()
for batch in loader:
    optimizer.zero_grad()
    rescaler = mask.sum() / whole.sum()
    {LOSS}
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
ALL = """
def step_all(self, grad_scaler):
    for _, optimizer in self.all.items():
        grad_scaler.step(optimizer)
"""


@pytest.mark.parametrize(
    ("source", "marks"),
    [
        (LOOP, 0),
        (LOOP.replace("scaler.scale(loss)", "cast(torch.Tensor, scaler.scale(loss))"), 0),
        (LOOP.replace(LOSS, f"weight = (epoch - warmup) / (num_epochs - warmup)\n    {LOSS} * weight"), 0),
        (LOOP.replace("    scaler.update()\n", ""), 1),
        (
            LOOP.replace(
                "    scaler.step", "    scaler.unscale_(optimizer)\n    scaler.unscale_(optimizer)\n    scaler.step"
            ),
            1,
        ),
        (ALL, 0),
    ],
    ids=["a number called scaler", "cast", "a difference of settings", "no update", "refused", "elsewhere"],
)
def test_what_would_raise_is_read_or_marked(source: str, marks: int) -> None:
    text, found = adapt(source, "train.py")
    assert len(found) == marks
    assert text.count("TODO: ") == marks
    if not found or "refuse" not in found[0]:
        assert broken(source) == ([], found)


HEAD = "scaler = GradScaler()\nfor batch in loader:\n    optimizer.zero_grad()\n"
STEP = "    scaler.step(optimizer)\n    scaler.update()\n"
BACK = "    scaler.scale(model(batch)).backward()\n"


@pytest.mark.parametrize(
    ("source", "written"),
    [
        (f"{HEAD}    scaler.scale(alpha * beta).backward()\n{STEP}", "loss_of(net, batch) * beta)"),
        (f"warmup = 3\nwarmup = 5\n{HEAD}    scaler.scale(model(batch) / warmup).backward()\n{STEP}",
         "warmup = 3  # line 1"),
        (f"p.add_argument('--max-weight', default=0.75)\n{HEAD}    scaler.scale(model(batch) * args.max_weight)"
         f".backward()\n{STEP}", "max_weight = 0.75  # args.max_weight, line 1"),
        (f"{HEAD}{BACK}    if level < 3:\n        scaler.step(optimizer)\n    scaler.update()\n", "level = 2"),
        (f"{HEAD}{BACK}    seen += 1\n    if seen > 3:\n        scaler.step(optimizer)\n    scaler.update()\n",
         "seen = 0"),
        (f"{HEAD}    try:\n        x = 1\n    except E:\n        pass\n    else:\n    {BACK}{STEP}",
         "scaler.scale(loss_of(net, batch)).backward()  # for model(batch_), line 9"),
        (f"{HEAD}{BACK}    for k in range(3):\n        seen = k\n    if seen > 1:\n        scaler.step(optimizer)\n"
         "    scaler.update()\n", '{"net": net, "optimizer": optimizer})'),
        (f"{HEAD}    scaler.scale({'m' * 53}(batch)).backward()\n{STEP}", f"# for {'m' * 53}(bat..., line 4"),
        (f"{HEAD}    scaler.scale({'m' * 52}(batch)).backward()\n{STEP}", f"# for {'m' * 52}(batch_), line 4"),
        (TWO.replace("scaler.unscale_(opt)\n    for opt in {over}:\n        {step}", "scaler.unscale_(opt)\n"
                     "        scaler.step(opt)").format(over="both"),
         "scaler.step(opt_a)\n        scaler.unscale_(opt_b)\n        scaler.step(opt_b)\n"),
        (f"{HEAD}{BACK}    scaler.step(opt_a)\n    scaler.update()\n    model(batch).backward()\n    opt_b.step()\n"
         "    opt_b.zero_grad()\n", "Loop(step, {\"net1\": net1, \"net2\": net2"),
    ],
    ids=["the last factor", "the first number", "an option with a dash", "below a limit", "a count from 0",
         "the else of a try", "set in a loop before", "a long comment", "a comment of 60", "in turn", "a bare step"],
)  # fmt: skip
def test_what_is_written_for_a_line(source: str, written: str) -> None:
    assert written in adapt(source, "train.py")[0]
