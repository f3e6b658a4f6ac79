# ruff: noqa: E501 - lines as programs print them
"""What is said of logs, word by word, as it is committed: `python -m tests.golden diagnose` writes it anew.

The logs are drawn runs in each form, an ending behind the other; `texts.txt` has what is said of some in full,
`short.txt` of many more the verdict, the kinds of statements, and a digest of all that was said and read.
"""

import gzip
import hashlib
import json
import math
import random
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import ampsim.diagnose
from ampsim.diagnose.explain import Explanation, explain, in_words
from ampsim.diagnose.formats import ERRORS, PROGRAMS
from ampsim.diagnose.history import COLUMNS, History, HistoryBuilder
from ampsim.diagnose.page.page import asset
from ampsim.diagnose.readers.sniff import NothingReadError, read_history
from ampsim.diagnose.readers.text import read_text
from ampsim.diagnose.report import report
from ampsim.diagnose.statements import said, where
from ampsim.diagnose.wording import sparkline
from ampsim.run_file import RunFile, pack_counts
from tests.diagnose.drawn_runs import ENDINGS, PRINTERS, Log
from tests.diagnose.test_readers import DEEPSPEED, FAIRSEQ, MEGATRON, TRAINER
from tests.golden import agree, defaults

GOLDEN = Path(__file__).parent / "golden"
FORMS = sorted(PRINTERS)
TAGS = ("[rank0]: ", "0: ", "2026-01-01 10:00:00 INFO ", "[default0]:")


def logs() -> dict[str, Log]:
    """Return each form with each ending, whole; then in parts, thinned, wrapped, behind a stamp, of two ranks."""
    found = {}
    for number, (form, ending) in enumerate(product(FORMS, ENDINGS)):
        whole = Log(ending, form, 40 + 37 * (number % 7), 20 + number % 50, number, (1, 2, 5, 10)[number % 4])
        part = replace(whole, seed=number + 1000, drop=(0, 1, 3, 20)[number % 4], thin=1 + number % 3)
        if form not in ("epochs", "diffusion"):
            part = replace(part, tag=TAGS[number % 4], ranks=number % 3) if number % 2 else replace(part, width=80)
        found |= {f"{form}, {ending}": whole, f"{form}, {ending}, a part": replace(part, torn=number % 3 == 0)}
    return found


def numbers(history: History) -> dict[str, object]:
    """Return what was read, in short."""
    columns = {name: [float(f"{each:.6g}") for each in getattr(history, name)] for name in COLUMNS}
    told = {"bounds": history.bounds.tolist(), "numbered": history.numbered.tolist(), "rows": history.rows}
    words = {"program": history.program, "unit": history.unit, "says": history.says, "notes": history.notes}
    return {
        **columns,
        **told,
        **words,
        "settings": history.settings,
        "others": [numbers(one) for one in history.others],
    }


def digest(*told: object) -> str:
    return hashlib.sha256(json.dumps(rounded(told), default=str, sort_keys=True).encode()).hexdigest()[:8]


def rounded(told: object) -> object:
    """Return data with six digits of each number: the last ones of a logarithm are the processor's."""
    if isinstance(told, dict):
        return {str(key): rounded(each) for key, each in told.items()}
    if isinstance(told, list | tuple):
        return [rounded(each) for each in told]
    return f"{told:.6g}" if isinstance(told, float) else told


def short(history: History, explanation: Explanation) -> str:
    said = digest(in_words(explanation, lines=True), explanation.to_json())
    kinds = " ".join(each.kind.replace(" ", "_") for each in explanation.statements)
    return f"{explanation.verdict}: {kinds}; said {said}, read {digest(numbers(history))}"


def test_what_is_said_of_drawn_runs() -> None:
    found, texts = {}, {}
    for number, (name, log) in enumerate(logs().items()):
        history = read_text("train.log", log.text)
        if not len(history.step):
            continue
        explanation = explain(history)
        found[name] = short(history, explanation)
        if number % 18 == 0:
            texts[name] = in_words(explanation, lines=True)
    by_form = {
        form: [f"{name}: {text}" for name, text in found.items() if name.partition(",")[0] == form] for form in FORMS
    }
    agree(GOLDEN / "short.txt", {form: "\n".join(lines) for form, lines in by_form.items()})
    agree(GOLDEN / "texts.txt", texts)


def scale(n: int) -> float:
    return 2.0 ** (14 + n // 20 - (n > 47))


ROWS = [
    {"step": 10 * n, "loss": round(3 - n / 20 + math.sin(n) / 50, 4), "grad_norm": 1.0 + n % 3, "loss_scale": scale(n)}
    for n in range(1, 60)
]
TRAINED = [
    {"epoch": n / 9, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 2 - n / 99, "step": 10 * n} for n in range(1, 30)
]
FALLING = [{"step": n, "loss": 2.0, "loss_scale": 2.0 ** (16 - n), "overflow": 1} for n in range(50)]
COLUMNS_FIRST = "Step | Accuracy | Time\nloss  accuracy  time\nEpoch  Train Loss  Score\n" + "".join(
    f"{n}  {3 - n / 40:.3f}  0.{n}\n" for n in range(1, 30)
)
QUOTED = "".join(
    f'{{\n"step": {n},\n"note": "warm",\n"loss": {3 - n / 40:.3f},\n"loss_scale": 1024.0\n}}\n' for n in range(1, 30)
)
PRINTED = [f"step {row['step']}: loss={row['loss']}, scale={row['loss_scale']}\n" for row in ROWS]
TABLE = "".join(f"<tr><td>{10 * n}</td><td>{3 - n / 50}</td></tr>" for n in range(1, 40))
SHOWN = ["<table><tr><th>Step</th><th>Training Loss</th></tr>", TABLE, "</table>"]


def csv(rows: list[dict[str, float]], separator: str = ",") -> str:
    return "".join(separator.join(map(str, cells)) + "\n" for cells in [[*rows[0]], *(row.values() for row in rows)])


def lines(rows: list[dict[str, float]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def notebook(**output: object) -> str:
    return json.dumps({"cells": [{"cell_type": "markdown"}, {"outputs": [output]}]})


def own(path: Path, now: float = 2.0**15, bad: tuple[int, ...] = (60, 61), **header: object) -> None:
    """Write a run as ampsim.watch does: it skips, names parameters and has samples."""
    random = np.random.default_rng(0)
    with RunFile(path, {"torch": "2.13.0", "device": "cpu & <more>", "growth_interval": 50, **header}) as file:
        for step in range(200):
            record = {"step": step, "scale": now, "skipped": step in bad, "norm": 1.5, "loss": 2.0 - step / 200}
            if step in bad:
                record |= {"norm": math.inf, "bad": {f"blocks.{n}.weight": "has inf" for n in range(step % 9)}}
                now /= 2
            if step == 150:
                record["alarm"] = "no parameter has moved for 100 steps"
            if step % 19 == 0:
                drawn = {name: np.exp2(random.normal(at, 3, 99)) for name, at in (("embed", -9), ("head", -24))}
                record["by_parameter"] = {name: pack_counts(counts_of(values)) for name, values in drawn.items()}
            file.append(record)


def counts_of(values: np.ndarray) -> np.ndarray:
    counts = np.zeros(280, np.int64)
    np.add.at(counts, np.frexp(values)[1] - 1 + 150, 1)
    return counts


def files(folder: Path) -> dict[str, Path]:
    """Write a file of each kind."""
    text = "".join(PRINTED)
    written: dict[str, str | bytes] = {
        "rows.jsonl": lines(ROWS), "falling.jsonl": lines(FALLING), "damaged.jsonl": lines(ROWS)[:2000] + "{{]\n" + lines(ROWS[30:]),
        "table.csv": csv(ROWS), "semicolons.csv": csv(ROWS, ";"), "numbers.csv": "1,2,3\n4,5,6\n", "array.json": json.dumps(ROWS),
        "trainer_state.json": json.dumps({"best_metric": None, "log_history": TRAINED}, indent=2), "empty.log": "",
        "text.ipynb": notebook(text=PRINTED), "table.ipynb": notebook(data={"text/html": SHOWN}), "other.ipynb": "[]",
        "text.log.gz": gzip.compress(text.encode()), "torn.log.gz": gzip.compress(text.encode())[:-40], "utf16.log": text.encode("utf-16"),
        "returns.log": text.replace("\n", "\r\n"), "bars.log": text.replace("\n", "\r"), "binary.log": bytes(range(256)) * 9,
        "nothing.log": "hello\nworld\n", "back.log": "".join(PRINTED[:40] + PRINTED[20:]), "none.jsonl": '{"a": 1}\n' * 3,
        "negative.log": "step 1: loss=2, scale=-4\nstep 2: loss=nan, scale=8\nstep 3: loss=inf, scale=inf\n",
        "megatron.log": MEGATRON, "deepspeed.log": DEEPSPEED, "fairseq.log": FAIRSEQ, "trainer.log": TRAINER * 9,
        "columns.log": COLUMNS_FIRST, "quoted.log": QUOTED, "long.log": f"step 1: loss=2, {'x' * (1 << 14)} scale=8\nstep 2: loss=1, scale=4\n",
        "error.log": "".join(PRINTED[:9]) + "ValueError: Attempting to unscale FP16 gradients.\n",
        "epochs.log": "".join(f"Epoch {n // 10} [{n % 10}/10] loss: {3 - n / 50} grad_scale: 1024.0\n" for n in range(40)),
        "colours.log": "".join(f"\x1b[32m[rank{n % 2}]:\x1b[0m step {n} | loss {2 - n / 99} | grad_norm 1.0\n" for n in range(60)),
        "engines.log": "".join(f"[logging.py:96:log_dist] [Rank 0] step={n // 2}, skipped={n % 2 * n // 9}, lr=[1]\n" for n in range(2, 60)),
    }  # fmt: skip
    for name, content in written.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    own(folder / "own.jsonl")
    own(folder / "down.jsonl", 1.0, tuple(range(120, 200)), scaler=None)
    return {each: folder / each for each in [*written, "own.jsonl", "down.jsonl"]}


def test_what_is_said_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, pages = {}, {}
    for name in files(Path()):
        try:
            history = read_history(Path(name))
        except NothingReadError as error:
            found[name] = str(error)
            continue
        explanation = explain(history)
        read = {key: value for key, value in numbers(history).items() if key in ("program", "unit", "rows", "settings")}
        found[name] = f"{json.dumps(read)}\n{short(history, explanation)}\n{in_words(explanation, lines=True)}"
        if name in ("own.jsonl", "down.jsonl"):
            page = re.sub("(?s)<style>.*?</style>", "", report(history))
            body = page[: page.index("<script")].replace(asset("report.html").partition("<!--layers-->")[0], "...\n")
            data = page.partition('id="data">')[2].partition("</script>")[0]
            pages[name] = f"{body}{re.sub('[A-Za-z0-9+/=]{60,}', lambda packed: digest(packed[0]), data)}"
    agree(GOLDEN / "files.txt", found)
    agree(GOLDEN / "pages.txt", pages)


def test_how_numbers_and_steps_are_said() -> None:
    bounds = [(3, 7), (1, None), (0.5, 0.5), (1e90, 1e90), (2.0**60, 2.0**60), (2.0, 2.0**-3), (1, 1)]
    found = {
        f"{low} {high} {noun} {name}": said(name, (low, high), noun)
        for low, high in bounds
        for noun in ("step", None)
        for name in ("skips", "to")
    }
    spans = [(3.0, 3.0), (3.2, 7.5), (-2.0, 0.0), (1e6, 1e6 + 1)]
    found |= {
        f"{first} {last} {unit}": where(first, last, unit)
        for first, last in spans
        for unit in ("step", "epoch", "line")
    }
    found |= {f"line of {width}": "\n".join(sparkline(built(9), width)) for width in (5, 30, 100)}
    found |= {f"line {seed}": "\n".join(sparkline(built(seed), 40)) for seed in range(4)}
    for name, losses in {
        "falls": [3.0, 3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3, 2.0, 2.0, 2.0], "a little": [3.0] * 9 + [2.8] * 3, "once": [3.0] * 11 + [1.0], "few": [3, 2, 1], "to 0": [3.0] * 9 + [0.0] * 3,
        "before the last quarter": [3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 2.0, 2.0], "at its end": [3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.1],
    }.items():  # fmt: skip
        builder = HistoryBuilder("run", "JSON Lines")
        for step, loss in enumerate(losses):
            builder.add(float(step), loss=float(loss), scale=8.0)
        found[f"loss {name}"] = explain(builder.finish()).why
    agree(GOLDEN / "said.txt", found)


def test_what_is_said_of_errors() -> None:
    """A text that each pattern of an error finds is said to be that error, by name, cause and cure."""
    found = {}
    for error in ERRORS:
        told = [error[word] for word in ("name", "cause", "cure")]
        found[error["pattern"].pattern] = f"{told[0]}, {digest(*told)}"
    agree(GOLDEN / "errors.txt", found)


LINES = [
    "step {n}: loss={loss:.4f}, scale={scale:g}", "step {n} | loss {loss:.3f} | loss_scale: {scale:g} | grad_norm: {norm:.3f} |",
    " iteration {n:8d}/  99999 | consumed samples: {n} | lm loss: {loss:.6E} | loss scale: {scale:.1f} | grad norm: {norm:.3f} | number of skipped iterations: {skip:3d} | number of nan iterations: {nan:3d} |",
    "[2026-01-01 10:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped={total}, lr=[0.1], mom=[0.9]",
    "Epoch: [{epoch}][{i}/{of}] Loss {loss:.4f} ({mean:.3f}) Scale {scale:g}", "epoch {epoch} step {i}: loss {loss:.3f} grad_scale: {scale:g} grad_norm: {norm:.2f}",
    "{{'loss': {loss:.4f}, 'grad_norm': {norm:.3f}, 'learning_rate': {rate:g}, 'epoch': {part:.2f}}}", " 3%|x | {n}/9999 [00:01<00:09, 8it/s]{{'loss': {loss:.4f}, 'learning_rate': {rate:g}, 'epoch': {part:.2f}}}",
    "2026-01-01 10:00:00 | INFO | train_inner | epoch {epoch:03d}: {i:6d} / {of} loss={loss:.3f}, num_updates={n}, lr={rate:g}, gnorm={norm:.3f}, loss_scale={scale:.4g}",
    "Epoch: [{epoch}]  [{i:4d}/{of}]  eta: 0:01:00  lr: {rate:g}  loss: {loss:.4f} ({mean:.4f})  loss_scale: {scale:.1f} ({scale:.1f})  grad_norm: {norm:.4f} ({norm:.4f})",
    "01/01 10:00:00 - mmengine - INFO - Epoch(train) [{epoch}][{i}/{of}]  lr: {rate:g}  eta: 0:01:00  loss: {loss:.4f}  grad_norm: {norm:.4f}",
    "{epoch}epoch:train:{i}-{n}batch: iter_time=0.1, loss={loss:.3f}, optim0_lr0={rate:g}, grad_norm={norm:.3f}, clip=0.000e+00, loss_scale={scale:.3e}",
    "Training: Speed 9.1 samples/sec   Loss {loss:.4f}   LearningRate {rate:g}   Epoch: {epoch}   Global Step: {n}   Fp16 Grad Scale: {scale:2.0f}   Required: 9 hours",
    "2026-01-01 10:00:00,000 - mmdet - INFO - Epoch [{epoch}][{i}/{of}]\tlr: {rate:g}, loss: {loss:.4f}, grad_norm: {norm:.4f}",
    "INFO - {{ Epoch:[{epoch:3d}/ 9], step:[{i:5d}/{of}], loss: {loss:5.3f}, lr: {rate:g}, overflow cond: {flag}, loss_scale: {scale:g}, global_norm: [{norm:.4f}]",
    "epoch: {epoch}, current epoch percent: 0.1, step: {n}, outputs are ({loss:.4f}, {flag}, {scale:g})", "[{epoch}/9][{i}/{of}] Loss_D: {loss:.4f} Loss_G: {mean:.4f} amp_scale: {scale:g}",
    "epoch {epoch}: train_loss {mean:.3f}, train_loss_scale {scale:g}", '{{"step": {n}, "loss": "{loss:.4f}", "gnorm": "{norm:.3f}", "loss_scale": "{scale:g}"}}', "global_step {n} loss tensor({loss:.4f}, device='cuda:0') scaler {scale:g}",
    "| step | {n} |", "| loss | {loss:.4f} |", "| grad_norm | {norm:.3g} |", "| lg_loss_scale | {log} |", "{n}\t{loss:.6f}\t{mean:.6f}", "Iter {n}, loss: {loss:.3f}, skipped steps: {total}, current loss scale: {scale:g}",
    "  step: {n}", "  loss: {loss:.4f}", "loss_scale: {scale:g}", "training loss {loss:.4f} at iteration {n} log2_scale: {log}", "epoch {epoch} | valid | loss {loss:.3f} | scale {scale:g}", "step {n} nan loss: {loss} grad norm is {norm}",
]  # fmt: skip
SAID = [
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale:g}, reducing to {half:g}", "[deepspeed] OVERFLOW! Rank 1 Skipping step. Attempted loss scale: {scale:g}, but hysteresis is 2. Reducing hysteresis to 1",
    "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {half:g}", "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: {half:g}", "Overflow detected at step {n}, ignoring gradient, decreasing loss scale from {scale:g} to {half:g}",
    "_update_scale] Grad overflow on iteration {n}", "Using dynamic loss scale of {scale:g}", "Skipped batch, new scale: {half:g}", "Found inf or nan, current scale is: {scale:g}, decrease to: {scale:g}*0.5", "optimizer not run, scale_before: {scale:g}, scale_after: {half:g}",
    "Overflow occurs, the loss scale is adjusted to {half:g}", "Found NaN, decreased lg_loss_scale to {log}", "Grad scale is small: {scale:g}", "The grad norm is nan. Skipping updating the model.", "The gradients at all steps are invalid in this epoch.",
    "overflow, drop step, loss scale adjust to {half:g}", "overflow, still update, loss scale adjust to {half:g}", "  fp16_enabled ................. False", "  fp16_enabled ................. True", "Current loss scale already at minimum - cannot decrease scale anymore.",
    "time (ms) | forward-compute: 3012.1", "Minimum loss scale reached (0.0001).", "_update_scale] Increasing dynamic loss scale from {half:g} to {scale:g}", "OVERFLOW! Skipping step. Attempted loss scale: {scale:g}", "saving checkpoint at iteration {n}", "ValueError: Attempting to unscale FP16 gradients.",
    "FloatingPointError: Minimum loss scale reached", "Step\tTraining Loss\tValidation Loss", "---", "RuntimeError: element 0 of tensors does not require grad", "ZeroDivisionError: float division by zero", "{{'eval_loss': {loss:.4f}, 'epoch': {part:.2f}}}",
]  # fmt: skip
TAGGED = (
    "",
    "",
    "",
    "[rank0]: ",
    "[rank1]: ",
    "0: ",
    "[default1]:",
    "2026-01-01 10:00:00 INFO ",
    "\x1b[32mINFO\x1b[0m ",
)


def mixed(seed: int) -> list[str]:
    """Return a log of one to three kinds of lines, in which a scale falls and rises, with sentences and stamps."""
    it = random.Random(seed)  # noqa: S311  no secret
    kinds, sentences = it.sample(LINES, it.choice((1, 1, 1, 2, 3))), it.sample(SAID, it.choice((0, 1, 1, 2)))
    tags = it.sample(TAGGED, it.choice((1, 1, 2)))
    now, total, step, every, of = (
        2.0 ** it.randint(0, 20),
        0,
        it.choice((0, 0, 1, 100)),
        it.choice((1, 1, 1, 5, 10)),
        it.choice((4, 10, 50)),
    )
    fate, found = it.choice(("stands", "falls", "rises", "wanders", "collapses", "nan")), []
    for number in range(it.randint(3, 40)):
        bad = (
            it.random()
            < {"stands": 0.02, "falls": 0.3, "rises": 0.0, "wanders": 0.2, "collapses": 0.9, "nan": 0.5}[fate]
        )
        total += bad
        now = now * (0.5 if bad else 2.0 if it.random() < {"rises": 0.4, "wanders": 0.2}.get(fate, 0.02) else 1.0)
        loss = (
            math.nan
            if fate == "nan" and bad
            else 3.0 - number / 30 + it.random() / 20 + (fate == "wanders" and number > 20) * 2
        )
        given = {
            "n": step, "loss": loss, "mean": 3 - number / 40, "scale": now, "half": now / 2, "log": math.log2(now), "norm": math.inf if bad and it.random() < 0.7 else 1 + it.random(),
            "skip": int(bad), "nan": int(loss != loss), "total": total, "flag": bad, "rate": 1e-4 * number, "part": step / of, "epoch": 1 + step // of, "i": step % of + it.choice((0, 1)), "of": of,
        }  # fmt: skip
        if bad or it.random() < 0.05:
            found += [it.choice(tags) + each.format(**given) for each in sentences]
        found += [it.choice(tags) + each.format(**given) for each in kinds]
        step = 0 if it.random() < 0.01 else step + every
    width = it.choice((0, 0, 0, 0, 60, 80, 120))  # at which a terminal has cut them
    found = [line[at : at + width] for line in found for at in range(0, max(len(line), 1), width)] if width else found
    ends = "\n" if it.random() < 0.9 else "\r"
    return [f"{line}{ends}" for line in found]


def read_and_said(history: History) -> str:
    if not len(history.step):
        return "nothing"
    explanation = explain(history)
    return f"{explanation.verdict[0]} {digest(numbers(history))[:4]}{digest(in_words(explanation, lines=True), explanation.to_json())[:4]}"


def test_what_is_said_of_mixed_lines() -> None:
    """Of each log the verdict, and a digest of what was read and of what was said."""
    found = [read_and_said(read_text("train.log", mixed(seed))) for seed in range(400)]
    rows = {f"seeds {at} to {at + 19}": "\n".join(found[at : at + 20]) for at in range(0, len(found), 20)}
    agree(GOLDEN / "mixed.txt", rows)


def built(seed: int) -> History:
    """Return a history of drawn rows, of a program that is drawn: a way of the scale, and whatever else is told."""
    it = random.Random(seed)  # noqa: S311  no secret
    program = it.choice(
        [*(each["name"] for each in PROGRAMS), "a training log", "ampsim.watch", "JSON Lines", "TensorBoard"]
    )
    builder = HistoryBuilder("run", program)
    has = {
        name: it.random() < share
        for name, share in (
            ("scale", 0.7),
            ("norm", 0.6),
            ("loss", 0.7),
            ("skipped", 0.4),
            ("total", 0.2),
            ("rate", 0.2),
            ("left", 0.3),
            ("step", 0.9),
        )
    }
    now, total, step, line = 2.0 ** it.choice((0, 4, 10, 16, 16, 30, 50)), 0, it.choice((0, 0, 1, 1000)), 0
    ways = [it.choice(("stands", "falls", "rises", "wanders")) for _ in range(it.choice((1, 2, 2, 3)))]
    unit = it.choice((1, 1, 1, 10, 100))
    for way in ways:
        for _ in range(it.randint(2, 25)):
            bad = it.random() < {"stands": 0.01, "falls": 0.8, "rises": 0.0, "wanders": 0.15}[way]
            line += it.choice((1, 1, 2))
            total += bad
            loss = (
                0.0
                if it.random() < 0.01
                else it.choice((math.inf, 4.0))
                if bad and it.random() < 0.3
                else 3.0 - line / 60 + it.random() / 9 + 4 * (way == "falls" and it.random() < 0.2)
            )
            row = {
                "scale": now,
                "norm": math.inf if bad and it.random() < 0.8 else it.choice((1.0, 1.5, 900.0)),
                "loss": loss,
                "skipped": float(bad * it.choice((1, 1, unit))),
                "total": float(total),
                "rate": 1e-4 * (line - total),
            }
            row = {name: value for name, value in row.items() if has[name]}
            if has["left"] and bad:
                row = {"left": now / 2, "told": 1.0, **({"scale": now} if it.random() < 0.5 else {})}
            builder.add(float(step) if has["step"] and "left" not in row else math.nan, {**row, "line": float(line)})
            now *= 0.5 if bad else it.choice((1.0, 2.0)) if way == "rises" else 2.0 if it.random() < 0.05 else 1.0
            step += unit
    for name, share in {"means": 0.05, "values": 0.05, "cut": 0.03, "engines": 0.03, "composed": 0.05}.items():
        builder.settings |= {name: True} if it.random() < share else {}
    builder.settings |= {"count": it.choice(("unsaid", "each"))} if it.random() < 0.2 else {}
    for word in ("at minimum", "unguarded", "evaluation", "no fp16", "all invalid", "guard off", "told"):
        if it.random() < 0.04:
            builder.say(word, line)
    if it.random() < 0.1:
        builder.alarms.append((step, "no parameter has moved"))
    return builder.finish()


def test_what_is_said_of_drawn_rows() -> None:
    """Of each history the verdict, and a digest of it and of what was said."""
    found = [read_and_said(built(seed)) for seed in range(600)]
    rows = {f"seeds {at} to {at + 19}": "\n".join(found[at : at + 20]) for at in range(0, len(found), 20)}
    agree(GOLDEN / "rows.txt", rows)


def test_what_is_taken_where_nothing_is_given() -> None:
    agree(GOLDEN / "defaults.txt", {"ampsim.diagnose": defaults(ampsim.diagnose)})
