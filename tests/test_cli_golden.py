"""All that the command line says, as it is committed: `python -m tests.golden tests` writes it anew."""

import functools
import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from rich.color import ColorSystem
from typer.testing import CliRunner

import ampsim.__main__
import ampsim.cli
from ampsim.cli import COMMANDS, app, line_of, options, sweep, terminal
from ampsim.cli.completion import complete_dialect, complete_law
from ampsim.core import vectors
from ampsim.core.files import DamagedFileError
from ampsim.core.replay.stream import Swept
from tests.golden import agree, canonical

GOLDEN = Path(__file__).parent / "cli"
TRACES = Path(__file__).parent / "traces"


def run(command: str, given: str | None = None) -> str:
    """Return the exit status of a command and all that it prints."""
    result = CliRunner().invoke(app, shlex.split(command), input=given)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return f"{result.exit_code}\n{result.output}"


USUAL = {
    "_depr_flag_value", "add_help_option", "allow_from_autoenv", "expose_value", "is_bool_flag", "options_metavar",
    "prompt_required", "show_choices", "show_envvar", "subcommand_metavar", "suggest_commands",
}  # fmt: skip


USUALLY = (("nargs", 1), ("rich_markup_mode", "rich"), ("show_default", True))


def in_words(command: Any) -> dict[str, Any]:
    """Return what a command takes, however its help is drawn."""

    def told(each: Any) -> dict[str, Any]:
        named = {name: value for name, value in vars(each).items() if name not in USUAL}
        given = {
            name: value
            for name, value in named.items()
            if value or (value == 0 and (value is not False or name == "show_default"))
        }
        plain = {name: value for name, value in given.items() if isinstance(value, str | int | float | list)}
        plain |= {"default": "CPUs"} if plain.get("name") == "jobs" else {}
        plain = {name: value for name, value in plain.items() if (name, value) not in USUALLY}
        plain.pop("is_flag", None)
        called = [name for name in ("callback", "_custom_shell_complete") if getattr(each, name, None)]
        return plain | ({"does": called} if called else {})

    parameters = [
        [f"{getattr(getattr(each, 'type_descriptor', None), 'annotation', '')}", *told(each).items()]
        for each in command.params
    ]
    return {**told(command), "settings": [*command.context_settings.items()], "params": parameters}


def lines_of(told: dict[str, Any]) -> Iterator[Any]:
    yield from told.pop("params")
    yield from told.items()


def test_what_each_command_takes() -> None:
    found: dict[str, str] = {}

    def walk(name: str, command: Any) -> None:
        found[name] = "\n".join(f"{each}" for each in lines_of(in_words(command)))
        for inner, each in getattr(command, "commands", {}).items():
            walk(f"{name} {inner}", each)

    walk("ampsim", typer.main.get_command(app))
    walk("unloaded", typer.main.get_command(ampsim.cli.build([])))
    lines = [f"{name}: {line_of(*home.partition(':')[::2])}" for name, (_, home) in COMMANDS.items()]
    agree(GOLDEN / "takes.txt", {**found, "lines": "\n".join(lines)})


TORCH, FLAX = "torch.amp.GradScaler", "flax.DynamicScale"
SCALERS = [
    "--version", "nonsense", "dialects", f"dialects --diff {TORCH} {FLAX}",
    f"dialects --diff {TORCH} {FLAX} -s interval=3 -s minimum_scale=2",
    f"dialects --diff {TORCH} {TORCH}", f"dialects --diff {TORCH} roundpipe.GradScaler[async] --longest 1",
    f"dialects --diff {TORCH} deepspeed.DynamicLossScaler -s delayed_shift=1",
    "dialects --diff fairseq.DynamicLossScaler deepspeed.FP16_Optimizer -s init=4",
    f"dialects --diff {TORCH} jmp.DynamicLossScale -s init=1 -s interval=1000",
    f"dialects --diff {TORCH} {FLAX} --longest 0",
    f"dialects --diff {TORCH} megatron.core.DynamicGradScaler -s interval=20", f"dialects --diff {TORCH} Torch",
    f"dialects --diff {TORCH} {FLAX} -s intervall=3", f"dialects --diff {TORCH} {FLAX} -s interval=x",
    f"dialects --diff deepspeed.DynamicLossScaler {TORCH} -s delayed_shift=1",
    f"dialects --diff megatron.core.DynamicGradScaler {TORCH} -s hysteresi=3",
    f"dialects --diff {TORCH} {FLAX} --longest 1",
    "dialects -s interval=3", f"dialects --diff {TORCH} chainer.GradientMethod.loss_scaling",
    f"replay {TORCH} 0010 -s interval=2 -s init=2**3", f"replay {TORCH} 0", f"replay {TORCH} 01x", f"replay {TORCH} ''",
    "replay deepspeed.DynamicLossScaler 1110 -s init=2 -s delayed_shift=1", "replay roundpipe.GradScaler[async] 0110",
    "replay megatron.core.DynamicGradScaler 1101111 -s min_scale=0.25 -s init=2.0**-1", "replay torch 0",
    f"replay {TORCH} 0 -s interval", f"replay {TORCH} 0 -s interval=", f"replay {TORCH} 0 -s interval=2 -s interval=3",
    f"replay {TORCH} 0 -s interval=0", f"replay {TORCH} 0 -s interval=1.5", f"replay {TORCH} 0 -s steps=3",
    f"replay {TORCH} 0 -s init=2**-999", f"replay {TORCH} 0 -s init=2**2000", f"replay {TORCH} 0 -s init=None",
    f"replay {TORCH} 11 -s backoff=0.7 -s init=3e3", f"replay {TORCH} 0 -s init=TRUE", f"replay {TORCH}",
    "replay jmp.DynamicLossScale 000 -s jit=true -s interval=1", "replay jmp.DynamicLossScale 0 -s jit=2",
]  # fmt: skip


def test_what_scalers_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    found = {command: run(command) for command in SCALERS}
    found["dialects"] = "".join(found["dialects"].splitlines(keepends=True)[::4])
    agree(GOLDEN / "scalers.txt", found)


PROGRAM = """
import json, os, sys
known = json.load(open("known.json"))
for number, line in enumerate(sys.stdin):
    outcome = known[line.rstrip("\\n")]
    HOW
    print(json.dumps(outcome), flush=True)
END
"""
HOWS = {
    "right": ("pass", ""),
    "declines": ("if number % 3: print('null', flush=True); continue", ""),
    "declines all": ("print('null', flush=True); continue", ""),
    "wrong": ("if len(outcome) > 5 and number > 2: outcome[5] = '0x1p+3'", ""),
    "wrong form": ("outcome = outcome[1:] if number == 1 else outcome", ""),
    "no line": ("if number == 2: sys.exit(3)", ""),
    "killed": ("if number == 2: print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)", ""),
    "silent": ("if number == 2: import time; time.sleep(60)", ""),
    "fails at the end": ("pass", "sys.exit(4)"),
    "more at the end": ("pass", "print('more', flush=True)"),
    "goes on": ("pass", "import time; time.sleep(60)"),
}


def test_what_is_said_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = {
        each.question(): [vectors.GIVES_UP if scale is None else vectors.as_hex(scale) for scale in each.outcome]
        for each in vectors.make()
    }
    Path("known.json").write_text(json.dumps(known))
    monkeypatch.setattr(vectors, "make", functools.cache(vectors.make))
    found = {}
    for name, (how, end) in HOWS.items():
        Path("program.py").write_text(PROGRAM.replace("HOW", how).replace("END", end))
        limit = 2 if name in ("silent", "goes on") else 20
        only = f"-d {TORCH}" if name != "right" else f"-d {TORCH} -d {FLAX}"
        found[name] = run(f"traces judge {only} --time-limit {limit} -- {sys.executable} -I -S program.py")
        assert name != "right" or "no answer" not in found[name]  # else each of the others waits as long
    found["nothing"] = run("traces judge -- ./no_such_program")
    found["unknown"] = run("traces judge -d torch -- true")
    found["no file"] = run("traces judge --vectors none.jsonl -- true")
    agree(GOLDEN / "judged.txt", {name: text.replace(sys.executable, "python") for name, text in found.items()})


def test_what_is_said_of_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = {}
    for path in sorted(TRACES.glob("*.jsonl")):
        Path(path.name).write_bytes(path.read_bytes())
        found[path.stem] = run(f"traces check {path.name}")
    files = [each.read_text().splitlines(keepends=True) for each in sorted(TRACES.glob("*.jsonl"))]
    lines = [files[0][0], *(line for file in files for line in file[1:])]
    Path("all.jsonl").write_text("".join(lines).replace("[true", "[false").replace("true]", "false]"))
    found["differ"] = run("traces check all.jsonl")
    found["differ, all"] = run("traces check all.jsonl --verbose")
    Path("bad.jsonl").write_text("".join(lines[:2]) + lines[2].replace('"system":"', '"system":"no'))
    Path("cut.jsonl").write_text("".join(lines[:2]) + lines[2][:40])
    for name in ("bad", "cut", "none"):
        found[name] = run(f"traces check {name}.jsonl")
    found["export"] = run("traces export vectors.jsonl")
    found["exported"] = "\n".join(sorted(each.name for each in Path().glob("vectors.*")))
    found["nowhere"] = run("traces export no/such/vectors.jsonl")
    assert run("traces export") == f"0\n{Path('vectors.jsonl').read_text()}"
    assert (
        Path("vectors.md").read_bytes() == Path(ampsim.cli.__file__).parents[1].joinpath("core/vectors.md").read_bytes()
    )
    agree(GOLDEN / "traces.txt", found)


def test_what_a_sweep_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("empty").mkdir()
    for name, length in (("b", 1200), ("a", 300)):
        np.save(f"runs/{name}.npy", np.ones(length))

    def played(rules: Any, lengths: dict[Path, int], *, jobs: int) -> Iterator[Swept]:
        """Stand in for the replay, which compiles; what it makes of traces is tests/core's."""
        for path, length in reversed(lengths.items()):  # as processes end
            rows = [(length // rule.growth_interval + jobs, 0.125, rule.init_scale / length, 2.0) for rule in rules]
            yield Swept(
                path, length, np.array(rows, [(name, "i8" if name == "skips" else "f8") for name in sweep.COLUMNS])
            )

    monkeypatch.setattr(sweep, "sweep_files", played)
    commands = [
        "sweep runs torch.amp.GradScaler --jobs 1",
        "sweep runs torch.amp.GradScaler -s interval=5,100 -s init=2**10,2**16 --jobs 2 -o rows.csv",
        "sweep empty torch.amp.GradScaler", "sweep runs torch", "sweep runs torch.amp.GradScaler -s init=1=2",
        "sweep runs torch.amp.GradScaler -s interval",
        "sweep runs torch.amp.GradScaler -s interval=1 -s interval=2",
        "sweep runs torch.amp.GradScaler --jobs 1 -o no/such/rows.csv",
    ]  # fmt: skip
    found = {command: run(command) for command in commands}
    agree(GOLDEN / "sweep.txt", {**found, "rows.csv": Path("rows.csv").read_text()})


def test_what_a_shell_completes() -> None:
    laws = {f"law {begun}": "\n".join(complete_law(begun)) for begun in ("", "scale_", "x")}
    names = {f"dialect {begun}": "\n".join(complete_dialect(begun)) for begun in ("torch", "SCALE", "keras")}
    agree(GOLDEN / "completed.txt", {**laws, **names})


LOSSES = "".join(
    f"step {step}: loss={2 + step % 3 / 8}, scale={scale}, grad_norm=1.5\n"
    for step, scale in enumerate([65536.0] * 4 + [32768.0] * 3 + [16384.0] * 9)
)
RUNS = [
    "explain train.log", "explain train.log --why", "explain train.log --json", "explain train.log --html page.html",
    "explain train.log --html train.log", "explain train.log --html no/such/page.html", "explain none.log",
    "explain healthy.log", "explain healthy.log --why --html healthy.html",
    "explain fall.log", "explain nothing.log", "explain long.log", "explain 'step 3: loss=2, scale=4'",
    "explain 'ValueError: Attempting to unscale FP16 gradients.'", "explain 'nothing of the kind'",
    "explain 'RuntimeError: unscale_() has already been called on this optimizer since the last update().'",
    "report train.log", "report train.log -o other.html", "report none.log", "report train.log -o train.log",
    "playground -o play.html", "playground -o no/such/play.html", "playground -o .",
]  # fmt: skip


def logs() -> None:
    Path("train.log").write_text(LOSSES)
    rows = [
        {"step": n, "loss": 3 - n / 99, "grad_norm": 1 + n % 3, "loss_scale": 2.0 ** (10 + n // 20)} for n in range(90)
    ]
    Path("healthy.log").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("fall.log").write_text("".join(f"step {step}: loss=1, scale={2.0**-step}\n" for step in range(0, 60, 2)))
    Path("nothing.log").write_text("hello\n" * 3)
    rows = [{"step": step, "loss": 1.0, "overflow": step % 2} for step in range(1, 60)]
    Path("long.log").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_what_is_said_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logs()
    found = {command: run(command) for command in RUNS}
    found["-"] = re.sub(r"/\S*/tmp\w+|/tmp/\w+", "FILE", run("explain -", LOSSES))
    found["- nothing"] = re.sub(r"/\S*/", "FOLDER/", re.sub(r"tmp\w+", "FILE", run("explain -", "hello\n")))
    found["written"] = "\n".join(
        f"{path.name} {path.stat().st_size > 10_000}" for path in sorted(Path().glob("*.html"))
    )
    assert Path("train.log").read_text() == LOSSES
    agree(GOLDEN / "runs.txt", found)


def test_what_a_terminal_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    logs()
    for name, value in {"_force_terminal": True, "_width": 90, "_color_system": ColorSystem.STANDARD}.items():
        monkeypatch.setattr(terminal.out, name, value)
        monkeypatch.setattr(terminal.err, name, value)
    for console in (terminal.out, terminal.err):
        monkeypatch.setattr(console, "legacy_windows", False)
    Path("steers.log").write_text(LOSSES + "step 16: loss=\x1b[31m2, scale=8192\n")
    commands = ["explain train.log", "explain healthy.log", "explain fall.log",
                "explain nothing.log", "explain steers.log", f"replay {TORCH} 01",
                f"dialects --diff {TORCH} {FLAX}", "explain long.log", "report 'a\x1b]0;b.log'",
                "report 'none 123 :smile: [b].log'"]  # fmt: skip
    agree(GOLDEN / "terminal.txt", {ascii(each): run(each).replace("\x1b", "ESC") for each in commands})


MAIN = [
    "",
    "--help",
    "lint",
    "lint --rules",
    "lint none.py",
    "adapt",
    "adapt none.py",
    "dialects --longest x",
    "replay x 0",
]


def test_the_program_ends_with_its_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", "")  # main() sets it for the process, which goes on here
    del os.environ["HYPOTHESIS_STORAGE_DIRECTORY"]
    found = {}
    for words in MAIN:
        monkeypatch.setattr(sys, "argv", ["ampsim", *words.split()])
        with pytest.raises(SystemExit) as ended:
            ampsim.__main__.main()
        said = capsys.readouterr()
        first = (said.out + said.err).strip().partition("\n")[0].strip()
        found[words or "no words"] = f"{ended.value.code}, {len(said.out) > 0}, {len(said.err) > 0}: {first}"
    agree(GOLDEN / "main.txt", found)
    assert os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] == os.devnull  # no .hypothesis is left where a command is run


def test_a_page_that_cannot_be_made_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged() -> str:
        raise DamagedFileError(Path("data.jsonl"), 3, "torn", "a record")

    monkeypatch.setattr("ampsim.diagnose.playground.build.playground", damaged)
    agree(GOLDEN / "damaged.txt", {"playground": run("playground -o page.html")})


if importlib.util.find_spec("torch"):  # the command of the card is one of the command line's
    from tests.card.test_golden import test_what_a_bar_shows, test_what_is_printed  # noqa: F401


def test_values_after_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(call: Callable[[], object]) -> str:
        try:
            return repr(call())
        except (TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    texts = [
        "a=1",
        "a=-1",
        "a=1e3",
        "a=2**3",
        "a=2.0**-3",
        "a=True",
        "a=NONE",
        "a=word",
        "a=inf",
        "a",
        "=1",
        "a=x",
        "a=2**1234",
    ]
    found = {text: said(lambda text=text: terminal.settings("--set", [text], "word")) for text in texts}
    found["none"] = said(lambda: terminal.settings("--set", None))
    with pytest.raises(AttributeError) as absent:
        ampsim.cli.nothing  # noqa: B018  it is asked for
    found["nothing"] = str(absent.value)
    traits = [
        "min_scale=1",
        "each=growth",
        "skips=all",
        "delay=0.5",
        "min_scal=1",
        "hysteresis=0",
        "scale_dtype=float64",
    ]
    for each in traits:
        found[f"--trait {each}"] = said(lambda each=each: {
            name: sorted(value) if isinstance(value, frozenset) else value
            for name, value in options.declared_traits([each], ["threads"]).items()
        })  # fmt: skip
    found["--without x"] = said(lambda: options.declared_traits([], ["x"]))
    agree(GOLDEN / "values.txt", found)


LOOP = """
import torch
from ampsim.testing import Loop

def make(scaler):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)

    def step(batch):
        optimizer.zero_grad()
        scaler.scale(model(batch).square().mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    return Loop(step, {"model": model, "optimizer": optimizer})
"""
QUICK = "-n 5 --time-limit 0"
TWO = "-k a_refused_state_dict_changes_nothing -k pickling_is_invisible"
JUDGED = [
    f"check torch.amp:GradScaler -l 4 {QUICK}", f"check torch.amp:GradScaler ampsim.torch:GradScaler {TWO} {QUICK}",
    f"check torch.amp:GradScaler {TWO} {QUICK} {TWO.replace('-k', '--xfail')}",
    f"check torch.amp:GradScaler {TWO} {QUICK} --expect expected.json",
    f"check torch.amp:GradScaler {TWO} {QUICK} -o r.json",
    f"check torch.amp:GradScaler {TWO} {QUICK} --expect list.json",
    f"check torch.amp:GradScaler --expect deep.json {QUICK}",
    f"check torch.amp:GradScaler -k skip_budget -k pickling_is_invisible {QUICK} --without pickle --report json",
    f"check torch.amp:GradScaler -k skip_budget {QUICK} -o report.txt", f"check mine:make {TWO} {QUICK}",
    "check torch.amp:GradScaler -k skip_budget --schedule 1:1", "check torch.amp:GradScaler --schedule 1:1",
    "check torch.amp:GradScaler -k a_state_dict_is_never_torn --schedule 1-1",
    f"check torch.amp:GradScaler -l 9 {QUICK}",
    "check-loop loop:make --law scale_is_invisible --time-limit 0", "check-loop loop:make --law scale --time-limit 0",
    "check-loop fed:make --law scale_is_invisible --time-limit 0", "check-loop fed:nothing --time-limit 0",
    "check-loop fed:make --law scale_is_invisible --time-limit 0 --xfail scale_is_invisible", "check-loop none:make",
    "check-ranks mine:make --gradients odd", "check-ranks mine:none", "check-ranks mine:make --ranks 1",
    "emit-test scale torch.amp:GradScaler", "emit-test skip_budget mine:none",
    "emit-test skip_budget torch.amp:GradScaler -n 3",
]  # fmt: skip


@pytest.mark.peer("torch")
def test_what_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("loop.py").write_text(LOOP)
    Path("fed.py").write_text(LOOP + "\nbatches = [torch.full((4, 2), float(n + 1)) for n in range(4)]\n")
    Path("mine.py").write_text("def make(rule): return None\n")
    Path("expected.json").write_text('{"a_refused_state_dict_changes_nothing": "it is known"}')
    Path("list.json").write_text("[]")
    Path("deep.json").write_text("[" * 100_000)
    found = {command: run(command) for command in JUDGED}
    assert json.loads(Path("r.json").read_text())["findings"] == 1
    version = re.compile(r'": "[\d.]+(dev\d|\+cpu)*"')
    agree(GOLDEN / "checked.txt", {each: canonical(version.sub('": "VERSION"', text)) for each, text in found.items()})


def test_what_is_passed_on_to_the_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from ampsim.testing import child
    from ampsim.testing.alarm import CannotJudgeError
    from ampsim.testing.emit import run_emitted
    from ampsim.testing.kit.laws import LAWS
    from ampsim.testing.law import Result
    from ampsim.testing.ranks import judge as ranks

    monkeypatch.chdir(tmp_path)
    Path("loop.py").write_text(LOOP + "\nbatches = [torch.ones(2)] * 3\n")
    outcomes = ["passed", "failed", "expected failure", "unexpected pass", "not applicable"]
    told: list[str] = []

    def results(name: str, said: object) -> Iterator[Result]:
        told.append(f"{said}")
        for law, outcome in zip([*LAWS.values()][:5], outcomes, strict=True):
            yield Result(law, name, outcome, f"text of {outcome}")  # type: ignore[arg-type]

    def judge_apart(begin: Any, laws: Any, **given: Any) -> Iterator[Result]:
        return results(given["name"], [*(f"{each!r}" for each in begin.args[1:]), len(laws), sorted(given.items())])

    def unjudged(*_: Any, **__: Any) -> Iterator[Result]:
        raise CannotJudgeError("it hangs")
        yield

    def judge_ranks(make: Any, *args: Any, **given: Any) -> Iterator[Result]:
        return results("", [*args, sorted(given.items())])

    monkeypatch.setattr(child, "judge_apart", judge_apart)
    monkeypatch.setattr(ranks, "judge_ranks", judge_ranks)
    monkeypatch.setattr(run_emitted, "emit", lambda *args, **given: f"# {args} {sorted(given.items())}\n")
    commands = [
        "check torch.amp:GradScaler", "check torch.amp:GradScaler -n 300 -l 1 --time-limit 7", "check-loop loop:make",
        "check torch.amp:GradScaler ampsim.torch:GradScaler --report md",
        "check-loop loop:make --time-limit 3 --law resume_is_invisible",
        "check-ranks torch.amp:GradScaler --ranks 3 --gradients replicated --without enabled --xfail skip_budget",
        "check-ranks torch.amp:GradScaler",
        "emit-test skip_budget torch.amp:GradScaler",
        "emit-test skip_budget x:y --ranks 3 -n 4 --time-limit 9 -o it.py",
        "emit-test skip_budget x:y --trait min_scale=1 --without threads", "check torch.amp:GradScaler --report xml",
    ]  # fmt: skip
    found = {command: run(command) + "\n".join([told.pop() for _ in told[:]]) for command in commands}
    outcomes[:] = ["passed", "refused", "refused", "passed", "passed"]
    found["refused"] = run("check torch.amp:GradScaler")
    found["a loop, refused"] = run("check-loop loop:make")
    monkeypatch.setattr(child, "judge_apart", unjudged)
    found["cannot judge"] = run("check torch.amp:GradScaler")
    agree(GOLDEN / "passed_on.txt", {**found, "it.py": Path("it.py").read_text()})
