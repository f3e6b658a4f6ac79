"""A right script passes each check, and each mistake is found in its line, with its cause."""

import json
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip(
    "torch", reason="pip install -c constraints.txt 'ampsim[torch]'"
)

from ampsim.cli import build  # noqa: E402
from ampsim.testing import check_script, checked  # noqa: E402
from ampsim.testing.alarm import CannotJudgeError  # noqa: E402
from ampsim.testing.script_checks.check import CHECKS  # noqa: E402
from ampsim.testing.script_checks.run import ScriptError, judge_script  # noqa: E402
from tests.testing.scripts import RIGHT, WRONG  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # some of these scripts warn
TOP = """
import sys, torch
from torch import nn
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
def train(steps=8):
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(4, 4)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
"""


READING = """
for _ in range(6):
    train(1)
    scaler.scale(model(torch.ones(1, 4)).sum()).item()
"""


def write(folder, text):
    path = folder / "train.py"
    path.write_text(TOP + textwrap.dedent(text))
    return str(path)


def failures(results):
    return {
        result.check.name: result.text
        for result in results
        if result.outcome == "failed"
    }


@pytest.mark.parametrize("name", RIGHT)
def test_right_script_passes(name):
    with checked():
        RIGHT[name]()


@pytest.mark.parametrize("name", WRONG)
def test_mistake_is_found_in_its_line(name):
    train, check, place = WRONG[name]
    with checked(raises=False) as found:
        train()
    failed = failures(found.results)
    assert failed.keys() == {check}
    assert place in failed[check].partition("\n")[0]


def test_each_check_has_a_mistake():
    elsewhere = {"resume_is_exact", "scaler_accepts_each_call"}
    assert {check for _, check, _ in WRONG.values()} | elsewhere == {*CHECKS}


def test_schedule_from_before_the_block():
    model = torch.nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    with checked(raises=False) as found:
        for _ in range(8):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
    assert failures(found.results).keys() == {"skipped_step_changes_nothing"}


def test_patches_are_undone():
    before = torch.save, torch.optim.Optimizer.zero_grad, torch.amp.GradScaler.scale
    with checked():
        RIGHT["two_scalers"]()
    assert before == (
        torch.save,
        torch.optim.Optimizer.zero_grad,
        torch.amp.GradScaler.scale,
    )


def test_script_process_finds_a_mistake(tmp_path):
    script = write(
        tmp_path,
        """
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(8):
            train(1)
            schedule.step()
        """,
    )
    with pytest.raises(
        AssertionError, match=r"train.py:17: StepLR.step\(\) runs after a skipped"
    ):
        check_script(script)


def test_trial_renames_its_checkpoint(tmp_path):
    script = write(
        tmp_path,
        """
        import os, pickle
        for _ in range(8):
            train(1)
            torch.save(model.state_dict(), f="new.pt")
            os.replace("new.pt", "last.pt")
            with open("best.pkl", "wb") as stream:
                pickle.dump(optimizer.state_dict(), file=stream)
        """,
    )
    results, _ = judge_script(script)
    assert failures(results).keys() == {"resume_is_exact"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.exit('no data')", "SystemExit: no data"),
        ("torch.amp.GradScaler('cpu', enabled=False)", "no scaler was seen"),
        ("raise OSError('its own error')", "OSError: its own error"),
    ],
)
def test_nothing_to_check_is_an_error(tmp_path, text, message):
    with pytest.raises(ScriptError, match=message):
        check_script(write(tmp_path, text))


def test_error_of_the_scaler_is_a_finding(tmp_path):
    script = write(
        tmp_path,
        """
        for _ in range(2):
            scaler.scale(model(torch.ones(1, 4)).sum()).backward()
            scaler.step(optimizer)
        """,
    )
    results, _ = judge_script(script)
    text = failures(results)["scaler_accepts_each_call"]
    assert "train.py:16: " in text
    assert "call scaler.update() in each iteration" in text


def test_trial_outlives_a_writing_thread(tmp_path):
    script = write(
        tmp_path,
        """
        import queue, threading
        lines = queue.Queue(1)
        def read():
            while lines.get():
                lines.task_done()
        threading.Thread(target=read, daemon=True).start()
        for _ in range(8):
            train(1)
            lines.put("1")
            lines.put("2")
            lines.join()
        """,
    )
    results, run = judge_script(script, time_limit=400)
    assert len(run.outcomes) == 5
    assert not failures(results)


def test_error_after_steps_keeps_findings(tmp_path):
    results, run = judge_script(write(tmp_path, f"{READING}raise OSError('full')"))
    assert failures(results).keys() == {"logged_numbers_are_unscaled"}
    assert run.raised.startswith("the script raised OSError: full at ")
    assert run.raised.endswith("train.py:17, after 6 steps")


def test_time_limit_is_told_apart(tmp_path):
    script = write(tmp_path, "while True:\n    pass")
    with pytest.raises(CannotJudgeError, match="no step within the time limit"):
        check_script(script, time_limit=0.1)


def test_script_on_the_cpu_leaves_no_files(tmp_path):
    script = write(
        tmp_path,
        """
        import json, os, shutil
        import numpy as np
        from pathlib import Path
        model.cuda()
        with torch.cuda.nvtx.range("start"), torch.cuda.stream(torch.cuda.Stream()) as stream:
            stream.wait_stream(torch.cuda.current_stream())
        torch.ones(2).to(torch.cuda.current_device())
        torch.ones(2, device=torch.cuda.current_stream().device_index)
        torch.cuda.nvtx.range_push(f"{torch.cuda.memory_reserved() / 2**20:.1f}")
        folder = Path(__file__).parent / "run"
        os.makedirs(folder / "a")
        shutil.rmtree(folder)
        folder.mkdir()
        train()
        torch.save({"optimizer": optimizer.state_dict()}, folder / "last.pt")
        (folder / "log.json").write_text("[1]")
        with open("log.txt", "a") as log:
            log.write(sys.argv[1])
        assert json.loads((folder / "log.json").read_text()) == [1]
        assert torch.load(folder / "last.pt")["optimizer"]
        assert sorted(os.listdir(folder)) == ["last.pt", "log.json"]
        os.remove(folder / "last.pt")
        assert not (folder / "last.pt").exists()
        shutil.copyfile(__file__, folder / "script.py")
        os.remove(folder / "script.py")
        np.savetxt(folder / "table.csv", [1.0])
        with open(os.fsencode(folder / "events"), "wb") as events:
            events.write(b"1")
        assert sorted(os.listdir(os.fsencode(folder))) == [b"events", b"log.json", b"table.csv"]
        assert os.statvfs(folder)
        assert torch.ones(2, device=0).device.type == "cpu"
        assert torch.randn(2, device="cuda:0").sum().device.type == "cpu"
        print("reached")
        """,
    )
    results, run = judge_script(script, ["argument"], on_cpu=True)
    assert not run.error
    assert failures(results).keys() == {"resume_is_exact"}
    assert [*tmp_path.iterdir()] == [Path(script)]


def test_script_that_casts_keeps_its_autocast(tmp_path):
    script = write(
        tmp_path,
        """
        model.cuda()
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = model(torch.ones(4, 4).half()).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    )
    results, run = judge_script(script, on_cpu=True)
    assert not run.error
    assert not failures(results)


def test_relative_path_in_a_new_folder(tmp_path):
    """The folder is made below a temporary one, and holds what the script writes; the data lies
    beside the script.
    """
    (tmp_path / "data.txt").write_text("1")
    script = write(
        tmp_path,
        f"""
        import os
        os.chdir({str(tmp_path)!r})
        os.makedirs("out")
        os.chdir("out")
        assert os.getcwd() == {str(tmp_path / "out")!r}
        assert open("../data.txt").read() == "1"
        for step in range(8):
            train(1)
            with open("log.txt", "a") as log:
                log.write("step")
            assert len(open("log.txt").read()) == 4 * (step + 1)
        """,
    )
    _, run = judge_script(script)
    assert (run.ended, run.error, len(run.outcomes)) == ("end", "", 5)
    assert {outcome.ended for outcome in run.outcomes} <= {"two windows", "end"}
    assert not (tmp_path / "out").exists()


def test_library_that_steps_is_named(tmp_path):
    package = tmp_path / "site-packages" / "library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def finish(schedule):\n    schedule.step()\n")
    script = write(
        tmp_path,
        f"""
        sys.path.append({str(package.parent)!r})
        import library
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        for _ in range(8):
            train(1)
            library.finish(schedule)
        """,
    )
    results, _ = judge_script(script)
    text = failures(results)["skipped_step_changes_nothing"]
    assert "library  library/__init__.py:2 makes this call" in text


def test_error_text_is_no_ending(tmp_path):
    script = write(
        tmp_path,
        r"""
        for _ in range(8):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(4, 4)).square().mean()).backward()
            if not all(param.grad.isfinite().all() for param in model.parameters()):
                raise ValueError("overflow\nend")
            scaler.step(optimizer)
            scaler.update()
        """,
    )
    results, _ = judge_script(script)
    text = failures(results)["skipped_step_changes_nothing"]
    assert "the script raises end" in text


def test_in_a_path_names_no_library(tmp_path):
    path = Path(
        write(
            tmp_path,
            """
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            for _ in range(8):
                train(1)
                schedule.step()
            """,
        )
    )
    script = path.rename(tmp_path / "train in fp16.py")
    results, _ = judge_script(str(script))
    text = failures(results)["skipped_step_changes_nothing"]
    assert "fp16.py:17: StepLR.step() runs after a skipped step" in text
    assert "library" not in text
    assert "is made at" not in text


def test_schedule_of_a_library_is_excused(tmp_path):
    package = tmp_path / "site-packages" / "library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "def make(schedule, optimizer):\n    return schedule(optimizer, 1)\n"
        "def finish(schedule):\n    schedule.step()\n"
    )
    script = write(
        tmp_path,
        f"""
        sys.path.append({str(package.parent)!r})
        import library
        schedule = library.make(torch.optim.lr_scheduler.StepLR, optimizer)
        for _ in range(8):
            train(1)
            library.finish(schedule)
        """,
    )
    results, _ = judge_script(script)
    assert not failures(results)
    (excused,) = [each.text for each in results if each.outcome == "xfailed"]
    assert "library/__init__.py:4 steps the library's own StepLR" in excused


def test_each_checkpoint_has_the_scaler(tmp_path):
    """Two files may be parts of one checkpoint; a file with more than one part is a checkpoint of
    its own.
    """
    script = write(
        tmp_path,
        """
        train(4)
        torch.save(optimizer.state_dict(), "optimizer.pt")
        torch.save(scaler.state_dict(), "scaler.pt")
        import os
        os.mkdir("other")
        torch.save({"o": optimizer.state_dict(), "s": scaler.state_dict()}, "other/last.pt")
        torch.save({"o": optimizer.state_dict(), "step": 4}, "other/best.pt")
        """,
    )
    results, _ = judge_script(script)
    assert "train.py:20: " in failures(results)["resume_is_exact"]


def test_command_reports_as_json(tmp_path, capsys):
    script = write(
        tmp_path,
        """
        train(2)
        for _ in range(20):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 4)).sum()).backward()
            optimizer.step()
        """,
    )
    with pytest.raises(SystemExit) as exit_:
        build(["check-loop"])(["check-loop", script, "--report", "json"])
    assert exit_.value.code == 1
    results = json.loads(capsys.readouterr().out)["results"]
    failed = [each["check"] for each in results if each["outcome"] == "failed"]
    assert failed == ["gradients_do_not_depend_on_loss_scale"]


@pytest.mark.framework
def test_lightning_steps_its_schedule_always():
    lightning = pytest.importorskip(
        "lightning", reason="pip install -c constraints.txt --group frameworks"
    )
    from lightning.pytorch.plugins import MixedPrecision

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 2)

        def training_step(self, batch, _):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with checked(raises=False) as found:
        trainer.fit(
            Module(), torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4)
        )
    failed = failures(found.results)
    assert failed.keys() == {"skipped_step_changes_nothing"}
    assert (
        "StepLR.step() runs after a skipped step"
        in failed["skipped_step_changes_nothing"]
    )


@pytest.mark.framework
@pytest.mark.parametrize("kind", ["right", "schedule"])
def test_accelerate_script(tmp_path, kind):
    """The prepared schedule waits for a step that was taken; one that is not prepared does not."""
    pytest.importorskip(
        "accelerate", reason="pip install -c constraints.txt --group frameworks"
    )
    script = tmp_path / "train.py"
    script.write_text(ACCELERATE)
    results, run = judge_script(str(script), [kind], on_cpu=True)
    assert run.steps
    expected = {"skipped_step_changes_nothing"} if kind == "schedule" else set()
    assert failures(results).keys() == expected


ACCELERATE = """
import sys, torch
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
data = torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
if sys.argv[1] == "right":
    schedule = accelerator.prepare(schedule)
for _ in range(5):
    for batch in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if sys.argv[1] == "right" or accelerator.sync_gradients:
                schedule.step()
            optimizer.zero_grad()
"""
