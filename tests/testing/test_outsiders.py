"""Programs by people who had not read the laws: what is right is not accused, what is wrong is caught.

Each line of ``outsiders.jsonl`` is one program: its file's name, whether it is a scaler or a loop, whether its author
meant it to be right, the author's words on its bug, its source.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.testing import known
from ampsim.testing.kit import judge as scalers
from ampsim.testing.loop import judge as loops

pytestmark = [pytest.mark.deep, pytest.mark.filterwarnings("ignore")]  # strangers' programs warn
PROGRAMS = [json.loads(line) for line in Path(__file__).with_name("outsiders.jsonl").read_text().splitlines()]
ASKED = PROGRAMS if os.environ.get("AMPSIM_DEEP") == "1" else []  # and not as many skipped tests
MISSED = {
    "loops/w_micro_per_call.py": "no batch that the loop is given ends within a window",
    "loops/w_short_window_divided.py": "no batch that the loop is given has fewer rows than the others",
    "second/loops/accum_sum.py": "the loop names no split=, and three times the gradient is a rate of its own",
    "second/loops/accum_zero_inside.py": "the loop names no split=, and the last micro-batch alone is a batch too",
}

DISPUTED = {
    "third/loops/l_moe_unused.py": "an expert that no batch is sent to has no gradient, and looks as one that is lost",
}
ANOTHER_RULE = {  # meant to be right, of a rule that is not torch's: whoever judges them declares it
    "second/scalers/clamped.py": "a floor and a ceiling",
    "second/scalers/deepspeed_like.py": "hysteresis, and a scale that is a Python float",
    "second/scalers/exponent.py": "powers of two alone",
    "second/scalers/fraction.py": "an exact scale, of which a state dict keeps what float32 can hold",
    "second/scalers/hysteresis.py": "hysteresis",
    "second/scalers/static.py": "a scale that never changes",
}


def module(program, folder):
    path = folder / Path(program["file"]).name
    path.write_text(program["source"])
    spec = importlib.util.spec_from_file_location(f"outsiders_{path.stem}", path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # for pickle
    spec.loader.exec_module(made)
    return made


def findings(program, folder):
    """Name the laws that a program breaks; a scaler's, beyond those that torch's own breaks."""
    made = module(program, folder)
    if program["kind"] == "loop":
        results = loops.judge_loop(made.make, made.batches, None, refusals=[])
        return {each.law.name for each in results if each.is_finding}
    scaler = [each for each in vars(made).values() if isinstance(each, type) and each.__module__ == made.__name__][-1]
    return {each.law.name for each in scalers.judge(scaler, scalers.chosen()) if each.is_finding} - {*known.TORCH}


def test_there_are_right_and_wrong_programs_of_both_kinds():
    assert {(each["kind"], each["right"]) for each in PROGRAMS} == {
        (kind, right) for kind in ("scaler", "loop") for right in (True, False)
    }
    assert {*MISSED} <= {each["file"] for each in PROGRAMS if not each["right"]}


@pytest.mark.parametrize("program", ASKED, ids=lambda each: each["file"])
def test_the_judge_agrees_with_the_author(program, tmp_path):
    found = findings(program, tmp_path)
    accepted = (program["right"] and program["file"] not in ANOTHER_RULE | DISPUTED) or program["file"] in MISSED
    assert bool(found) is not accepted, f"{program['bug']}: {sorted(found)}"
