"""Each rule: its wrong example has it, its right one has nothing, and what it says of itself is true."""

import re
from pathlib import Path

import pytest

from ampsim.lint.engine import RULES, lint
from ampsim.lint.output import explained
from ampsim.lint.rules import gradients, scaler, skips, windows
from ampsim.lint.source import UnreadableError

ROOT = Path(__file__).parents[2]
MAKES = "scaler = torch.amp.GradScaler()\n"
LOOP = """\
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
"""


@pytest.mark.parametrize("code", RULES)
def test_the_wrong_example_has_this_and_nothing_else(code: str) -> None:
    also = {"AMP122": {"AMP102"}}  # an average of every micro-batch goes on in a skip, too
    assert {each.code for each in lint(RULES[code].wrong, codes=RULES)} == {code} | also.get(code, set())


@pytest.mark.parametrize("code", RULES)
def test_the_right_example_is_clean(code: str) -> None:
    assert lint(RULES[code].right, codes=RULES) == []


@pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.law])
def test_the_law_is_one_of_the_kit(code: str) -> None:
    judge = pytest.importorskip("ampsim.testing.loop.judge", reason="pip install -c constraints.txt 'ampsim[testing]'")
    assert RULES[code].law in judge.LAWS


def test_torchs_scaler_of_shards_is_to_be_updated_too() -> None:
    wrong = RULES["AMP108"].wrong.replace("torch.amp.GradScaler()", "ShardedGradScaler()")
    assert [each.code for each in lint(wrong)] == ["AMP108"]


def test_two_whole_iterations_of_one_optimizer_in_a_loop_are_updated_twice() -> None:
    once = RULES["AMP108"].right.removeprefix(MAKES).partition("loader:\n")[2]
    assert lint(f"{MAKES}for batch in loader:\n{once}{once}", codes=["AMP126"]) == []


@pytest.mark.parametrize("both", ["amp and last", "not (not amp or not last)"])
def test_where_two_conditions_do_not_both_hold_one_of_them_may(both: str) -> None:
    body = f"    if {both}:\n        pass\n    else:\n        scaler.step(optimizer)\n"
    twice = "    if amp:\n        scaler.unscale_(optimizer)\n        scaler.update()\n"
    assert [each.code for each in lint(MAKES + LOOP + body + twice, codes=["AMP104"])] == ["AMP104"]


def test_codes_count_from_101_and_names_are_told_apart() -> None:
    assert [*RULES] == [f"AMP{101 + place}" for place in range(len(RULES))]
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


def test_each_function_of_the_rules_has_words() -> None:
    rooms = (gradients, scaler, skips, windows)
    own = {f for room in rooms for f in vars(room).values() if getattr(f, "__module__", "") == room.__name__}
    shared = {scaler.mentions_a_scaler, scaler.saved_optimizers}  # which adapt asks, too
    assert {f for f in own if callable(f) and not f.__name__.startswith("_")} - shared == {
        rule.asks for rule in RULES.values()
    }


@pytest.mark.parametrize("code", [code for code, rule in RULES.items() if rule.thread])
def test_a_thread_is_an_address(code: str) -> None:
    assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/issues/\d+", RULES[code].thread)


@pytest.mark.parametrize("code", RULES)
def test_the_page_in_the_docs_is_what_explain_prints(code: str) -> None:
    """Made by: for each code, ampsim lint --explain CODE > docs/lint/CODE.md."""
    assert (ROOT / "docs/lint" / f"{code}.md").read_text() == explained(RULES[code])


def test_the_docs_have_a_page_per_code() -> None:
    assert {path.stem for path in (ROOT / "docs/lint").glob("AMP*.md")} == {*RULES}


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
    "an update on the way of the guard": """\
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        scaler.update()
        continue
    scaler.step(optimizer)
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
    "a branch that leaves from within another": """\
    if large(loss):
        print(loss)
        if args.skips:
            scaler.update()
            continue
    scaler.step(optimizer)
    scaler.update()
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
def test_what_looks_like_a_bug_and_is_none(body: str) -> None:
    assert lint(MAKES + LOOP + body, codes=RULES) == []


END = "    scaler.step(optimizer)\n    scaler.update()\n"
WRONG = {
    "behind a setting": ("AMP101", f"{END}    if args.sched:\n        sched.step()\n"),
    "before the step": ("AMP101", f"    lr_scheduler.step()\n{END}"),
    "in a try": (
        "AMP102",
        "    try:\n        scaler.step(optimizer)\n        ema.update(model)\n    finally:\n        scaler.update()\n",
    ),
    "by value": ("AMP103", f"    nn.utils.clip_grad_value_(params, 1)\n{END}"),
    "unscaled twice": ("AMP105", f"    scaler.unscale_(optimizer)\n    scaler.unscale_(optimizer)\n{END}"),
    "a schedule behind a part of the step's condition and a setting": (
        "AMP101",
        "    if ready(batch):\n        scaler.step(optimizer)\n        scaler.update()\n"
        "    if ready(batch) and scheduler is not None:\n        scheduler.step()\n",
    ),
    "a schedule that is told where it is": ("AMP127", f"{END}    scheduler.step(epoch + index / len(loader))\n"),
    "an average by hand": (
        "AMP102",
        f"{END}    for slow, fast in zip(teacher.parameters(), model.parameters()):\n"
        "        slow.data.mul_(0.9).add_(0.1 * fast.data)\n",
    ),
    "an average by hand in a dictionary": (
        "AMP102",
        f"{END}    for name, p in model.named_parameters():\n        slow[name] = d * slow[name] + (1 - d) * p.data\n",
    ),
    "a schedule that steps once per micro-batch": (
        "AMP101",
        f"{END}    for _ in range(window):\n        scheduler.step()\n",
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
    "an average by a function": ("AMP102", f"{END}    apply_multi_tensor_ema(decay, *pairs)\n"),
    "an average that is called": ("AMP102", f"{END}    ema(runner.model, step=1)\nema = EMA(model)\n"),
    "clipped between step and update": (
        "AMP104",
        "    scaler.step(optimizer)\n    torch.nn.utils.clip_grad_norm_(params, 1.0)\n    scaler.update()\n",
    ),
    "the optimizer in a file of its own": ("AMP112", f"{END}    torch.save(optimizer.state_dict(), path)\n"),
    "the optimizer's state given to a class of the project": (
        "AMP112",
        f"{END}    save(asdict(Snapshot(state=optimizer.state_dict())))\n",
    ),
    "the optimizer's state behind a condition": (
        "AMP112",
        f"{END}    state = optimizer.state_dict() if optimizer else None\n    save(dict(state=state))\n",
    ),
    "a norm that sets a flag": (
        "AMP110",
        "    scaler.unscale_(optimizer)\n    norm = torch.nn.utils.clip_grad_norm_(params, 1.0)\n    ok = True\n"
        "    if norm > 5.0:\n        ok = False\n    if ok:\n        scaler.step(optimizer)\n        scaler.update()\n",
    ),
    "a norm that sets a flag with a window's name": (
        "AMP110",
        "    scaler.unscale_(optimizer)\n    norm = torch.nn.utils.clip_grad_norm_(params, 1.0)\n"
        "    update_grads = True\n    if not torch.isfinite(norm):\n        update_grads = False\n"
        "    if update_grads:\n        scaler.step(optimizer)\n        scaler.update()\n",
    ),
    "a schedule that is told it by name": ("AMP127", f"{END}    scheduler.step_update(num_updates=updates)\n"),
    "guarded within another condition": (
        "AMP110",
        "    scaler.unscale_(optimizer)\n    if limit > 0:\n        norm = clip_grad_norm_(params, limit)\n"
        f"        if not torch.isfinite(norm):\n            continue\n{END}",
    ),
    "guarded by the norm": (
        "AMP110",
        "    scaler.unscale_(optimizer)\n    norm = clip_grad_norm_(params, 1)\n    if norm < 9:\n"
        "        scaler.step(optimizer)\n        scaler.update()\n",
    ),
}


@pytest.mark.parametrize(("code", "body"), WRONG.values(), ids=WRONG)
def test_a_bug_in_another_dress(code: str, body: str) -> None:
    assert {each.code for each in lint(MAKES + LOOP + body, codes=RULES)} == {code}


OWN_PASSES = """\
for index, batch in enumerate(loader):
    if args.accumulate > 1:
        with amp.scale_loss(model(batch) / args.accumulate, optimizer) as scaled:
            scaled.backward()
        if (index + 1) % args.accumulate == 0:
            optimizer.step()
            scheduler.step()
    else:
        with amp.scale_loss(model(batch), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        ema.update(model)
"""
AS_ONE = """\
scaler = NativeScaler()
for index, batch in enumerate(loader):
    ends = (index + 1) % args.accumulate == 0
    if args.accumulate > 1:
        scaler(model(batch) / args.accumulate, optimizer, update_grad=ends)
        if ends:
            scheduler.step()
    else:
        scaler(model(batch), optimizer, update_grad=ends)
        ema.update(model)
"""


@pytest.mark.parametrize("text", [OWN_PASSES, AS_ONE], ids=["apex", "as one"])
def test_a_loop_with_and_without_windows_is_two(text: str) -> None:
    assert {each.code for each in lint(text, codes=RULES)} == {"AMP101", "AMP102"}


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
"""


def test_names_are_followed_through_methods_and_attributes() -> None:
    assert [(each.line, each.code) for each in lint(METHODS)] == [(12, "AMP103"), (15, "AMP101")]
    unscaled = METHODS.replace("        nn.utils", "        self.amp.unscale_(self.adapt)\n        nn.utils")
    assert [each.code for each in lint(unscaled)] == ["AMP101"]


def test_a_loop_whose_target_is_an_attribute_is_a_loop() -> None:
    text = """\
class Trainer:
    def train(self):
        for self.epoch in range(9):
            for self.step, self.batch in self.loader:
                self.scaler.scale(self.model(self.batch)).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            self.scheduler.step()
"""
    assert lint(text) == []
    assert [each.code for each in lint(text.replace("            self.sched", "                self.sched"))] == [
        "AMP101"
    ]


def test_a_scaler_that_is_made_to_do_nothing_is_none() -> None:
    body = f"{LOOP}{END}    scheduler.step()\n"
    assert lint("scaler = GradScaler(enabled=False)\n" + body) == []
    assert [each.code for each in lint("scaler = GradScaler(enabled=args.amp)\n" + body)] == ["AMP101"]


def test_two_branches_of_one_condition_exclude_each_other() -> None:
    body = """\
    if limit is not None and limit > 0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params, limit)
    else:
        scaler.unscale_(optimizer)
"""
    assert lint(MAKES + LOOP + body + END, codes=RULES) == []


def test_a_schedule_of_a_class_from_another_file_may_follow_the_optimizer_and_is_left_alone() -> None:
    body = f"{END}    scheduler.step()\n"
    theirs = "from schedulers import Poly\nscheduler = Poly(optimizer)\n"
    torchs = "from torch.optim.lr_scheduler import StepLR\nscheduler = StepLR(optimizer, 1)\n"
    assert lint(theirs + MAKES + LOOP + body) == []
    assert [each.code for each in lint(theirs.replace("Poly", "PolyLR") + MAKES + LOOP + body)] == ["AMP101"]
    function = theirs.replace("Poly", "make_poly")  # which makes one of torch's, as a rule
    assert [each.code for each in lint(function + MAKES + LOOP + body)] == ["AMP101"]
    assert [each.code for each in lint(torchs + MAKES + LOOP + body)] == ["AMP101"]


def test_a_schedules_class_is_read_in_the_file_beside_it(tmp_path: Path) -> None:
    """One that counts its calls is accused, one that reads the optimizer's count is not, nor one that is not found."""
    body = f"{MAKES}{LOOP}{END}    sched.step()\n"
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "schedules.py").write_text(
        "class Calls(LRScheduler):\n    pass\nclass Steps:\n    def step(self):\n        self.n = group['step']\n"
        "class Warm(Steps):\n    pass\n"
    )
    (tmp_path / "src" / "torn.py").write_text("class Calls(:\n")
    script = tmp_path / "src" / "train.py"
    found = {}
    for module, name in (
        ("src.schedules", "Calls"), (".schedules", "Calls"), ("schedules", "Steps"), ("schedules", "Warm"),
        ("schedules", "Other"),
        ("torn", "Calls"), ("nowhere", "Calls"), ("...schedules", "Calls"),
    ):  # fmt: skip
        script.write_text(f"from {module} import {name}\nsched = {name}(optimizer)\n{body}")
        found[module, name] = [each.code for each in lint(script.read_text(), str(script))]
    assert [each for each, codes in found.items() if codes == ["AMP101"]] == [
        ("src.schedules", "Calls"), (".schedules", "Calls"),
    ]  # fmt: skip
    assert sum(map(len, found.values())) == 2


def test_a_scaler_in_the_same_dictionary_is_saved_under_any_name() -> None:
    loop = "scaler = GradScaler()\nscaler.step(optimizer)\nsave = {{'optimizer': optimizer.state_dict(), 'amp': {}}}\n"
    assert lint(loop.format("scaler"), codes=["AMP112"]) == []
    assert len(lint(loop.format("scaler.get_scale()"), codes=["AMP112"])) == 1


FLAX = """\
def train_step(state, batch):
    dynamic_scale, is_finite, loss, grads = state.dynamic_scale.value_and_grad(loss_fn)(state.params)
    state = state.apply_gradients(grads=grads).replace(dynamic_scale=dynamic_scale)
    return jax.tree.map(functools.partial(jnp.where, is_finite), state, state)
"""


def test_a_verdict_that_selects_among_equals_selects_nothing() -> None:
    assert [(each.line, each.code) for each in lint(FLAX, codes=RULES)] == [(4, "AMP118")]
    assert (
        lint(FLAX.replace("state = state.apply", "new = state.apply").replace("finite), state", "finite), new")) == []
    )


def test_a_dynamic_scale_that_the_next_iteration_reads_is_kept() -> None:
    step = FLAX.replace("state.dynamic_scale", "dynamic_scale").replace(".replace(dynamic_scale=dynamic_scale)", "")
    loop = "def train(state, dynamic_scale):\n    for batch in batches:\n        old = state\n"
    body = [f"    {line}" for line in step.replace("state, state)", "state, old)").splitlines()[1:3]]
    select = "        state = jax.tree.map(functools.partial(jnp.where, is_finite), state, old)\n"
    assert lint("\n".join([loop.rstrip(), *body, select]), codes=RULES) == []
    assert [each.code for each in lint(step, codes=["AMP128"])] == ["AMP128"]


WRAPPER = """\
class Prepared:
    def __init__(self, optimizer):
        self.optimizer = optimizer
    def step(self):
        {step}
optimizer = Prepared(torch.optim.SGD(model.parameters(), lr=0.1))
def train(batch):
    scaler.scale(loss_of(model, batch)).backward()
    optimizer.step()
    scaler.update()
"""


@pytest.mark.parametrize("step", ["scaler.step(self.optimizer)", "self.optimizer.step()"])
def test_a_class_of_the_file_may_step_by_the_scaler(step: str) -> None:
    found = {each.code for each in lint(MAKES + WRAPPER.format(step=step), codes=RULES)}
    assert ("AMP111" in found) == step.startswith("self")


COMPARED = """
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    {}
"""


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        ("a = scaler.get_scale(); scaler.step(optimizer); scaler.update(); skip = a != scaler.get_scale()", ["AMP129"]),
        ("a = scaler.get_scale(); scaler.step(optimizer); scaler.update(); skip = a > scaler.get_scale()", []),
        ("scaler.step(optimizer); scaler.update(); a = scaler.get_scale(); skip = a > scaler.get_scale()", ["AMP129"]),
        ("scaler.step(optimizer); scaler.update(); a = scaler.get_scale(); skip = a != 65536.0", []),
    ],
)
def test_a_comparison_of_scales_tells_a_skip(lines: str, codes: list[str]) -> None:
    text = COMPARED.format("\n    ".join([*lines.split("; "), "if not skip:", "    scheduler.step()"]))
    assert [each.code for each in lint(text)] == codes


def test_a_scale_that_is_kept_for_the_next_step_or_only_told_is_no_wrong_comparison() -> None:
    kept = "scaler.step(optimizer); scaler.update(); s = scaler.get_scale(); if s >= last: scheduler.step(); last = s"
    told = "a = scaler.get_scale(); scaler.step(optimizer); scaler.update(); print(a == scaler.get_scale())"
    for lines in (kept, told):
        assert lint(COMPARED.format("\n    ".join(lines.split("; ")))) == []


def test_what_runs_where_the_scaler_is_off_runs_in_no_skip() -> None:
    lines = ["scaler.step(optimizer)", "scaler.update()", "if {}scaler.is_enabled():", "    scheduler.step()"]
    text = COMPARED.format("\n    ".join(lines))
    assert lint(text.format("not ")) == []
    assert [each.code for each in lint(text.format(""))] == ["AMP101"]


def test_a_norm_is_read_scaled_where_only_the_clipping_unscales() -> None:
    clip = "\ndef clip(params, most):\n    if most is None:\n        return sum(p.grad.norm() for p in params)\n"
    lines = ["if torch.isnan(loss):", "    break", "if most is not None:", "    scaler.unscale_(optimizer)"]
    lines += ["clip(model.parameters(), most)", "scaler.step(optimizer)", "scaler.update()"]
    text = clip + COMPARED.format("\n    ".join(lines))
    assert [each.code for each in lint(text)] == ["AMP106"]
    assert lint(text.replace("if most is not None", "if True")) == []


FIXED = ["m, o = amp.initialize(make(), opt(), loss_scale=128.0)", "loss_scale = '128.0'"]


@pytest.mark.parametrize("made", [*FIXED, "def f(loss_scale=8192): pass"])
def test_apex_with_a_fixed_scale_skips_nothing(made: str) -> None:
    loop = "for x in loader:\n    with amp.scale_loss(m(x), optimizer) as loss:\n        loss.backward()\n"
    text = f"{made}\n{loop}    optimizer.step()\n    scheduler.step()\n"
    assert [each.code for each in lint(text)] == ([] if made in FIXED else ["AMP101"])


def test_an_epochs_schedule_is_none_of_a_step_before_the_loop() -> None:
    step = "scaler = GradScaler()\nscaler.scale(model(x)).backward()\nscaler.step(optimizer)\nscaler.update()\n"
    for body in ("fit(model)", "optimizer.step()"):
        assert lint(f"{step}for epoch in range(9):\n    {body}\n    scheduler.step()\n", codes=["AMP101"]) == []


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("Net().half()", True),
        ("Net(4).cuda().half()", True),
        ("Net().to(torch.float16)", True),
        ("Net().to('cuda', dtype=torch.float16)", True),
        ("Net().to(torch.bfloat16)", False),
        ("Net().half().float()", False),
        ("Net.from_pretrained(name, torch_dtype=torch.float16)", True),
        ("Net.from_pretrained(name, dtype=torch.half).to('cuda')", True),
        ("Net.from_pretrained(name, torch_dtype=torch.bfloat16)", False),
        ("get_peft_model(Net()).half()", False),
    ],
)
def test_a_model_is_half_where_it_is_made_so(made: str, found: bool) -> None:
    text = f"model = {made}\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{MAKES}{LOOP}{END}"
    assert ("AMP114" in {each.code for each in lint(text)}) == found


@pytest.mark.parametrize("test", ["args.amp and native", "args.amp or native", "scaler is not None and native"])
def test_branches_of_one_compound_condition_exclude_each_other_wherever_they_stand(test: str) -> None:
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
"""
    assert lint(text) == []
    wrong = text.replace("        scaler.unscale_(optimizer)\n", "")
    assert [(each.line, each.code) for each in lint(wrong)] == [(9, "AMP103")]


def test_a_scaler_that_a_file_is_given_and_steps_by_is_to_be_saved_too() -> None:
    text = f"def train(scaler):\n    for batch in loader:\n        scaler.scale(loss(batch)).backward()\n    {END}"
    text = text.replace("\n    scaler.u", "\n        scaler.u")
    assert lint(text) == []
    assert [each.code for each in lint(f"{text}torch.save(optimizer.state_dict(), path)\n")] == ["AMP112"]


GIVEN = """\
class Trainer:
    def __init__(self):
        self.scaler = torch.amp.GradScaler()
    def backward(self, loss):
        loss = loss / 2
        loss.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""


def test_a_loss_that_is_given_by_another_file_may_have_been_scaled_there() -> None:
    computed = GIVEN.replace("loss / 2", "self.loss_of(loss_fn)")
    assert lint(GIVEN, codes=["AMP107"]) == []
    assert [each.code for each in lint(computed, codes=["AMP107"])] == ["AMP107"]
    own = "    def fit(self, loader):\n        for batch in loader:\n            self.backward(self.model(batch))\n"
    assert [each.code for each in lint(GIVEN + own, codes=["AMP107"])] == ["AMP107"]


REPEATED = f"""\
def run(loader, optimizer):
    {MAKES}    for batch in loader:
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
def main(loader):
    for turn in range(9):
        optimizer = SGD(model.parameters(), lr=0.1)
        run(loader, optimizer)
"""


def test_a_function_that_a_loop_calls_is_repeated() -> None:
    """Unless the optimizer, too, is a new one each time, or the function makes it."""
    assert lint(REPEATED) == []
    assert lint(REPEATED.replace("SGD(model.parameters(), lr=0.1)", "prepared(model)[0]")) == []
    made = "        optimizer = SGD(model.parameters(), lr=0.1)\n"
    once = REPEATED.replace(made, "").replace("    for turn", f"{made[4:]}    for turn")
    assert [(each.line, each.code) for each in lint(once)] == [(2, "AMP113")]
    assert [each.code for each in lint(once.replace("run(", "run_epoch("))] == ["AMP113"]


@pytest.mark.parametrize("given", ["model(batch), optimizer", "loss=model(batch), optimizer=optimizer"])
def test_a_scaler_that_is_called_as_one_is_given_an_optimizer_in_any_place(given: str) -> None:
    made = "for epoch in range(9):\n    scaler = NativeGradScaler()\n"
    text = f"{made}    for batch in loader:\n        scaler({given})\n"
    assert [each.code for each in lint(text)] == ["AMP113"]


def test_a_scaler_that_is_made_for_an_optimizer_takes_no_step() -> None:
    assert lint("for epoch in range(9):\n    scaler = LossScaler(config, optimizer)\n    scheduler.step()\n") == []


def test_a_loop_of_a_base_class_steps_as_its_heirs_do() -> None:
    text = """\
class Base:
    def train(self):
        for batch in self.loader:
            self.advance(batch)
            self.scheduler.step()
    def advance(self, batch):
        raise NotImplementedError
class Trainer(Base):
    def advance(self, batch):
        self.scaler.scale(self.model(batch)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""
    assert [(each.line, each.code) for each in lint(text)] == [(5, "AMP101")]
    assert lint(text.replace("    def advance", "    def evaluate")) == []


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("index == total - 1", True),
        ("(index + 1) == self.total", True),
        ("index + 1 >= len(loader)", True),
        ("index == 0", False),
        ("epoch == last", False),
    ],
)
def test_a_window_ends_with_the_last_batch_where_its_index_is_compared(end: str, found: bool) -> None:
    text = RULES["AMP115"].wrong.replace("index + 1 == len(loader)", end)
    assert [each.code for each in lint(text)] == ["AMP115"] * found


ACCELERATED = """\
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16")
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        {inside}
        optimizer.zero_grad()
    if accelerator.sync_gradients and accelerator.is_main_process:
        ema.update(model)
"""
SCHEDULED = ACCELERATED.format(inside="scheduler.step()")
FABRIC = SCHEDULED.replace("accelerator", "fabric").replace("from accelerate import Accelerator\n", "")
FABRIC = FABRIC.replace('Accelerator(mixed_precision="fp16")', 'Fabric(precision="16-mixed")')


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (SCHEDULED, ["AMP101", "AMP102"]),
        (FABRIC, ["AMP101", "AMP102"]),
        (SCHEDULED.replace('"fp16"', "args.precision"), []),
        (SCHEDULED.replace('"fp16"', "a.precision") + "add('--mixed-precision', type=str)", ["AMP101", "AMP102"]),
        (SCHEDULED + MAKES + "scaler.scale(loss)", []),
        (SCHEDULED.replace('"fp16"', "'fp16' if args.half else 'no'"), ["AMP101", "AMP102"]),
        (SCHEDULED.replace('"fp16"', '"bf16"') + "make(kind='fp16')", []),
        (SCHEDULED.replace('mixed_precision="fp16"', "") + "make(variant='fp16')", []),
        (SCHEDULED.replace("(model, optimizer, loader)", "(model, optimizer, loader, scheduler)"), ["AMP102"]),
        (SCHEDULED.replace("(model, optimizer, loader)", "(*everything)"), ["AMP102"]),
        (SCHEDULED.replace("sync_gradients and", "optimizer_step_was_skipped or"), ["AMP101"]),
        (SCHEDULED.replace("_process:", "_process and not accelerator.optimizer_step_was_skipped:"), ["AMP101"]),
        (SCHEDULED.replace('"fp16"', "precision, handlers=[GradScalerKwargs()]"), ["AMP101", "AMP102"]),
        (SCHEDULED.replace('"fp16"', "precision") + "print(optimizer.step_was_skipped)", ["AMP101", "AMP102"]),
        (SCHEDULED.replace("accelerator.clip", "torch.nn.utils.clip"), ["AMP103", "AMP101", "AMP102"]),
        (SCHEDULED.replace("accelerator.backward(model(batch))", "model(batch).backward()"), []),
        (ACCELERATED.format(inside="torch.save(optimizer.state_dict(), p)"), ["AMP112", "AMP102"]),
        (ACCELERATED.format(inside="save(optimizer.state_dict(), accelerator.scaler)"), ["AMP102"]),
        (ACCELERATED.format(inside="optimizer.state_dict(), accelerator.save_state(p)"), ["AMP102"]),
    ],
)
def test_accelerate_and_fabric_have_a_scaler_where_fp16_may_be_asked_for(text: str, codes: list[str]) -> None:
    found = lint(text)
    assert [each.code for each in found] == codes
    assert all(re.search(r" \(the scaler: (accelerate|Fabric)'s, for fp16\)$", each.message) for each in found)


@pytest.mark.parametrize(
    ("made", "saved", "found"),
    [
        ("model, optimizer = amp.initialize(model, optimizer)", "", True),
        ("model, optimizer = amp.initialize(model, optimizer)", ', "amp": amp.state_dict()', False),
        ("model, optimizer = apex.amp.initialize(model, optimizer)", ', "amp": apex.amp.state_dict()', False),
        ("model, optimizer = amp.initialize(model, optimizer, opt_level='O0')", "", False),
        ("model, optimizer = amp.initialize(model, optimizer, loss_scale=128.0)", "", False),
    ],
)
def test_apexs_scalers_are_to_be_saved_too(made: str, saved: str, found: bool) -> None:
    loop = "for batch in loader:\n    with amp.scale_loss(model(batch), optimizer) as loss:\n        loss.backward()\n"
    text = f'{made}\n{loop}    optimizer.step()\ntorch.save({{"optimizer": optimizer.state_dict(){saved}}}, path)\n'
    assert [each.code for each in lint(text)] == ["AMP112"] * found


def test_what_saves_elsewhere_may_ask_apex_which_is_a_module() -> None:
    loop = "for batch in loader:\n    with amp.scale_loss(model(batch), optimizer) as loss:\n        loss.backward()\n"
    assert lint(f"{loop}    optimizer.step()\nsave_checkpoint(model, optimizer)\n") == []


def test_a_state_that_is_kept_in_memory_is_no_checkpoint() -> None:
    text = RULES["AMP112"].wrong.replace('torch.save({"optimizer": optimizer.state_dict()}, path)', "")
    assert lint(f'{text}cache.store("optimizer", optimizer.state_dict())\n') == []


@pytest.mark.parametrize(
    ("dtype", "enabled", "cast", "found"),
    [
        ("torch.float16", "", "dtype", True),
        ("torch.float16 if args.fp16 else torch.float32", "enabled=args.fp16", "device, dtype=dtype", True),
        ("torch.float16 if args.fp16 else torch.float32", "enabled=not args.fp16", "dtype", False),
        ("torch.float16 if args.fp16 else torch.float32", "enabled=args.amp", "dtype", False),
        ("{'half': torch.half, 'single': torch.float32}[args.type]", "enabled=dtype == torch.half", "dtype", True),
        ("torch.bfloat16", "", "dtype", False),
        ("torch.float16", "", "device", False),
    ],
)
def test_a_dtype_may_have_a_name(dtype: str, enabled: str, cast: str, found: bool) -> None:
    made = f"dtype = {dtype}\nmodel = Net().to({cast})\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    text = made + f"scaler = torch.amp.GradScaler({enabled})\n" + LOOP + END
    assert ["AMP114" for each in lint(text) if each.code == "AMP114"] == ["AMP114"] * found
    named = text.replace("model = Net()", "model = Net()\nmodel")
    assert ["AMP114" for each in lint(named) if each.code == "AMP114"] == ["AMP114"] * found


def test_a_rate_that_a_function_sets_follows_the_iterations() -> None:
    helper = "def NAME(optimizer, it):\n    for group in optimizer.param_groups:\n        group['lr'] = 1 / it\n"
    body = f"    NAME(optimizer, it)\n{LOOP.partition('loader:')[2][1:]}{END}"
    text = f"{helper}{MAKES}for it, batch in enumerate(loader):\n{body}"
    said = {name: lint(text.replace("NAME", name), codes=["AMP127"]) for name in ("cool", "adjust_learning_rate")}
    assert [each.line for each in said["cool"]] == [3]
    assert [each.line for each in said["adjust_learning_rate"]] == [6]  # where it is called, as its name says it


@pytest.mark.parametrize(
    ("guard", "call", "found"),
    [
        ("index % every == 0", "ema.update(model)", True),
        ("self.step % self.update_every == 0 and self.step > self.step_start", "ema.update(model)", True),
        ("self.step_loss > 2", "ema.update(model)", False),
        ("index % every == 0 and scaler.get_scale() >= scale", "ema.update(model)", False),
        ("index % every == 0", "ema.update_average(old_buffer, new_buffer)", False),
        ("index % len(loader) == 0", "scheduler.step()", False),
    ],
)
def test_an_average_may_wait_for_every_tenth_step(guard: str, call: str, found: bool) -> None:
    assert [each.code for each in lint(f"{MAKES}{LOOP}{END}    if {guard}:\n        {call}\n")] == ["AMP102"] * found


def test_paddles_minimize_is_a_step_and_an_update() -> None:
    loop = LOOP.replace(
        "scaler.scale(model(batch)).backward()", "loss = scaler.scale(model(batch))\n    loss.backward()"
    )
    text = f"{MAKES}{loop}    scaler.minimize(optimizer, loss)\n    scheduler.step()\n"
    assert [each.code for each in lint(text)] == ["AMP101"]


def test_a_scaler_that_something_else_gets_may_be_used_there() -> None:
    wrong = RULES["AMP130"].wrong
    assert lint(wrong + "    save(scaler)\n") == []
    assert [each.code for each in lint(wrong + "    torch.save(scaler.state_dict(), path)\n")] == ["AMP130"]
    assert lint(wrong.replace("    scaler =", "    self.scaler =")) == []
    assert lint(wrong.replace("loss.backward()", "scaler.scale(loss).backward()"), codes=["AMP130"]) == []


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ("self.optimizers[name].state_dict()", True),
        ("{name: each.state_dict() for name, each in self.models.items()}", False),
        ("{name: each.state_dict() for name, each in zip(names, self.models)}", False),
        ("saved['optimizer'].state_dict()", False),
    ],
)
def test_states_of_several_optimizers_are_saved(state: str, found: bool) -> None:
    text = RULES["AMP112"].wrong.replace("optimizer.state_dict()", state)
    assert [each.code for each in lint(text)] == ["AMP112"] * found


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("update_ema_variables(model, teacher, 0.99, index)", True),
        ("accumulate(g_ema, generator, 0.99)", True),
        ("moving_average(generator, generator_ema, beta=0.99)", True),
        ("learner.update_moving_average()", True),
        ("averaged.update_parameters(model)", True),
        ("agent.update_parameters(memory)", False),
        ("accumulate(losses, outputs)", False),
        ("update_loss_ema(state)", False),
    ],
)
def test_an_average_has_many_names(call: str, found: bool) -> None:
    assert [each.code for each in lint(f"{MAKES}{LOOP}{END}    {call}\n")] == ["AMP102"] * found


@pytest.mark.parametrize(
    "steps",
    [
        "    [each.step() for each in schedulers]\n",
        "    for _, each in schedulers.items():\n        each.step()\n",
        "    warmup_scheduler.dampen()\n",
    ],
)
def test_schedules_may_step_one_by_one(steps: str) -> None:
    assert [each.code for each in lint(f"{MAKES}{LOOP}{END}{steps}")] == ["AMP101"]


def test_what_clips_gradients_may_be_called_so() -> None:
    assert [each.code for each in lint(f"{MAKES}{LOOP}    clip_gradient(optimizer, 0.5)\n{END}")] == ["AMP103"]
    unscales = (
        "def clip_gradient(optimizer):\n    scaler.unscale_(optimizer)\n    clip_grad_norm_(model.parameters(), 1)\n"
    )
    assert lint(f"{unscales}{MAKES}{LOOP}    clip_gradient(optimizer)\n{END}") == []
    cuts = "def clip_gradient(optimizer):\n    for p in params:\n        p.grad.data.clamp_(-1, 1)\n"
    assert [each.code for each in lint(f"{cuts}{MAKES}{LOOP}    clip_gradient(optimizer)\n{END}")] == ["AMP106"]


def test_what_both_ways_of_a_condition_call_happens_regardless() -> None:
    end = "def end(last):\n    scheduler.step()\n"
    text = f"{end}{MAKES}{LOOP}{END}    if verdict(batch):\n        end(True)\n    else:\n        end(False)\n"
    assert [(each.line, each.code) for each in lint(text)] == [(2, "AMP101")]
    assert lint(text.replace("    else:\n        end(False)\n", "")) == []


@pytest.mark.parametrize("said", ["hasattr(cfg, 'scaler_config')", "timer.check('scaler-step')"])
def test_a_word_of_a_setting_of_a_scaler_saves_none(said: str) -> None:
    assert [each.code for each in lint(f"{RULES['AMP112'].wrong}{said}\n")] == ["AMP112"]
    assert lint(f"{RULES['AMP112'].wrong}state['scaler_state'] = state_of_it\n") == []


@pytest.mark.parametrize(
    ("scaler", "found"), [("GradScaler() if cfg.amp else None", ["AMP101"]), ("Whatever() if cfg.amp else None", [])]
)
def test_what_is_made_where_it_is_asked_for_is_made(scaler: str, found: list[str]) -> None:
    loop = LOOP.replace("scaler", "grad_amp") + END.replace("scaler", "grad_amp")
    assert [each.code for each in lint(f"grad_amp = {scaler}\n{loop}    scheduler.step()\n")] == found


def test_a_schedule_of_an_optimizer_that_no_scaler_steps_waits_for_none() -> None:
    made = "other = StepLR(optimizer=opt_head, step_size=9)\nscheduler = StepLR(optimizer, 9)\n"
    steps = "    opt_head.step()\n    scheduler.step()\n    other.step()\n"
    text = (
        f"{made}{MAKES}for batch in loader:\n    head_loss(batch).backward()\n{LOOP.partition(':')[2][1:]}{END}{steps}"
    )
    assert [(each.line, each.code) for each in lint(text, codes=["AMP101"])] == [(11, "AMP101")]


def test_a_schedule_of_an_averages_decay_is_none_of_the_rate() -> None:
    assert lint(f"{MAKES}{LOOP}{END}    ema_sched.step()\n") == []


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("for k, v in ema.items():\n        v.copy_(state[k].lerp(v, decay))", True),
        ("model.apply_ema_weights()", False),
        ("apply_ema(optimizer, averaged, decay)", True),
    ],
)
def test_an_average_is_what_is_mixed_and_not_what_is_put_in(loop: str, found: bool) -> None:
    assert [each.code for each in lint(f"{MAKES}{LOOP}{END}    {loop}\n")] == ["AMP102"] * found


def test_an_average_waits_for_a_verdict_on_gradients_for_which_the_step_waits_too() -> None:
    verdict = (
        "    good = not any(torch.isnan(p.grad).any() for p in params)\n    if good:\n        scaler.step(optimizer)\n"
    )
    text = f"{MAKES}{LOOP}    scaler.unscale_(optimizer)\n{verdict}    scaler.update()\n    if good:\n"
    assert lint(f"{text}        ema.update(model)\n") == []


def test_each_block_that_saves_an_optimizer_is_told_once() -> None:
    save = 'torch.save({"a": optimizer_a.state_dict(), "b": optimizer_b.state_dict()}, path)\n'
    blocks = f"if best:\n    {save}    {save}    if last:\n        {save}if often:\n    {save}"
    text = RULES["AMP112"].right.partition("torch.save")[0]
    assert [each.line - text.count("\n") for each in lint(f"{text}{blocks}")] == [2, 7]
    kept = "state = CheckpointState(optimizer.state_dict(), epoch)\ntorch.save(state._asdict(), path)\n"
    assert [each.code for each in lint(f"{text}{kept}")] == ["AMP112"]
    own = "def save_model(optimizer):\n    torch.save(optimizer.state_dict(), path)\n"
    assert [each.line for each in lint(f"{own}{text}save_model(optimizer)\n")] == [2]


def test_the_magics_of_a_notebook_that_was_written_to_a_file_are_passed_over() -> None:
    text = f"%%file train.py\nif colab:\n    !pip install timm\n%matplotlib inline\n{RULES['AMP101'].wrong}"
    assert [(each.line, each.code) for each in lint(text)] == [(11, "AMP101")]
    with pytest.raises(UnreadableError, match="invalid syntax"):
        lint(f"{text}%%time\nif else:\n")
    assert lint("told = ('a scaler of %s'\n%name)\n") == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import torch.cuda.amp as amp\n@amp.autocast()\ndef f(x): pass\n", [1]),
        ("import torch\n@torch.cuda.amp.autocast()\ndef f(x): pass\n", [2]),
        ("import torch.cuda.amp\nscaler = torch.cuda.amp.GradScaler()\n", [2]),
        ("from torch.cuda import empty_cache, amp\nscaler = amp.GradScaler()\n", [1]),
        ("from torch.cuda.amp.grad_scaler import GradScaler as Scaler\n", [1]),
        ("from torch import amp\nscaler = amp.GradScaler()\n", []),
    ],
)
def test_deprecated_names_are_imported_under_any_name(text: str, lines: list[int]) -> None:
    assert [(each.line, each.code) for each in lint(text, codes=RULES)] == [(line, "AMP116") for line in lines]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("param.data = (1 - rate) * param.data", True),
        ("param.data *= 1 - rate * decay", True),
        ("param.mul_(1.0 - rate)", True),
        ("param.data.clamp_(-1, 1)", False),
        ("param.grad.mul_(1 - rate)", False),
        ("noise.mul_(1 - rate)", False),
    ],
)
def test_weight_decay_by_hand_is_done_in_a_skipped_step_too(body: str, found: bool) -> None:
    loop = f"    for param in model.parameters():\n        {body}\n"
    assert [each.code for each in lint(f"{MAKES}{LOOP}{END}{loop}")] == ["AMP131"] * found
    method = "def _decay(params, wd):\n    for param in params:\n        param.data = (1 - wd) * param.data\n"
    assert [each.line for each in lint(f"{method}{MAKES}{LOOP}{END}    _decay(params, weight_decay)\n")] == [2]


@pytest.mark.parametrize(
    ("enabled", "found"),
    [
        ("cfg.bf16_run", True),
        ("dtype == torch.bfloat16", True),
        ("dtype != torch.bfloat16", False),
        ("not args.bf16", False),
        ("args.fp16 or args.bf16", False),
        ("args.amp and not args.bf16", False),
        ("dtype in ('float16', 'bfloat16')", False),
    ],
)
def test_a_scaler_is_on_for_bfloat16_where_its_condition_says_so_alone(enabled: str, found: bool) -> None:
    assert [each.code for each in lint(f"scaler = GradScaler(enabled={enabled})\n")] == ["AMP132"] * found
