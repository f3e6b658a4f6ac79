"""`ampsim card` as a process: killed at any point, it goes on; what it leaves verifies."""

import errno
import itertools
import math
import os
import pty
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampsim.card import probes, run
from ampsim.card.run import Probe
from ampsim.card.verify import read, verify, write
from ampsim.cli import app
from ampsim.cli.card import leave_at_interrupt
from tests import warm

ROOT = Path(__file__).parents[2]
deep = pytest.param(
    "0.2", 10, marks=[pytest.mark.deep, pytest.mark.skipif("AMPSIM_DEEP" not in os.environ, reason="deep")]
)


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["card", *arguments])
    return result.exit_code, result.output


def started(path: Path, minutes: str) -> subprocess.Popen[str]:
    command = [warm.python(), "-m", "ampsim", "card", "--minutes", minutes, "--device", "cpu", "--out", str(path)]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=path.parent, env=environment, stdout=pipe, stderr=pipe, text=True)  # noqa: S603


def records(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def found(*records: dict[str, object]) -> Probe:
    """A probe that finds this, and this."""
    return lambda device: iter(records)


def form(value: object) -> object:
    """What of a record is the same whenever it is made: names, and types of values."""
    if isinstance(value, dict):
        return {key: form(each) if key not in ("checks", "findings") else dict for key, each in value.items()}
    return [form(each) for each in value[:1]] if isinstance(value, list) else type(value)


def failing(error: BaseException) -> Probe:
    def look(device):
        raise error
        yield

    return look


@pytest.mark.parametrize(("minutes", "kills"), [("0.05", 3), deep])
def test_killed_at_random_points_it_goes_on_and_verifies(tmp_path: Path, minutes: str, kills: int) -> None:
    path, draw, kept = tmp_path / "card.jsonl", random.Random(33), []  # noqa: S311
    for _ in range(kills):
        process, before = started(path, minutes), records(path)
        end = time.monotonic() + 60  # a process that does nothing for so long is a failure below
        while process.poll() is None and records(path) <= before and time.monotonic() < end:
            time.sleep(0.02)  # until it has got any further; then anywhere in the probes that come
        time.sleep(draw.uniform(0, 2))
        process.kill()
        process.communicate()
        kept.append(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    out, err = started(path, minutes).communicate(timeout=300)
    assert "done" in out, err
    assert [*tmp_path.iterdir()] == [path]
    data = path.read_bytes()
    assert all(data.startswith(each) for each in kept)  # what is there is not run again
    earlier = {each["probe"]: form(each) for each in read(Path(__file__).with_name("earlier.jsonl"))[1:]}
    assert {each["probe"]: form(each) for each in read(path)[1:]} | {"streams": earlier["streams"]} == earlier
    assert [record["probe"] for record in read(path)[1:]] == [*run.PROBES]
    assert [verdict for verdict in verify(path) if verdict.outcome == "does not hold"] == []
    flipped = bytearray(data)
    flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(flipped)
    assert call("verify", str(path))[0] == 2


def at_a_terminal(python: str, code: str, cwd: Path) -> tuple[int, str]:
    """Run `ampsim card --out card.jsonl` with a terminal, behind code; return how it ended, and what it showed."""
    setting = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    running = "from ampsim.__main__ import main\nsys.argv[1:] = 'card --device cpu --out card.jsonl'.split()\nmain()"
    terminal, side = pty.openpty()
    process = subprocess.Popen(  # noqa: S603
        [python, "-c", setting + code + running], cwd=cwd, stdin=side, stdout=side, stderr=side,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    os.close(side)
    text = b""
    with suppress(OSError):  # so it ends
        while piece := os.read(terminal, 1 << 16):
            text += piece
    os.close(terminal)
    return process.wait(), text.decode()


DROPPING = """
from ampsim.card import probes, run
class Dropped:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
def interrupted(device):
    Dropped()
    yield {}
run.PROBES = {"a": lambda device: iter([{"seen": 0}, {"seen": 1}]), "b": interrupted}
"""


def test_ctrl_c_ends_it_at_once_even_where_python_drops_what_is_raised(tmp_path: Path) -> None:
    code, text = at_a_terminal(warm.python(), DROPPING, tmp_path)
    assert text.splitlines()[-1].endswith("stopped; what is done is in card.jsonl, and the same command goes on")
    assert code == 130
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is shown again"
    assert [path.name for path in tmp_path.iterdir()] == ["card.jsonl"]
    assert [(each["probe"], each["seen"]) for each in read(tmp_path / "card.jsonl")[1:]] == [("a", 1)]


def test_what_ctrl_c_says_has_its_brackets_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[object] = []
    monkeypatch.setattr("ampsim.cli.card.os._exit", ended.append)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ExitStack() as held:
            held.callback(ended.append, "closed")
            leave_at_interrupt(held, ["stopped early", "what is done is in [b]card[/b].jsonl"])
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "a second one ends it"
    finally:
        signal.signal(signal.SIGINT, before)
    assert (ended, capsys.readouterr().out) == (["closed", 130], "what is done is in [b]card[/b].jsonl\n")


def test_ctrl_c_while_torch_is_loaded_is_no_failure_of_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    code, text = at_a_terminal(sys.executable, "", tmp_path)
    assert text.splitlines()[-1].endswith("stopped before a probe began; the same command goes on")
    assert (code, [path.name for path in tmp_path.iterdir()]) == (130, ["torch.py"])


def test_a_probe_that_raises_leaves_its_error_and_the_others_go_on(tmp_path: Path, monkeypatch) -> None:
    broken = failing(RuntimeError("an illegal memory access"))
    path = tmp_path / "card.jsonl"
    monkeypatch.setattr(run, "PROBES", {"a": broken, "b": found({})})
    assert call("--device", "cpu", "--out", str(path))[0] == 0
    assert [each.get("error") for each in read(path)[1:]] == ["RuntimeError: an illegal memory access", None]
    assert "a: RuntimeError: an illegal memory access" in call("verify", str(path))[1]
    monkeypatch.setattr(run, "PROBES", {"a": found({}), "b": broken})
    assert call("--device", "cpu", "--out", str(path))[0] == 0  # what failed is tried again, what did not is not
    assert [each["probe"] for each in read(path)[1:]] == ["a", "b", "a"]
    assert call("verify", str(path))[0] == 0


@settings(deadline=None, max_examples=30)
@given(paces=st.lists(st.floats(0.5, 100.0), min_size=4, max_size=4), there=st.integers(0, 3))
def test_each_probe_has_its_share_of_the_time_that_is_left(paces: list[float], there: int) -> None:
    clock, asked = [1000.0], {}

    def probe(name, pace):
        def look(device):
            for asked[name] in itertools.count(1):
                clock[0] += pace
                yield {}

        return look

    records = [{"identity": {"minutes": 2.0, "device": {"type": "cpu"}}}]
    names = ["p", "q", "r", "s"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "PROBES", {name: probe(name, pace) for name, pace in zip(names, paces, strict=True)})
        patch.setattr(run, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        patch.setattr(run, "write", lambda path, records: None)
        records += [{"probe": name, "seconds": 10.0} for name in names[:there]]
        assert len([*run.missing(Path("card.jsonl"), records, lambda probe, left: None)]) == 4 - there
    left = 120.0 - 10.0 * there
    for place in range(there, 4):
        share = max(0.0, left) / (4 - place)
        assert asked[names[place]] == pytest.approx(max(1, math.ceil(share / paces[place])), abs=1)
        left -= (taken := asked[names[place]] * paces[place])
        assert records[place + 1]["seconds"] == pytest.approx(taken, abs=0.001)  # a start behind this counts them


# ------------------------------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "tpu"], "device=tpu: expected cpu, or cuda where there is one; torch"),
        (["--minutes", "0"], "greater than or equal to 0.05"),
        (["verify", "nowhere.jsonl"], "nowhere.jsonl: No such file or directory; expected a file of `ampsim card`"),
        (["verify", "."], "expected a file of `ampsim card`"),
        (["verify", "notes.txt"], "ampsim: notes.txt: expected a file of `ampsim card`; pass another name"),
        (["--device", "cpu", "--out", "notes.txt"], "notes.txt: expected a file of `ampsim card`; pass another name"),
        pytest.param(
            ["--device", "cuda"], "sees 0 cards; pass --device cpu to try it, or install a CUDA build of torch",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card"),
        ),
    ],
)  # fmt: skip
def test_wrong_use_says_what_was_expected(arguments: list[str], said: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("my notes")
    code, text = call(*arguments)
    assert code == 2
    assert said in " ".join(text.split())
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_two_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, codes = tmp_path / "card.jsonl", []

    def again(device):
        codes.append(call("--device", "cpu", "--out", str(path)))
        yield {}

    monkeypatch.setattr(run, "PROBES", {"a": again})
    assert call("--device", "cpu", "--out", str(path))[0] == 0
    assert codes[0][0] == 2
    assert "is writing it" in codes[0][1]


@pytest.mark.parametrize("name", ["NVIDIA B999 7GB HBM9", "Tesla T4", "AMD Radeon (TM) X"])
def test_the_folder_of_the_experiments_and_the_file_of_a_card_have_one_name(name: str, tmp_path, monkeypatch) -> None:
    of_experiments = pytest.importorskip("experiments.runner.device")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    monkeypatch.setattr(run, "describe", lambda device: {"type": device, "name": name})
    with run.opened(None, 8.0, None) as (path, _):
        assert path.name.startswith(f"ampsim-card-{of_experiments.slug('cuda')}-")


def test_the_file_is_named_by_the_device_and_what_ran_on_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "PROBES", {"a": found({})})
    assert call("--device", "cpu")[0] == call("--device", "cpu")[0] == call("--device", "cpu", "--minutes", "1")[0] == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    assert all(name.startswith("ampsim-card-cpu-") and name.endswith(".jsonl") for name in names)


@pytest.mark.parametrize(("uuid", "told"), [("7", ["driver_version, clocks", "580.1, 1980 MHz"]), ("8", [])])
def test_driver_and_clocks_are_noted_where_they_are_told(
    uuid: str, told: list[str], tmp_path: Path, monkeypatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ntest "$3$4" = -iGPU-7 && printf "driver_version, clocks\n580.1, 1980 MHz\n"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    card = SimpleNamespace(name="A", major=9, minor=0, total_memory=1, multi_processor_count=1, uuid=uuid)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert run.describe("cuda")["nvidia-smi"] == told
    assert run.describe("cuda")["capability"] == "9.0"


def test_a_file_of_anything_else_or_of_another_run_stays_as_it_is(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "card.jsonl"
    monkeypatch.setattr(run, "PROBES", {"a": found({})})
    assert call("--device", "cpu", "--out", str(path))[0] == 0
    whole, anything = path.read_bytes(), "expected a file of `ampsim card`; pass another name"
    others = {b"": anything, b"my notes": anything, b'{"card":2': anything, b"\x00": anything, whole[:-1]: "its seal"}
    for content, said in others.items():
        path.write_bytes(content)
        code, text = call("--device", "cpu", "--out", str(path))
        assert (code, said in " ".join(text.split())) == (2, True), text
        assert path.read_bytes() == content
    path.write_bytes(whole)
    code, text = call("--device", "cpu", "--out", str(path), "--minutes", "2")
    assert (code, path.read_bytes()) == (2, whole)
    assert "another run: minutes: 8.0 then, 2.0 now; expected the same; pass another --out" in " ".join(text.split())


def test_submit_prints_a_link_and_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "card.jsonl"
    monkeypatch.setattr(run, "PROBES", {"a": found({})})
    call("--device", "cpu", "--out", str(path))
    told = SimpleNamespace(get_all=lambda key: None)
    monkeypatch.setattr(metadata, "metadata", lambda name: told)
    assert "names no Repository address" in call("verify", str(path), "--submit")[1]
    told.get_all = lambda key: ["Homepage, https://b.invalid", "Repository, https://a.invalid/x"]
    code, text = call("verify", str(path), "--submit")
    assert code == 0
    address, query = text.splitlines()[-1].split("?")
    asked, who = {key: value for key, [value] in parse_qs(query).items()}, read(path)[0]["identity"]
    assert address == "https://a.invalid/x/issues/new"
    assert asked["title"] == f"card: {who['device']['name']}"
    told_first, told_next, _, *verdicts = asked["body"].splitlines()
    assert told_first == f"attach card.jsonl, sha256 {sha256(path.read_bytes()).hexdigest()}"
    assert told_next == f"{who['device']['name']}, ampsim {who['ampsim']}, torch {who['torch']}, python {who['python']}"
    assert verdicts == [f"{each.outcome}: {each.text}" for each in verify(path)]


def test_what_a_long_error_leaves_out_of_the_link_is_not_the_files_digest(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "card.jsonl"
    monkeypatch.setattr(run, "PROBES", {"a": failing(RuntimeError("x" * 9000))})
    call("--device", "cpu", "--out", str(path))
    told = SimpleNamespace(get_all=lambda key: ["Repository, https://a.invalid/x"])
    monkeypatch.setattr(metadata, "metadata", lambda name: told)
    address = call("verify", str(path), "--submit")[1].splitlines()[-1]
    assert sha256(path.read_bytes()).hexdigest() in address
    assert len(address) < 6000


def test_without_a_card_it_says_that_the_cpu_is_looked_at(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(run, "PROBES", {"a": found({}), "b": failing(RuntimeError("no"))})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = f"torch {torch.__version__} sees no card: the probes run on the CPU"
    assert said in call("--out", str(tmp_path / "card.jsonl"))[1]
    text = call("--device", "cpu", "--out", str(tmp_path / "card.jsonl"))[1]
    assert said not in text
    assert "card.jsonl: 1 of 2 probes are done" in text


@pytest.mark.parametrize("name", ["card.jsonl: ", ""])  # a full disk may leave an error without a name
def test_a_full_disk_is_named_with_its_cure_and_what_is_done_stays(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, full = Path("card.jsonl"), OSError(errno.ENOSPC, "No space left on device", name.strip(": ") or None)

    def write_once(path: Path, records: list[object]) -> None:
        if len(records) > 2:
            raise full
        write(path, records)

    monkeypatch.setattr(run, "PROBES", {"a": found({}), "b": found({})})
    monkeypatch.setattr(run, "write", write_once)
    code, text = call("--device", "cpu", "--out", str(path))
    assert code == 2
    assert f"ampsim: {name}No space left on device; expected a place to write to; make room there" in text
    assert [each["probe"] for each in read(path)[1:]] == ["a"]


def test_the_source_is_that_of_each_file_by_its_name() -> None:
    files = {path.relative_to(ROOT / "ampsim").as_posix(): path for path in (ROOT / "ampsim").rglob("*.py")}
    names = sorted(files, key=lambda name: files[name])
    assert probes.source() == b"".join(f"{name}\0".encode() + files[name].read_bytes() for name in names)


def test_a_package_that_is_not_there_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "triton":
            raise metadata.PackageNotFoundError(name)
        return f"{name} 1"

    monkeypatch.setattr(run, "distributions", lambda name: [name] * (name != "triton"))
    monkeypatch.setattr(run, "version", version)
    with run.opened("cpu", 1.0, tmp_path / "card.jsonl") as (_, records):
        versions = [records[0]["identity"].get(name) for name in ("triton", "hypothesis", "numpy")]
    assert versions == [None, "hypothesis 1", "numpy 1"]
