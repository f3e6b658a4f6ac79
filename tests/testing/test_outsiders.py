"""Programs by people who had not read the checks: what is right passes, what is wrong fails a
check.

Each line of ``outsiders.jsonl.xz`` is one program: its file's name, whether it is a scaler or a
loop, whether its author meant it to be right, the author's words on its bug, and its source. A
fixed sixth runs always, the rest in the deep tests.
"""

import hashlib
import importlib.util
import json
import lzma
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)

from ampsim.testing import LoopError, Subject, Traits, examples, known_failures  # noqa: E402
from ampsim.testing.loop.checks import CHECKS  # noqa: E402
from ampsim.testing.loop.judge import judge_loop  # noqa: E402
from ampsim.testing.scaler_checks import run as judge  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # these programs warn
torch.set_num_threads(1)
DEEP = os.environ.get("AMPSIM_DEEP") == "1"
EXAMPLES = (
    examples.DEFAULT if DEEP else 20
)  # with 10, a scaler that loses its streak in a pickle passes
ASKED = [
    each for each in judge.chosen() if each.name not in known_failures.TORCH
]  # many scalers inherit from torch's
with lzma.open(
    Path(__file__).with_name("outsiders.jsonl.xz"), "rt", encoding="utf-8"
) as lines:
    PROGRAMS = {program["file"]: program for program in map(json.loads, lines)}
LOCAL = "a loop runs in one process, and each of its ranks alone is right"
MISSED = {
    "loops/w_ranks_clip_local.py": LOCAL,
    "loops/w_ranks_last_missing.py": LOCAL,
    "loops/w_ranks_summed.py": LOCAL,
    "loops/w_ranks_verdict_local.py": LOCAL,
    "second/loops/window_counter.py": "a checkpoint is made between steps, and not within a window",
    "loops/w_micro_per_call.py": "no batch that the loop is given ends within a window",
    "loops/w_short_window_divided.py": "no batch that the loop is given has fewer rows than others",
    "second/loops/accum_sum.py": "the loop names no split=, and three times the gradient is a rate of its own",
    "second/loops/accum_zero_inside.py": "the loop names no split=, and the last micro-batch alone is a batch too",
}
DISPUTED = {
    "third/loops/l_moe_unused.py": "an expert that no batch is sent to has no gradient, and looks as one that is lost",
}
# meant to be right, of a rule that is not torch's: whoever checks them declares it
ANOTHER_RULE = {
    "second/scalers/clamped.py": "a floor and a threshold",
    "second/scalers/deepspeed_like.py": "hysteresis, and a scale that is a Python float",
    "second/scalers/exponent.py": "powers of two alone",
    "second/scalers/fraction.py": "an exact scale, of which a state dict keeps what float32 can hold",
    "second/scalers/hysteresis.py": "hysteresis",
    "second/scalers/static.py": "a scale that never changes",
}


def is_in_the_sample(file):
    return int(hashlib.sha256(file.encode()).hexdigest(), 16) % 6 == 0


SAMPLE = [file for file in PROGRAMS if is_in_the_sample(file)]


def module(program, folder):
    path = folder / Path(program["file"]).name
    path.write_text(program["source"])
    spec = importlib.util.spec_from_file_location(f"outsiders_{path.stem}", path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # for pickle
    spec.loader.exec_module(made)
    return made


def results(program, folder):
    made = module(program, folder)
    if program["kind"] == "loop":  # a failure that is expected is not shortened
        return judge_loop(
            made.make,
            made.batches,
            expected=dict.fromkeys(CHECKS, "a bug"),
        )
    own = [
        each
        for each in vars(made).values()
        if getattr(each, "__module__", "") == made.__name__
    ]
    scaler = [each for each in own if isinstance(each, type)][-1]
    declared = Subject(scaler, Traits(unsupported={"skip_report"}))
    return judge.run_checks(declared, ASKED, examples=EXAMPLES)


def test_sample_has_every_kind():
    for files in (PROGRAMS, SAMPLE):
        kinds = {(PROGRAMS[file]["kind"], PROGRAMS[file]["right"]) for file in files}
        assert kinds == {
            ("scaler", True),
            ("scaler", False),
            ("loop", True),
            ("loop", False),
        }
    assert len(SAMPLE) > len(PROGRAMS) / 6 > 50
    assert not any(PROGRAMS[file]["right"] for file in MISSED)


@pytest.mark.usefixtures("brief", "few_schedules")
@pytest.mark.parametrize("file", PROGRAMS if DEEP else SAMPLE)
def test_verdict_agrees_with_author(file, tmp_path):
    program = PROGRAMS[file]
    passes = file in MISSED or (
        program["right"] and file not in ANOTHER_RULE | DISPUTED
    )
    outcomes = ((each.check.name, each.outcome) for each in results(program, tmp_path))
    try:
        broken = next(
            (name for name, outcome in outcomes if outcome in ("failed", "xfailed")), ""
        )
    except LoopError as error:  # the loop uses another scaler than the given one
        broken = str(error)
    assert bool(broken) is not passes, f"{program['bug']}: {broken}"
