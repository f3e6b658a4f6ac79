# ruff: noqa: E501 - lines as programs print them
"""What is said of logs, word by word, as it is committed: `python -m tests.golden diagnose` writes it anew.

The logs are drawn runs in each form, an ending behind the other; `texts.txt` has what is said of some in full,
`short.txt` of many more the verdict, the kinds of statements, and a digest of all that was said and read.
"""

import gzip
import hashlib
import json
import math
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import ampsim.diagnose
from ampsim.diagnose.explain import Explanation, explain, in_words
from ampsim.diagnose.formats import ERRORS
from ampsim.diagnose.history import COLUMNS, History
from ampsim.diagnose.page.page import asset
from ampsim.diagnose.readers.sniff import NothingReadError, read_history
from ampsim.diagnose.readers.text import read_text
from ampsim.diagnose.report import report
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
    return hashlib.sha256(json.dumps(told, default=str, sort_keys=True).encode()).hexdigest()[:8]


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
        if number % 8 == 0:
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
            if step % 20 == 0:
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
        if name in ("own.jsonl", "down.jsonl", "falling.jsonl", "rows.jsonl"):
            page = re.sub("(?s)<style>.*?</style>", "", report(history))
            body = page[: page.index("<script")].replace(asset("report.html").partition("<!--layers-->")[0], "...\n")
            data = page.partition('id="data">')[2].partition("</script>")[0]
            pages[name] = f"{body}{re.sub('[A-Za-z0-9+/=]{60,}', lambda packed: digest(packed[0]), data)}"
    agree(GOLDEN / "files.txt", found)
    agree(GOLDEN / "pages.txt", pages)


def test_what_is_said_of_errors() -> None:
    """A text that each pattern of an error finds is said to be that error, by name, cause and cure."""
    found = {}
    for error in ERRORS:
        told = [error[word] for word in ("name", "cause", "cure")]
        found[error["pattern"].pattern] = f"{told[0]}, {digest(*told)}"
    agree(GOLDEN / "errors.txt", found)


def test_what_is_taken_where_nothing_is_given() -> None:
    agree(GOLDEN / "defaults.txt", {"ampsim.diagnose": defaults(ampsim.diagnose)})
