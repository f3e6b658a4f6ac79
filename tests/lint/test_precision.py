"""The precision of a file: scalers under bfloat16, float16 without a scaler, and scalers that
nothing uses.
"""

import pytest

from ampsim.lint.engine import lint

SCALED = """\
scaler = torch.amp.GradScaler("cuda"{enabled})
for batch in loader:
    with {autocast}:
        loss = model(batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
BARE = """\
{before}
for batch in loader:
    with {autocast}:
        loss = model(batch)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("before", "autocast", "enabled", "found"),
    [
        ("", "torch.autocast('cuda', dtype=torch.bfloat16)", "", True),
        ("", "torch.autocast('cuda', torch.bfloat16)", ", enabled=True", True),
        ("dtype = torch.bfloat16\n", "torch.autocast('cuda', dtype=dtype)", "", True),
        (
            "k = {'a': torch.bfloat16}['a']\n",
            "torch.autocast('cuda', dtype=k)",
            "",
            True,
        ),
        ("", "torch.autocast('cuda', dtype=torch.float16)", "", False),
        ("", "torch.autocast('cuda', dtype=args.dtype)", "", False),
        (
            "",
            "torch.autocast('cuda', dtype=torch.bfloat16)",
            ", enabled=args.fp16",
            False,
        ),
        (
            "dtype = torch.bfloat16 if args.bf16 else torch.float16\n",
            "torch.autocast('cuda', dtype=dtype)",
            "",
            False,
        ),
        (
            "on = gpu and dtype in ('half', 'bfloat16')\n",
            "cast()",
            ", enabled=on",
            True,
        ),
        ("on = old and dtype != 'bfloat16'\n", "cast()", ", enabled=on", False),
        ("on = torch.cuda.is_bf16_supported()\n", "cast()", ", enabled=on", False),
    ],
)
def test_enabled_scaler_under_bfloat16(
    before: str, autocast: str, enabled: str, found: bool
) -> None:
    text = before + SCALED.format(autocast=autocast, enabled=enabled)
    assert ["AMP132" for each in lint(text) if each.code == "AMP132"] == [
        "AMP132"
    ] * found


def test_scaler_argument_under_bfloat16() -> None:
    _, loop = SCALED.split("\n", 1)
    text = loop.format(autocast="torch.autocast('cuda', dtype=torch.bfloat16)")
    text += "    optimizer.zero_grad()\n"
    assert [(each.line, each.code) for each in lint(text)] == [(4, "AMP132")]
    assert lint(text.replace("bfloat16", "float16")) == []


@pytest.mark.parametrize(
    ("before", "autocast", "found"),
    [
        ("", "torch.cuda.amp.autocast()", True),
        ("", "torch.autocast('cuda')", True),
        ("", "torch.autocast('cuda', dtype=torch.bfloat16)", False),
        ("", "torch.autocast('cuda', enabled=False)", False),
        ("", "torch.autocast(device)", False),
        ("", "torch.no_grad(), torch.autocast('cuda')", False),
        ("context = torch.autocast('cuda', dtype=torch.half)", "context", True),
        (
            "types = {'bf16': torch.bfloat16, 'fp16': torch.float16}[args.dtype]",
            "torch.autocast('cuda', dtype=types)",
            True,
        ),
        (
            "name = 'fp16' if old else 'bf16'\ntypes = {'bf16': torch.bfloat16, 'fp16': torch.half}[name]\n"
            "context = nullcontext() if cpu else torch.autocast('cuda', dtype=types)",
            "context",
            True,
        ),
        (
            "make = lambda: torch.autocast('cuda', dtype=torch.half)",
            "make()",
            True,
        ),
        ("import deepspeed", "torch.autocast('cuda', dtype=torch.half)", False),
    ],
)
def test_float16_autocast_needs_a_scaler(
    before: str, autocast: str, found: bool
) -> None:
    text = BARE.format(before=before, autocast=autocast)
    assert [each.code for each in lint(text)] == ["AMP136"] * found
    # A scaler of another loop, or for another loss, changes nothing; a branch without fp16 does.
    other = SCALED.format(autocast="context", enabled="").replace('"cuda"', "")
    codes = {each.code for each in lint(other + text)}
    assert ("AMP136" in codes) == found
    branch = text.replace("loss.back", "if not fp16:\n        loss.back")
    assert lint(branch) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [("scaler = GradScaler()", True), ("self.scaler = GradScaler()", False)],
)
def test_scaler_of_a_method_is_unused(line: str, found: bool) -> None:
    """Another file may use an attribute, but not a local name."""
    body = "        loss = model(batch.clamp(0, 1))\n        loss.backward()\n        optimizer.step()\n"
    text = f"class Trainer:\n    def train(self, optimizer):\n        {line}\n{body}"
    assert [each.code for each in lint(text)] == ["AMP130"] * found


@pytest.mark.parametrize(("device", "codes"), [("cuda", ["AMP136"]), ("cpu", [])])
def test_autocast_follows_named_device(device: str, codes: list[str]) -> None:
    before = f"device = torch.device({device!r} if found else 'cpu')"
    text = BARE.format(
        before=before, autocast="torch.autocast(device_type=str(device))"
    )
    assert [each.code for each in lint(text)] == codes


@pytest.mark.parametrize(
    ("use", "found"),
    [
        ("if scaler is not None: print(loss)", False),
        ("if scaler: scaler.load_state_dict(state)", True),
        ("save(scaler.state_dict())", True),
        ("save(scaler)", False),
        ("return scaler", False),
    ],
)
def test_kept_state_is_no_use(use: str, found: bool) -> None:
    text = f"def train(accelerator, loss):\n    scaler = GradScaler()\n    {use}\n"
    assert [each.code for each in lint(text)] == ["AMP130"] * found
    assert (
        lint(text.replace("    scaler = ", "    global scaler\n    self.scaler = "))
        == []
    )
