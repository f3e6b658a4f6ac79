"""What is installed does what the README shows: a wheel, a bare environment, each command of
`--help`, each extra.

The wheel is built in a copy, and unpacked: what `make test` needs is in this environment already,
and the child sees none of it but numpy and what the command line needs. `make deep` installs from
the index instead, once per extra.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HELD = (
    "hypothesis",
    "jax",
    "matplotlib",
    "numba",
    "optax",
    "pytest",
    "tensorboard",
    "torch",
    "wandb",
)
LOG = "".join(
    f"step {n}: loss {2 - n / 10} scale {scale}\n"
    for n, scale in enumerate([65536, 32768, 32768, 65536])
)
LOOP = """import torch
def train(model, optimizer, scheduler, scaler, batches):
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(batch).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
"""
TORCH = "pip install '.[torch]' in a clone"
TESTING = "pip install '.[testing]' in a clone"
# command -> arguments, exit status, and what it says, in an environment with no extra
BARE = {
    "explain": (["train.log"], 0, "skipped steps: at least 1"),
    "report": (["train.log"], 0, "wrote train.html"),
    "playground": ([], 0, "wrote playground.html"),
    "check": (["torch.amp:GradScaler"], 2, TESTING),
    "check-loop": (["loop:train"], 2, f"loop: No module named 'torch'; {TORCH}"),
    "check-ranks": (["math:pi"], 2, TORCH),
    "emit-test": (["scale_is_never_subnormal", "torch.amp:GradScaler"], 2, TORCH),
    "lint": (["loop.py"], 1, "loop.py:10:9: AMP101"),
    "dialects": ([], 0, "torch.amp.GradScaler"),
    "replay": (["torch.amp.GradScaler", "010"], 0, "32768.0"),
    "sweep": (["run.npy", "torch.amp.GradScaler"], 0, "1,000 steps"),
    "advise": (["run.npy"], 0, "advised"),
    "traces": (["export", "vectors.jsonl"], 0, "vectors.jsonl: version"),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, by the build backend alone: nothing is fetched."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("ampsim", "experiments/data/cpu"):
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    code = "from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], cwd=copy, check=True, capture_output=True
    )
    [built] = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to put on the path: the wheel, and what it requires without an extra, and no more."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in required("ampsim", set()):
        for file in metadata.files(name) or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(
                    Path(str(file.locate())).parents[len(file.parts) - 1] / top
                )
    return site


def required(name: str, seen: set[str]) -> set[str]:
    """Return the distributions that one requires without an extra, and those that they require,
    without itself.
    """
    requires = (
        PROJECT["project"]["dependencies"]
        if name == "ampsim"
        else metadata.requires(name) or []
    )
    for needed in map(Requirement, requires):
        if needed.name not in seen and (
            needed.marker is None or needed.marker.evaluate({"extra": ""})
        ):
            seen.add(needed.name)
            required(needed.name, seen)
    return seen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    import numpy as np

    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "loop.py").write_text(LOOP)
    np.save(tmp_path / "run.npy", np.full(1000, 2.0**20))
    return tmp_path


def run(
    python: Path | str, folder: Path, *arguments: str, path: Path | None = None
) -> tuple[int, str]:
    """Run ampsim in a folder, with `path` for all packages there are, if it is given."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON")
    }
    environment |= {"PYTHONPATH": str(path)} if path else {}
    isolated = ["-S"] if path else []
    command = [str(python), *isolated, "-m", "ampsim", *arguments]
    done = subprocess.run(  # noqa: S603
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_help_commands_are_all_tested(bare: Path, folder: Path) -> None:
    code, text = run(sys.executable, folder, "--help", path=bare)
    assert code == 0
    assert set(re.findall(r"^  ([a-z][a-z-]+)  ", text, re.MULTILINE)) == {*BARE}


@pytest.mark.parametrize("command", BARE)
def test_command_runs_or_names_its_extra(
    bare: Path, folder: Path, command: str
) -> None:
    arguments, status, said = BARE[command]
    code, text = run(sys.executable, folder, command, *arguments, path=bare)
    assert "Traceback" not in text
    assert (code, said in text) == (status, True), text


def test_the_environment_is_bare(bare: Path) -> None:
    code = f"import importlib.util as u; print([name for name in {HELD} if u.find_spec(name)])"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(bare)}, cwd=bare, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_the_wheel_has_the_package_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"ampsim"}
    command = ["git", "ls-files", "ampsim"]
    done = subprocess.run(  # noqa: S603
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) <= {*names}


def test_published_links_are_absolute(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    address = "https://git.example/OWNER/ampsim"
    script = [sys.executable, str(ROOT / ".ci" / "address.py"), address, "v1.0"]
    subprocess.run(script, cwd=tmp_path, check=True)  # noqa: S603
    links = re.findall(r"\]\(([^)\s]+)", (tmp_path / "README.md").read_text())
    assert [
        link for link in links if "://" not in link and not link.startswith("#")
    ] == []
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert project["project"]["urls"]["Repository"] == address


# -------------------------------------------------------------------- from the index, once an extra

SAID = {  # extra -> what works with it and does not without
    "torch": "import ampsim.torch, ampsim.probe; from ampsim.runs import watch",
    "jax": "import ampsim.jax",
    "testing": "from ampsim.testing import check_scaler, parametrize_with_checks",
    "report": "import matplotlib, tensorboard, wandb",
    "torch,testing": "from ampsim.cli import app; app(['check', 'ampsim.torch:GradScaler', '-l', '0', '-n', '5'])",
}


@pytest.mark.deep
@pytest.mark.parametrize("extra", ["", *SAID])
def test_a_fresh_environment_with_an_extra(
    extra: str, wheel: Path, folder: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
    ]
    subprocess.run([*install, f"{wheel}[{extra}]" if extra else str(wheel)], check=True)  # noqa: S603
    lacking = {
        line
        for line, package in ((TORCH, "torch"), (TESTING, "testing"))
        if package not in extra
    }
    for command, (arguments, status, said) in BARE.items():
        if status in (0, 1, 3) or said in lacking:
            code, text = run(python, folder, command, *arguments)
            assert (code, said in text) == (status, True), text
    code = SAID.get(extra, "import ampsim")
    done = subprocess.run(  # noqa: S603
        [str(python), "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
