"""The playground computes what ampsim computes, shows what was recorded, and works in a browser."""

import json
import math
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ampsim import dialects, records, replay, replay_ceilings
from ampsim.cli import app
from ampsim.core import theory
from ampsim.core.machine import Rule
from ampsim.diagnose.playground import build
from ampsim.diagnose.playground.build import FORMATS, all_dialects, rule_data
from ampsim.diagnose.readers.sniff import read_history
from tests.diagnose import test_public_logs as public
from tests.diagnose import test_readers as logs

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed: what the page computes stays unchecked")
COMMITTED = Path(__file__).parents[2] / "figures" / "playground.html"
RECORDS = [row for row in records.read(build.DATA)[1] if row["counts"]]


def asked(expression: str, given: object) -> Any:
    """Return the value of a JavaScript expression of ``given``, where the page's machine and models are loaded."""
    source = "".join((build.HERE / name).read_text() for name in build.SCRIPTS[:-1])
    revive = '(key, value) => value === "inf" ? Infinity : value'
    source += f'const given = JSON.parse(require("fs").readFileSync(0, "utf8"), {revive});'
    source += f"process.stdout.write(JSON.stringify({expression}))"
    done = subprocess.run(  # noqa: S603 - scripts of ours
        [str(NODE), "-e", source], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_node
@pytest.mark.parametrize(
    "given",
    [{}, {"init": 2.0**20}, {"interval": 7}, {"init": 512.0, "interval": 3}, {"growth": 1.5, "backoff": 0.75}],
)
def test_knobs_make_the_rule_that_the_dialect_makes(given: dict[str, float]) -> None:
    known = [d for d in all_dialects() if set(given) <= set(d["parameters"])]
    knobs = [{d["parameters"][name]: value for name, value in given.items()} for d in known]
    made = asked("given.map(([dialect, knobs]) => Runs.ruleOf(dialect, knobs))", list(zip(known, knobs, strict=True)))
    expected = [rule_data(dialects.get(d["name"], **given)) for d in known]
    assert [without_inf(rule) for rule in made] == [without_inf(rule) for rule in expected]
    assert len(known) > 10


def without_inf(rule: object) -> object:
    return json.loads(json.dumps(rule).replace('"inf"', "null"))


@needs_node
def test_runs_and_their_bound() -> None:
    random, cases = np.random.default_rng(1), []
    for _ in range(40):
        rule = Rule(
            2.0 ** int(random.integers(20)), growth_interval=int(random.integers(1, 20)), delay=int(random.integers(3))
        )
        cases.append((rule, 2.0 ** random.integers(0, 12, size=200)))
    done = asked(
        "given.map(([rule, ceilings]) => { const played = LossScaler.play(rule, ceilings);"
        " return [played.skipped, played.newest, Runs.budget(rule, played, ceilings.length)]; })",
        [(rule_data(rule), ceilings.tolist()) for rule, ceilings in cases],
    )
    for (rule, ceilings), (skipped, newest, bound) in zip(cases, done, strict=True):
        expected = replay_ceilings(rule, ceilings)
        assert skipped == expected.skipped.tolist()
        assert newest == expected.state.newest
        assert bound == pytest.approx(theory.skips(rule, 200, math.log2(rule.init_scale / newest)))
        assert len(skipped) <= bound + 1e-9


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["arm"])
def test_the_runs_own_rule_skips_the_steps_that_were_skipped(record: records.Record) -> None:
    settings = record["settings"]
    rule = Rule(settings["init_scale"], growth_interval=settings["growth_interval"] or 10**9)
    assert replay_ceilings(rule, build.ceilings_of(record)).skipped.tolist() == record["found_inf"]


@needs_node
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["arm"])
def test_what_is_made_zero_is_what_rounding_made_zero(record: records.Record) -> None:
    scales = build._in_force(record["scale_changes"], record["every"] * len(record["counts"]))[:: record["every"]]
    samples = [(c, math.log2(s), r) for c, s, r in zip(record["counts"], scales, record["rounded"], strict=True) if c]
    samples.append(([0], 10.0, 0.0))  # no element
    shares = asked("given.map(([counts, log2]) => Runs.flushed(counts, log2))", samples)
    assert np.abs(np.array(shares, float) - [rounded for _, _, rounded in samples]).max() < 0.02


@needs_node
def test_a_run_that_gives_up_has_the_scale_at_which_it_did() -> None:
    rule = dialects.get("deepspeed.DynamicLossScaler", init=4.0, min_scale=1.0, raise_error_at_min_scale=True)
    ((scales, step),) = asked(
        "given.map((rule) => { const played = LossScaler.play(rule, [9, 0, 0, 0, 0]);"
        " return [[...played.scales], played.raised.step]; })",
        [rule_data(rule)],
    )
    assert (scales, step) == ([4.0, 4.0, 4.0, 2.0, 1.0], 4)


def test_a_step_between_two_samples_has_the_ceiling_of_the_nearer_one() -> None:
    record: records.Record = {
        "every": 3,
        "found_inf": [],
        "scale_changes": [[0, 1.0]],
        "not_finite": [0.0, 0.0, 0.0],
        "counts": [[0, 1], [1, 1], [2, 1]],
    }
    assert np.diff(np.log2(build.ceilings_of(record))).tolist() == [0, -1, 0, 0, -1, 0, 0, 0]


def long_log(name: str) -> str:
    """Return a log, a line per step, of a dialect on random gradients."""
    random = np.random.default_rng(len(name))
    rule = dialects.get(name, interval=5)
    flags = (random.random(200) < 0.1).tolist()
    scales = [rule.init_scale, *replay(rule, flags).tolist()]
    return "\n".join(
        f"step: {i}, loss_scale: {s!r}, skipped: {int(f)}" for i, (s, f) in enumerate(zip(scales, flags, strict=False))
    )


LOGS: list[tuple[str, str]] = [
    ("megatron.log", logs.MEGATRON),
    ("deepspeed.log", logs.DEEPSPEED),
    ("fairseq.log", logs.FAIRSEQ),
    ("trainer.log", logs.TRAINER),
    ("bloom.log", "".join(public.megatron(*row) for row in public.BLOOM_13B)),
    ("totals.log", public.overflow(4096) + public.overflow(4096, 2048) + public.total(10, 3) + public.total(20, 5)),
    ("bar.log", public.overflow(64, 32, before=" 14%|# | 9/90 [13:58:09<86:18:35, 2.4s/it]") + logs.TRAINER),
    ("apex.log", "step 1 loss: 0.4\n" + "Gradient overflow. Skipping, reducing loss scale to 8\n" * 2),
    ("swin.log", "INFO Train:\tloss 3.2 (3.3)\tgrad_norm 1.03 (nan)\tloss_scale 8.0 (9.0)\n" * 3),
    ("epochs.log", "".join(f"epoch {e} \x1b[2mstep {i}\x1b[0m loss: 2\r\n" for e in (0, 1) for i in (0, 10, 20))),
    ("shrinking.log", "".join(
        f"Epoch: [{e}]  [{i:4}/{n}]  eta: 0:01:00  loss: 4.9 (5.0)  loss_scale: {2.0**(9 - e)} ({2.0**(9 - e)})\n"
        for e, n in enumerate((40, 20, 4)) for i in (0, n - 1))),
    ("names.log", "step 3 scale: 8\nstep 3 eval_loss: 1 gate loss: 7 params norm: 9 number of nan iterations: 1"),
    *((name, text) for name, text, _ in logs.PROGRAMS),
    ("log.jsonl", '{"global_step": 10, "train/loss": 2.5, "loss_scale": 8}\n{"global_step": 11, "loss": NaN}\n'),
    ("metrics.csv", "epoch,grad_norm,step,train_loss,scale\n0,1.5,10,2.5,4\n1,,,,\n1,,20,2,2\n"),
    ("colons.txt", "INFO step: 10, loss: 2.5, total_norm: 1.5e0, loss scale: 65_536, lr: 3e-4\nstep: 4, scale=1\n"),
    ("bar.txt", "\x1b[32mstep\x1b[0m 1%| | 10/900 [0:01<1:29, loss=2, scale=8]\r 2%| | 20/900 [0:02<1:28, loss=1]"),
    ("epochs.txt", "".join(f"epoch {e} step {i} loss: 2 scale: 8 eval_loss: 9\n" for e in (1, 2) for i in (0, 9))),
    ("apex.txt", "step: 1, loss: nan\nGradient overflow.  Skipping step, reducing loss scale to 4.0\n"),
    ("npu.log", "step: 1, loss: 2.0\nGradient overflow. Skipping step\nLoss scaler reducing loss scale to 8.0\n" * 2),
    ("bmtrain.log", "step: 1, loss: 2.0\nGradient overflow, change scale from 1024.000000 to 512.000000\n"),
    ("hifigan.log", "Steps : 5, Gen Loss Total : nan, loss_scale: 8\nSteps : 9, Gen Loss Total : 1, loss_scale: 4\n"),
    ("collapse.txt", "step: 10, loss_scale: 131072\nstep: 200, loss_scale: 5.29e-23\n"),
    *((f"{name}.txt", long_log(name)) for name in ("torch.amp.GradScaler", "deepspeed.DynamicLossScaler",
      "megatron.core.DynamicGradScaler", "flax.DynamicScale", "paddle.amp.GradScaler[dygraph]")),
]  # fmt: skip


@cache
def read_by_the_page() -> list[Any]:
    """Return what the page makes of each log, all by one process."""
    return asked(
        "given.texts.map((text) => { const history = Reader.read(text, given.table);"
        " const scaled = history.scale.some((scale) => !Number.isNaN(scale)), filled = Logs.fill(history);"
        " return [history, scaled ? Logs.ceilings(filled).length : 0]; })",
        {"texts": [text for _, text in LOGS], "table": FORMATS},
    )


@needs_node
@pytest.mark.parametrize("number", range(len(LOGS)), ids=[name for name, _ in LOGS])
def test_the_page_draws_the_scales_that_the_command_reads(number: int, tmp_path: Path) -> None:
    name, text = LOGS[number]
    (tmp_path / name).write_text(text if text.endswith("\n") else text + "\n")
    expected = read_history(tmp_path / name)
    history, length = read_by_the_page()[number]
    known = expected.numbered & expected.last & ~np.isnan(expected.scale) & (expected.scale < math.inf)
    drawn = dict(zip(history["step"], history["scale"], strict=True))
    scales = {int(step): scale for step, scale in zip(expected.step[known], expected.scale[known], strict=True)}
    assert {step: drawn.get(step) for step in scales} == scales
    assert length >= bool(known.any())


@needs_node
def test_the_page_counts_a_sentence_that_comes_again_as_the_command_does() -> None:
    texts = ["step 1 loss: 2.0\n" + sentence * 2 for sentence in logs.ONE_PROCESS]
    counts = asked(
        "given.texts.map((text) => Reader.read(text, given.table).skipped.filter((each) => each > 0).length)",
        {"texts": texts, "table": FORMATS},
    )
    assert counts == [*logs.ONE_PROCESS.values()]


def test_the_committed_page_is_what_the_committed_data_gives() -> None:
    page = build.playground()
    assert len(page.encode()) < 1_000_000
    assert COMMITTED.read_text(encoding="utf-8") == page, (
        "run `ampsim playground -o figures/playground.html`, commit it"
    )


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["playground", "-o", str(tmp_path / "page.html")])
    assert result.exit_code == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == build.playground()
    result = CliRunner().invoke(app, ["playground", "-o", str(tmp_path / "none" / "page.html")])
    assert result.exit_code == 2
    assert "give the path of a file to write" in result.output.replace("\n", " ")
