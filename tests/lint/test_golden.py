# ruff: noqa: E501 - a table of calls
"""What lint and adapt say, as it is committed: `python -m tests.golden lint` writes it anew."""

import ast
import contextlib
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ampsim.lint
from ampsim.lint.adapt.command import main as adapt
from ampsim.lint.adapt.module import adapt as adapt_source
from ampsim.lint.command import main, parser
from ampsim.lint.engine import RULES, lint
from ampsim.lint.source import UnreadableError
from tests.golden import agree, defaults
from tests.lint.test_adapt import GATED, SAVED, WHOLE

GOLDEN = Path(__file__).parent / "golden"
OUTSIDERS = Path(__file__).parents[1] / "testing" / "outsiders.jsonl"


def variants(code: str) -> dict[str, str]:
    """Return a rule's loops: as they are, in a function, in a class, and with other names."""
    found = {}
    for kind in ("wrong", "right"):
        text: str = getattr(RULES[code], kind)
        inner = "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))
        deeper = inner.replace("\n    ", "\n        ")
        found |= {
            f"{code}_{kind}.py": text,
            f"{code}_{kind}_function.py": f"def train(model, loader, scaler, optimizer, **kwargs):\n{inner}",
            f"{code}_{kind}_class.py": f"class Trainer:\n    def fit(self):\n    {deeper.rstrip(' ')}",
            f"{code}_{kind}_names.py": re.sub(r"\bscaler\b", "amp_scaler", re.sub(r"\boptimizer\b", "opt", text)),
        }
    return found


def said(call: object, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        status = call(arguments)  # type: ignore[operator]
    except SystemExit as ended:
        status = ended.code
    found = capsys.readouterr()
    return "".join([f"{status}\n", found.out, *([f"--- said\n{found.err}"] if found.err else [])])


def test_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for code in RULES:
        for name, text in variants(code).items():
            Path(name).write_text(text)
    Path("torn.py").write_text("for x in y:\n    scaler.step(\n")
    Path("tabs.py").write_text("if 1:\n\tx\n        y\n")
    Path("latin.py").write_bytes("# é\n".encode("latin-1"))
    Path("null.py").write_text("a\0b")
    Path("notes.txt").write_text("scaler")
    Path("odd,name.py").write_text(RULES["AMP101"].wrong)
    Path("twice.py").write_text(RULES["AMP101"].wrong + RULES["AMP102"].wrong)
    commands = [
        "--select ALL .", "AMP101_wrong.py AMP101_right.py",
        "--select ALL --json AMP101_wrong.py AMP103_wrong.py torn.py",
        "--format github odd,name.py AMP102_wrong.py torn.py",
        "--json AMP101_right.py", "--format github AMP101_right.py",
        "--select AMP10 twice.py", "--ignore AMP101 twice.py", "--select amp101,AMP102 --ignore AMP102 twice.py",
        "--select AMP9 twice.py", "--ignore , twice.py",
        "torn.py", "tabs.py latin.py null.py none.py", "", "--explain amp101",
        "--explain AMP1", "--rules", "--format xml twice.py", "--select ALL notes.txt", "no/such/folder",
    ]  # fmt: skip
    found = {command: said(main, command.split(), capsys) for command in commands}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(RULES["AMP101"].wrong.encode())))
    found["-"] = said(main, ["-"], capsys)
    agree(GOLDEN / "found.txt", {command or "nothing": text for command, text in found.items()})


def test_what_each_rule_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for code, rule in RULES.items():
        text = said(main, ["--explain", code], capsys)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        found[code] = f"{rule.name} {rule.law} {rule.on}, page {digest}"
    words = ("option_strings", "dest", "nargs", "const", "default", "metavar", "help")
    options = [[getattr(each, word) for word in words] for each in parser()._actions]
    agree(GOLDEN / "rules.txt", {**found, "options": "\n".join(map(str, options))})


def test_what_is_adapted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    for number, code in enumerate(RULES):
        for name, text in variants(code).items():
            Path(name).write_text(text)
            whole = said(adapt, [name], capsys)
            if name.endswith("wrong.py") and number % 16 == 0:
                found[name] = whole
            else:
                digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
                marks = whole.count("TODO")
                found[name] = f"{whole.partition(chr(10))[0]}, {marks} marks, {len(whole.splitlines())} lines, {digest}"
    Path("torn.py").write_text("for x in y:\n    scaler.step(\n")
    for arguments in (
        ["torn.py"],
        ["none.py"],
        ["AMP101_wrong.py", "--line", "3"],
        ["AMP101_wrong.py", "--line", "999"],
    ):
        found[" ".join(arguments)] = said(adapt, arguments, capsys)
    agree(GOLDEN / "adapted.txt", found)


def changed(text: str) -> Iterator[tuple[str, str]]:
    """Yield a loop with other calls, then without its n-th line, with it and the next one swapped, and with it twice, where that is Python."""
    others = {
        "bare": text.replace("scaler.step(optimizer)", "optimizer.step()"), "else": f"{text}else:\n    scaler.update()\n",
        "sum": text.replace(".mean()", ".sum()"), "no norm": re.sub(r"(clip_grad_\w+\(.*?\(\)), [^)]*", r"\1", text),
    }  # fmt: skip
    for name, whole in others.items():
        with contextlib.suppress(SyntaxError):
            ast.parse(whole)
            yield from [(f"{name} 0", whole)] if whole != text else []
    lines = text.splitlines(keepends=True)
    for n in range(len(lines)):
        for sign, part in (("-", []), ("~", lines[n + 1 : n + 2] + lines[n : n + 1]), ("+", [lines[n]] * 2)):
            whole = "".join([*lines[:n], *part, *lines[n + 1 + (sign == "~") :]])
            with contextlib.suppress(SyntaxError):
                ast.parse(whole)
                yield f"{sign}{n + 1}", whole


THIRD = """
import torch
scaler = torch.amp.GradScaler()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
debug = False
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).sum()
    scaler.scale(loss).backward()
    if debug:
        scaler.update()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), threshold_of(step))
    other = torch.nn.utils.clip_grad_value_(model.parameters())
    self.count += 1
    total += loss.mean()
    if not debug and self.count > 3:
        scaler.step(optimizer)
    scaler.update()
    for p in model.parameters():
        p.grad.nan_to_num_()
    optimizer.step()
else:
    scheduler.step()
    scaler.unscale_(optimizer)
"""
BARE = """
import torch
scaler = torch.amp.GradScaler()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    scaler.scale(model(x).sum()).backward()
    for p in model.parameters():
        p.grad.nan_to_num_()
    optimizer.step()
    scaler.update()
"""


def test_what_is_made_of_loops_that_say_little() -> None:
    found = {}
    for name, text in {"third": THIRD, "bare": BARE, "negated": THIRD.replace("debug = False", "debug = True")}.items():
        findings = [f"{each.line}:{each.column} {each.code} {each.message}" for each in lint(text, codes=RULES)]
        made, marks = adapt_source(text, "train.py", None)
        found[name] = "\n".join([*findings, made[made.index("def make") :], *marks])
    agree(GOLDEN / "little.txt", found)


def test_what_is_found_where_a_line_is_missing_moved_or_doubled() -> None:
    found = {}
    for code, rule in RULES.items():
        for kind in ("wrong", "right"):
            codes = {
                name: [each.code[3:] for each in lint(text, codes=RULES)] for name, text in changed(getattr(rule, kind))
            }
            found[f"{code} {kind}"] = ", ".join(f"{name} {'&'.join(each)}" for name, each in codes.items())
    agree(GOLDEN / "changed.txt", found)


ODD = """
import math
import torch
from torch.amp import GradScaler, autocast
from torch.nn.utils import clip_grad_norm_

class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

class Runner:
    def __init__(self, cfg, model, use_amp=True, accum=2):
        self.cfg, self.net, self.accum = cfg, model, accum
        self.scaler = GradScaler("cuda", enabled=use_amp, init_scale=2.0**12)
        self.opt_g = torch.optim.Adam(model.g.parameters(), lr=1e-3)
        self.opt_d = torch.optim.SGD(model.d.parameters(), lr=cfg.lr)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt_g, lambda n: 0.9**n)
        self.global_step = 0
        self.best: float = math.inf
        self.meter = Meter()

    def run(self, loader, epochs):
        for epoch in range(epochs):
            running, skipped = 0.0, 0
            for i, batch in enumerate(loader):
                x, y = batch["image"].to("cuda"), batch["label"]
                with autocast("cuda", dtype=torch.float16):
                    out = self.net(x)
                    loss_g = self.criterion(out, y) / self.accum
                    loss_d = self.net.d(out.detach()).mean()
                if not torch.isfinite(loss_g):
                    skipped += 1
                    continue
                self.scaler.scale(loss_g + 0.1 * loss_d).backward(retain_graph=True)
                running += loss_g.item() * self.accum
                if (i + 1) % self.accum == 0 or i + 1 == len(loader):
                    self.scaler.unscale_(self.opt_g)
                    norm = clip_grad_norm_(self.net.parameters(), self.cfg.clip)
                    for group in self.opt_d.param_groups:
                        group["lr"] = self.cfg.lr * 0.99**self.global_step
                    for opt in (self.opt_g, self.opt_d):
                        self.scaler.step(opt)
                    before = self.scaler.get_scale()
                    self.scaler.update()
                    self.opt_g.zero_grad(set_to_none=True)
                    self.opt_d.zero_grad()
                    if before <= self.scaler.get_scale():
                        self.sched.step()
                    self.global_step += 1
                    with torch.no_grad():
                        for p, q in zip(self.net.parameters(), self.ema.parameters()):
                            q.mul_(0.999).add_(p, alpha=0.001)
                while self.global_step > self.cfg.most:
                    break
                else:
                    self.meter.update(loss_g.item(), n=len(x))
            try:
                self.best = min(self.best, running)
            finally:
                self.save({"opt": self.opt_g.state_dict(), "amp": self.scaler.state_dict(), "step": self.global_step})
        return running / len(loader)

    def save(self, state):
        torch.save(state, f"{self.cfg.out}/last.pt")
"""


SECOND = """
import torch

use_ema = False
log_every, clip = 10, None
n_iter, skipped = 0, 0
scaler = torch.cuda.amp.GradScaler()
net, ema = Net().cuda(), Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, 10)

def closure(x, y, *, weight=1.0):
    loss = crit(net(x), y).sum() * weight
    return loss, loss.detach()

def finish(grads):
    for g in grads:
        g.nan_to_num_(0.0)
    return [g for g in grads if g is not None]

while n_iter < 1000:
    for x, y in loader:
        n_iter += 1
        loss, kept = closure(x, y)
        scaler.scale(loss).backward()
        if n_iter % 2:
            continue
        scaler.unscale_(opt)
        total = torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=args.clip)
        for p in net.parameters():
            p.grad.mul_(0.5)
            p.grad += 0.01 * p.data
        if use_ema:
            ema.update(net)
        match args.kind:
            case "fast":
                opt.zero_grad()
            case _:
                pass
        finish([p.grad for p in net.parameters()])
        found = scaler.step(opt)
        scale = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < scale
        opt.zero_grad(set_to_none=False)
        if not torch.isinf(total) and clip is None:
            sched.step()
        elif total > 10.0:
            raise RuntimeError
        lr = opt.param_groups[0]["lr"] = 0.1 * 0.9 ** n_iter
        losses = [*losses, loss.item()] if n_iter % log_every == 0 else losses
    else:
        sched.step()
        torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, "last.pt")
        continue
    break
else:
    scaler = torch.cuda.amp.GradScaler()
"""


def test_what_is_made_of_odd_loops_where_a_line_is_missing_or_moved() -> None:
    """A digest of what adapt writes, and the findings, of each change of three long loops."""
    found = {}
    for name, text in {"odd": ODD, "second": SECOND, "whole": WHOLE.format(step=GATED, saved=SAVED)}.items():
        told = [f"{adapt_source(text, 'train.py', None)[0]}"]
        for change, whole in changed(text):
            if change[0] not in "-~" or int(change[1:]) % (3 if change[0] == "-" else 9):
                continue
            codes = "&".join(each.code[3:] for each in lint(whole, codes=RULES))
            try:
                made = hashlib.sha256(f"{adapt_source(whole, 'train.py', None)}".encode()).hexdigest()[:6]
            except UnreadableError as error:
                made = f"{error}"
            told.append(f"{change} {codes} {made}")
        found[name] = "\n".join(told)
    agree(GOLDEN / "odd.txt", found)


def test_what_is_found_in_loops_of_others() -> None:
    """Of every eighth program of `tests/testing/outsiders.jsonl` the findings, and a digest of what adapt makes of it."""
    programs = [json.loads(line) for line in OUTSIDERS.read_text("utf-8").splitlines()][::8]
    found, adapted = {}, []
    for each in programs:
        if findings := lint(each["source"], each["file"], codes=RULES):
            found[each["file"]] = "\n".join(f"{one.line}:{one.column} {one.code} {one.message}" for one in findings)
        try:
            text, marks = adapt_source(each["source"], each["file"], None)
        except UnreadableError as error:
            text, marks = f"{error}", []
        adapted.append(f"{each['file']} {hashlib.sha256(f'{text}{marks}'.encode()).hexdigest()[:6]}")
    agree(GOLDEN / "others.txt", {**found, "adapted": "\n".join(adapted)})


def test_what_is_taken_where_nothing_is_given() -> None:
    agree(GOLDEN / "defaults.txt", {"ampsim.lint": defaults(ampsim.lint)})
