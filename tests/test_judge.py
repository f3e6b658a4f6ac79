"""`ampsim traces export` and `judge`: an implementation in C passes, a bad program has its
sentence.
"""

import json
import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ampsim import Rule
from ampsim.cli import app
from ampsim.core import conformance_vectors as vectors
from ampsim.core.conformance_vectors import Vector, answer
from ampsim.core.machine import Arithmetic
from tests.examples import examples

SCALER = Path(__file__).parent / "core" / "foreign" / "scaler.c"
CC = shutil.which("cc")
needs_cc = pytest.mark.skipif(
    CC is None, reason="needs a C compiler: apt-get install gcc"
)
FEW = ("-d", "mmcv.runner.LossScaler")
ASKED = [vector for vector in vectors.make() if vector.dialect == FEW[1]]
COUNT = len(ASKED)


def judge(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["traces", "verify", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def python(program: str) -> list[str]:
    return ["--", sys.executable, "-IS", "-c", program]


def compiled(source: Path, folder: Path) -> str:
    made = str(folder / "scaler")
    command = [str(CC), "-O1", "-Wall", "-Werror", "-o", made, str(source), "-lm"]
    subprocess.run(command, check=True)  # noqa: S603
    return made


@pytest.fixture(scope="session")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(SCALER, tmp_path_factory.mktemp("c"))


# ------------------------------------------------------------------------------ in another language


@needs_cc
def test_c_state_machine_is_correct(in_c: str) -> None:
    code, text = judge("--", in_c)
    assert code == 0, text
    plain = sum(not vector.config["quirks"] for vector in vectors.make())
    assert f"{plain} of {len(vectors.make())} passed" in text


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    backoff = draw(st.sampled_from(["multiply", "divide", "reciprocal"]))
    growth = draw(st.sampled_from([2.0, 3.0, 1.7, 1.001]) | st.floats(1.0, 1e3))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    ends = {"float32": (-126, 127), "float64": (-1022, 1023)}[dtype]
    bounds = st.none() | st.floats(2.0**-100, 2.0**20)
    return Rule(
        draw(st.integers(*ends).map(lambda n: 2.0**n) | st.floats(1e-3, 1e6)),
        growth,
        1 / growth if backoff != "multiply" else draw(st.sampled_from([0.5, 0.7]) | st.floats(0.01, 1.0)),
        draw(st.integers(1, 4)),
        min_scale=draw(bounds),
        max_scale=draw(bounds.map(lambda high: high and high * 2.0**120)),
        hysteresis=draw(st.integers(1, 3)),
        hysteresis_reset=draw(st.frozensets(st.sampled_from(["clean", "growth", "backoff"]))),
        delay=draw(st.integers(0, 3)),
        growth_test=draw(st.sampled_from(["==", ">="])),
        arithmetic=Arithmetic(
            dtype=dtype, round_factors=draw(st.booleans()), backoff=backoff,
            flush_subnormals=draw(st.booleans()), keeps_finite=draw(st.booleans()),
        ),
    )  # fmt: skip


@needs_cc
@settings(max_examples=examples(ms=2))
@given(
    rule=rules(),
    history=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30),
)
@example(
    rule=Rule(2.0**-1074, arithmetic=Arithmetic(dtype="float64")),
    history=[(False, False), (True, True)],
)
@example(
    rule=Rule(1.0, 1e300, 1e-300, 1, arithmetic=Arithmetic(dtype="float64")),
    history=[(False, False)] * 3,
)
@example(
    rule=Rule(
        2.0**-1021, arithmetic=Arithmetic(dtype="float64", flush_subnormals=True)
    ),
    history=[(True, False)] * 2,
)
def test_c_answers_match_any_rule(
    in_c: str, rule: Rule, history: list[tuple[bool, bool]]
) -> None:
    found_inf, synchronous = zip(*history, strict=True)
    vector = Vector.of(rule, found_inf, synchronous)
    question = f"{vector.question()}\n"
    done = subprocess.run([in_c], input=question, capture_output=True, text=True)  # noqa: S603
    assert answer(done.stdout, len(history)) == vector.outcome


@needs_cc
def test_wrong_scale_is_shown(tmp_path: Path) -> None:
    wrong = tmp_path / "scaler.c"
    wrong.write_text(
        SCALER.read_text().replace(
            "if (++clean", "overflows = 0;\n      if (++clean", 1
        )
    )
    code, text = judge(
        "-d", "megatron.core.DynamicGradScaler", "--", compiled(wrong, tmp_path)
    )
    assert code == 1
    assert "update 2: expected the scale 512.0 = 0x1p+9, not 1024.0 = 0x1p+10" in text


# ---------------------------------------------------------------------------------- bad programs

EACH = "import sys\nfor line in sys.stdin: "
BAD = {
    "ends": ("import sys; sys.exit('boom')", ["exit status 1", "boom"]),
    "is killed": ("import os; os.kill(os.getpid(), 9)", ["SIGKILL"]),
    "is no list": (EACH + "print('0x1p+10')", ["'0x1p+10'"]),
    "answers too little": (EACH + "print('[1.0]')", ["1 entries"]),
    "answers nothing": (EACH + "pass", [f"0 output lines for {COUNT} input lines"]),
    "does not end": ("while 1: pass", ["not ended after 0.3 s"]),
    "answers twice": (EACH + "print('null\\nnull')", [f"{2 * COUNT} output lines"]),
    "never ends a line": (
        "import sys\ninput()\nwhile 1: sys.stdout.write('x' * 65536)",
        ["'xxx", "SIGKILL"],
    ),
    "fails at its end": (EACH + "print('null')\nsys.exit(5)", ["exit status 5"]),
    "declines all": (EACH + "print('null')", [f"0 of {COUNT} passed"]),
}


@pytest.mark.parametrize(("program", "shown"), BAD.values(), ids=BAD)
def test_a_bad_program_fails(program: str, shown: list[str]) -> None:
    limit = "0.3" if "not ended" in shown[0] else "60"
    code, text = judge(*FEW, "--time-limit", limit, *python(program))
    assert code == 1, text
    for part in shown:
        assert part in text
    assert "Traceback" not in text


@pytest.mark.skipif(os.name != "posix", reason="needs process groups")
def test_children_of_a_program_end_too(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.close(
        os.open(pipe, os.O_WRONLY)
    )  # from now on it is at its end where nobody holds the other
    child = f"subprocess.Popen(['tail', '-f', '/dev/null'], stdout=open({str(pipe)!r}, 'w'))"
    code, _ = judge(
        *FEW, "--time-limit", "0.5", *python(f"import subprocess; {child}.wait()")
    )
    assert select.select([held], [], [], 60.0)[0]
    assert os.read(held, 1) == b""  # nobody holds the other end any more
    os.close(held)
    assert code == 1


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--", "no-such-program"], "no-such-program"),
        (["--", "/"], "/: Permission denied"),
        (["-d", "torch.amp.GradScale", "--", "cat"], "torch.amp.GradScaler"),
        ([], "Missing argument"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], shown: str) -> None:
    code, text = judge(*arguments)
    assert code == 2
    assert shown in text


# ---------------------------------------------------------------------------------------------------
# the file


def test_an_export_has_its_page(tmp_path: Path) -> None:
    file = tmp_path / "vectors.jsonl"
    result = CliRunner().invoke(app, ["traces", "export", str(file)])
    assert result.exit_code == 0
    head, *lines = file.read_text().splitlines()
    assert json.loads(head)["lines"] == len(lines)
    assert lines == [vector.line() for vector in vectors.make()]
    assert file.with_suffix(".md").exists()


def test_unwritable_export_exits_with_2() -> None:
    result = CliRunner().invoke(app, ["traces", "export", "/dev/null/v.jsonl"])
    assert result.exit_code == 2
    assert "/dev/null" in result.output
