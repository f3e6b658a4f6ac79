"""The scaler itself: where it is made, updated and saved, and within which library it is."""

import re

import pytest

from ampsim.lint.engine import RULES, lint
from tests.lint.loops import END, LOOP, MAKES


def test_disabled_scaler_has_no_findings() -> None:
    body = f"{LOOP}{END}    scheduler.step()\n"
    assert lint("scaler = GradScaler(enabled=False)\n" + body) == []
    assert [
        each.code for each in lint("scaler = GradScaler(enabled=args.amp)\n" + body)
    ] == ["AMP101"]


def test_apex_static_level_skips_no_step() -> None:
    loop = (
        "model, optimizer = amp.initialize(model, optimizer, opt_level='{}')\n"
        "for batch in loader:\n    with amp.scale_loss(model(batch), optimizer) as loss:\n        loss.backward()\n"
        "    optimizer.step()\n    scheduler.step()\n"
    )
    found = {
        level: [each.code for each in lint(loop.format(level), codes=["AMP101"])]
        for level in ("O0", "O1", "O3")
    }
    assert found == {"O0": [], "O1": ["AMP101"], "O3": []}


def test_saved_scaler_may_have_any_name() -> None:
    loop = "scaler = GradScaler()\nscaler.step(optimizer)\nsave = {{'optimizer': optimizer.state_dict(), 'amp': {}}}\n"
    assert lint(loop.format("scaler"), codes=["AMP112"]) == []
    assert len(lint(loop.format("scaler.get_scale()"), codes=["AMP112"])) == 1


def test_scaler_argument_must_be_saved() -> None:
    text = f"def train(scaler):\n    for batch in loader:\n        scaler.scale(loss(batch)).backward()\n    {END}"
    text = text.replace("\n    scaler.u", "\n        zero_grad()\n        scaler.u")
    assert lint(text) == []
    assert [
        each.code for each in lint(f"{text}torch.save(optimizer.state_dict(), path)\n")
    ] == ["AMP112"]


REPEATED = f"""\
def run(loader, optimizer):
    {MAKES}    for batch in loader:
        scaler.scale(model(batch)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
def main(loader):
    for turn in range(9):
        optimizer = SGD(model.parameters(), lr=0.1)
        run(loader, optimizer)
"""


def test_function_called_in_loop_is_repeated() -> None:
    """Unless the optimizer, too, is a new one each time, or the function makes it."""
    assert lint(REPEATED) == []
    assert (
        lint(REPEATED.replace("SGD(model.parameters(), lr=0.1)", "prepared(model)[0]"))
        == []
    )
    made = "        optimizer = SGD(model.parameters(), lr=0.1)\n"
    once = REPEATED.replace(made, "").replace("    for turn", f"{made[4:]}    for turn")
    assert [(each.line, each.code) for each in lint(once)] == [(2, "AMP113")]
    assert [each.code for each in lint(once.replace("run(", "run_epoch("))] == [
        "AMP113"
    ]


@pytest.mark.parametrize(
    "given", ["model(batch), optimizer", "loss=model(batch), optimizer=optimizer"]
)
def test_callable_scaler_optimizer_argument_is_found(given: str) -> None:
    made = "for epoch in range(9):\n    scaler = NativeGradScaler()\n"
    text = f"{made}    for batch in loader:\n        scaler({given})\n"
    assert [each.code for each in lint(text)] == ["AMP113"]


def test_scaler_construction_is_no_step() -> None:
    assert (
        lint(
            "for epoch in range(9):\n    scaler = LossScaler(config, optimizer)\n    scheduler.step()\n"
        )
        == []
    )


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
FABRIC = SCHEDULED.replace("accelerator", "fabric").replace(
    "from accelerate import Accelerator\n", ""
)
FABRIC = FABRIC.replace(
    'Accelerator(mixed_precision="fp16")', 'Fabric(precision="16-mixed")'
)


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (SCHEDULED, ["AMP101", "AMP102"]),
        (FABRIC, ["AMP101", "AMP102"]),
        (SCHEDULED.replace('"fp16"', "args.precision"), ["AMP101", "AMP102"]),
        (SCHEDULED + MAKES + "scaler.scale(loss)", []),
        (f"{SCHEDULED}# {MAKES}# scaler.scale(loss)\n", ["AMP101", "AMP102"]),
        (
            SCHEDULED.replace('"fp16"', "'fp16' if args.half else 'no'"),
            ["AMP101", "AMP102"],
        ),
        (SCHEDULED.replace('"fp16"', '"bf16"') + "make(kind='fp16')", []),
        (SCHEDULED.replace('mixed_precision="fp16"', "") + "make(variant='fp16')", []),
        (
            SCHEDULED.replace(
                "(model, optimizer, loader)", "(model, optimizer, loader, scheduler)"
            ),
            ["AMP102"],
        ),
        (SCHEDULED.replace("(model, optimizer, loader)", "(*everything)"), ["AMP102"]),
        (
            SCHEDULED.replace("sync_gradients and", "optimizer_step_was_skipped or"),
            ["AMP101"],
        ),
        (
            SCHEDULED.replace(
                "_process:", "_process and not accelerator.optimizer_step_was_skipped:"
            ),
            ["AMP101"],
        ),
        (
            SCHEDULED.replace('"fp16"', "precision, handlers=[GradScalerKwargs()]"),
            ["AMP101", "AMP102"],
        ),
        (
            SCHEDULED.replace('"fp16"', "precision")
            + "print(optimizer.step_was_skipped)",
            ["AMP101", "AMP102"],
        ),
        (
            SCHEDULED.replace("accelerator.clip", "torch.nn.utils.clip"),
            ["AMP103", "AMP101", "AMP102"],
        ),
        (
            SCHEDULED.replace(
                "accelerator.backward(model(batch))", "model(batch).backward()"
            ),
            [],
        ),
        (
            ACCELERATED.format(inside="torch.save(optimizer.state_dict(), p)"),
            ["AMP112", "AMP102"],
        ),
        (
            ACCELERATED.format(
                inside="save(optimizer.state_dict(), accelerator.scaler)"
            ),
            ["AMP102"],
        ),
        (
            ACCELERATED.format(
                inside="optimizer.state_dict(), accelerator.save_state(p)"
            ),
            ["AMP102"],
        ),
    ],
)
def test_accelerate_and_fabric_fp16_is_recognized(text: str, codes: list[str]) -> None:
    found = lint(text)
    assert [each.code for each in found] == codes
    assert all(
        re.search(r" \(with the fp16 scaler of (accelerate|Fabric)\)$", each.message)
        for each in found
    )


@pytest.mark.parametrize(
    ("made", "saved", "found"),
    [
        ("model, optimizer = amp.initialize(model, optimizer)", "", True),
        (
            "model, optimizer = amp.initialize(model, optimizer)",
            ', "amp": amp.state_dict()',
            False,
        ),
        (
            "model, optimizer = apex.amp.initialize(model, optimizer)",
            ', "amp": apex.amp.state_dict()',
            False,
        ),
        (
            "model, optimizer = amp.initialize(model, optimizer, opt_level='O0')",
            "",
            False,
        ),
        (
            "model, optimizer = amp.initialize(model, optimizer, loss_scale=128.0)",
            "",
            False,
        ),
    ],
)
def test_apex_scalers_must_be_saved(made: str, saved: str, found: bool) -> None:
    loop = "for batch in loader:\n    with amp.scale_loss(model(batch), optimizer) as loss:\n        loss.backward()\n"
    text = f'{made}\n{loop}    optimizer.step()\ntorch.save({{"optimizer": optimizer.state_dict(){saved}}}, path)\n'
    assert [each.code for each in lint(text)] == ["AMP112"] * found


def test_external_save_may_include_apex() -> None:
    loop = "for batch in loader:\n    with amp.scale_loss(model(batch), optimizer) as loss:\n        loss.backward()\n"
    assert (
        lint(f"{loop}    optimizer.step()\nsave_checkpoint(model, optimizer)\n") == []
    )


def test_in_memory_state_is_no_checkpoint() -> None:
    text = RULES["AMP112"].wrong.replace(
        'torch.save({"optimizer": optimizer.state_dict()}, path)', ""
    )
    assert lint(f'{text}cache.store("optimizer", optimizer.state_dict())\n') == []


def test_passed_scaler_counts_as_used() -> None:
    wrong = RULES["AMP130"].wrong
    assert lint(wrong + "    save(scaler)\n") == []
    assert [
        each.code
        for each in lint(wrong + "    torch.save(scaler.state_dict(), path)\n")
    ] == ["AMP130"]
    assert lint(wrong.replace("    scaler =", "    self.scaler =")) == []
    assert (
        lint(
            wrong.replace("loss.backward()", "scaler.scale(loss).backward()"),
            codes=["AMP130"],
        )
        == []
    )


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ("self.optimizers[name].state_dict()", True),
        ("{name: each.state_dict() for name, each in self.optimizers.items()}", True),
        ("[each.state_dict() for each in optims]", True),
        ("[each.state_dict() for _, each in enumerate(optims)]", True),
        ("{name: each.state_dict() for name, each in self.models.items()}", False),
        ("{name: each.state_dict() for name, each in zip(names, self.models)}", False),
        ("saved['optimizer'].state_dict()", False),
    ],
)
def test_states_of_several_optimizers_are_saved(state: str, found: bool) -> None:
    text = RULES["AMP112"].wrong.replace("optimizer.state_dict()", state)
    assert [each.code for each in lint(text)] == ["AMP112"] * found


def test_scaler_of_any_name_is_saved() -> None:
    text = RULES["AMP112"].wrong.replace("scaler", "grad_scalar")
    assert [each.code for each in lint(text)] == ["AMP112"]
    saved = (
        '{"optimizer": optimizer.state_dict(), "grad_scalar": grad_scalar.state_dict()}'
    )
    assert lint(text.replace('{"optimizer": optimizer.state_dict()}', saved)) == []


@pytest.mark.parametrize(
    "said", ["hasattr(cfg, 'scaler_config')", "timer.check('scaler-step')"]
)
def test_scaler_in_string_saves_nothing(said: str) -> None:
    assert [each.code for each in lint(f"{RULES['AMP112'].wrong}{said}\n")] == [
        "AMP112"
    ]
    assert lint(f"{RULES['AMP112'].wrong}state['scaler_state'] = state_of_it\n") == []


@pytest.mark.parametrize(
    ("scaler", "found"),
    [
        ("GradScaler() if cfg.amp else None", ["AMP101"]),
        ("Whatever() if cfg.amp else None", []),
    ],
)
def test_conditional_scaler_is_recognized(scaler: str, found: list[str]) -> None:
    loop = LOOP.replace("scaler", "grad_amp") + END.replace("scaler", "grad_amp")
    assert [
        each.code for each in lint(f"grad_amp = {scaler}\n{loop}    scheduler.step()\n")
    ] == found


def test_each_checkpoint_is_reported_once() -> None:
    save = 'torch.save({"a": optimizer_a.state_dict(), "b": optimizer_b.state_dict()}, path)\n'
    blocks = f"if best:\n    {save}    {save}    if last:\n        {save}if often:\n    {save}"
    text = RULES["AMP112"].right.partition("torch.save")[0]
    assert [each.line - text.count("\n") for each in lint(f"{text}{blocks}")] == [
        2,
        5,
        7,
    ]
    states = (
        "state['a'] = optimizer_a.state_dict()\nstate['b'] = optimizer_b.state_dict()\n"
    )
    assert len(lint(f"{text}{states}")) == 1
    kept = "state = CheckpointState(optimizer.state_dict(), epoch)\ntorch.save(state._asdict(), path)\n"
    assert [each.code for each in lint(f"{text}{kept}")] == ["AMP112"]
    own = "def save_model(optimizer):\n    torch.save(optimizer.state_dict(), path)\n"
    assert [each.line for each in lint(f"{own}{text}save_model(optimizer)\n")] == [2]


@pytest.mark.parametrize(
    ("enabled", "found"),
    [
        ("cfg.bf16_run", True),
        ("dtype == torch.bfloat16", True),
        ("dtype != torch.bfloat16", False),
        ("dtype is not torch.bfloat16", False),
        ("dtype not in (torch.bfloat16,)", False),
        ("not args.bf16", False),
        ("args.fp16 or args.bf16", True),
        ("args.amp and not args.bf16", False),
        ("dtype in ('float16', 'bfloat16')", True),
    ],
)
def test_scaler_enabled_for_bfloat16_is_flagged(enabled: str, found: bool) -> None:
    assert [
        each.code for each in lint(f"scaler = GradScaler(enabled={enabled})\n")
    ] == ["AMP132"] * found


def test_scaler_of_another_files_loop_is_used() -> None:
    text = "scaler = NativeScaler()\nfit(model, optimizer, scaler)\n"
    saved = f"{text}torch.save(optimizer.state_dict(), path)\n"
    assert [each.code for each in lint(saved)] == ["AMP112"]


PER_EPOCH = """\
class Trainer:
    def train_epoch(self, loader):
        scaler = torch.cuda.amp.GradScaler()
        for batch in loader:
            self.optimizer.zero_grad()
            scaler.scale(self.model(batch)).backward()
            scaler.step(self.optimizer)
            scaler.update()

    def fit(self, loader):
        for epoch in range(9):
            self.train_epoch(loader)
            torch.save({"optimizer": self.optimizer.state_dict()}, "last.pt")
"""


def test_scaler_per_epoch_is_reported_once() -> None:
    assert [(each.line, each.code) for each in lint(PER_EPOCH)] == [(3, "AMP113")]
    head, _, rest = PER_EPOCH.partition("        for batch")
    shown = f"{head}        with bar:\n         for batch{rest}"
    assert [(each.line, each.code) for each in lint(shown)] == [(3, "AMP113")]
    kept = PER_EPOCH.replace("        scaler =", "        self.scaler =").replace(
        " scaler.", " self.scaler."
    )
    once = kept.replace(
        "def train_epoch(self, loader):", "def __init__(self):"
    ).replace(
        "        for batch", "    def train_epoch(self, loader):\n        for batch"
    )
    assert [each.code for each in lint(once)] == ["AMP112"]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("use_amp == False", False),
        ("not use_amp", False),
        ("use_amp == True", True),
        ("debug", True),
    ],
)
def test_schedule_in_unscaled_branch_is_allowed(condition: str, found: bool) -> None:
    text = (
        "scaler = GradScaler()\n"
        "scheduler = StepLR(opt, 1)\n"
        "for batch in loader:\n"
        "    if use_amp:\n"
        "        scaler.scale(model(batch)).backward()\n"
        "        scaler.step(opt)\n"
        "        scaler.update()\n"
        f"    if {condition}:\n"
        "        scheduler.step()\n"
    )
    assert ("AMP101" in [each.code for each in lint(text)]) is found


@pytest.mark.parametrize(
    ("step", "save", "found"),
    [
        ("scaler.step(optimizer)", "checkpointer.save(model, optimizer)", True),
        (
            "scaler.step(optimizer)",
            "checkpointer.save(model, optimizer, grad_scaler)",
            False,
        ),
        ("scaler.step(optimizer)", "figure.save(model, optimizer)", False),
        ("scaler.step(optimizer)", "log_ckpt(net=model, o=optimizer)", True),
        ("scaler.step(optimizer)", "load_checkpoint(path, model, optimizer)", False),
        ("accel.step(optimizer)", "torch.save(optimizer.state_dict(), path)", True),
    ],
)
def test_what_saves_the_optimizer(step: str, save: str, found: bool) -> None:
    """A scaler that unscales gradients is in use, whoever steps with it."""
    text = f"for batch in loader:\n    scaler.unscale_(optimizer)\n    {step}\n{save}\n"
    assert [each.code for each in lint(text)] == ["AMP112"] * found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pass", True),
        ("state['scaler'] = scaler.state_dict()", True),
        ("# scaler.load_state_dict(checkpoint['scaler'])", True),
        ("restore(scaler, checkpoint['scaler'])", False),
        ("load_checkpoint(path, model, scaler)", False),
        ("scaler.load_state_dict(checkpoint.pop('amp'))", False),
    ],
)
def test_saved_scaler_must_be_loaded(line: str, found: bool) -> None:
    text = f"{RULES['AMP137'].wrong}{line}\n"
    assert [each.code for each in lint(text)] == ["AMP137"] * found
    renamed = text.replace("scaler.", "grad_scalar.").replace(
        "scaler =", "grad_scalar ="
    )
    assert [each.code for each in lint(renamed)] == ["AMP137"] * found
