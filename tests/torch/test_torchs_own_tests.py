"""torch's own tests of its scaler, with our class in its place: all pass.

Their text does not come with torch: AMPSIM_TORCH_TESTS names the folder ``test`` of a checkout of
pytorch.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

FOLDER = os.environ.get("AMPSIM_TORCH_TESTS", "")
RUN = """
import sys, torch, torch.amp.grad_scaler, pytest
from ampsim.torch import GradScaler
for module in (torch, torch.amp, torch.amp.grad_scaler) if sys.argv[1] == "ours" else ():
    module.GradScaler = GradScaler
pytest.main(sys.argv[2:])
"""


def run(
    file: Path, whose: str, names: str, tmp_path: Path
) -> tuple[dict[str | None, bool], str]:
    """Run a file of torch's tests on the CPU; return whether each that was not skipped failed, and
    what was printed.
    """
    options = [
        "-q",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        f"--rootdir={file.parent}",
        "-k",
        names,
    ]
    report = tmp_path / "report.xml"
    command = [
        sys.executable,
        "-c",
        RUN,
        whose,
        str(file),
        f"--junitxml={report}",
        *options,
    ]
    environment = os.environ | {
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(  # noqa: S603
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    cases = ET.parse(report).getroot().iter("testcase") if report.exists() else []  # noqa: S314
    failed = {
        case.get("name"): case.find("failure") is not None
        for case in cases
        if case.find("skipped") is None
    }
    return failed, done.stdout + done.stderr


def deep(test: Any) -> Any:
    """Mark a test that needs torch's own."""
    test = pytest.mark.framework(
        "expecttest", how="pip install -c constraints.txt --group clients"
    )(test)
    where = (
        "git clone https://github.com/pytorch/pytorch; AMPSIM_TORCH_TESTS=pytorch/test"
    )
    return pytest.mark.deep(pytest.mark.skipif(not FOLDER, reason=where)(test))


@deep
@pytest.mark.parametrize("whose", ["torch's", "ours"])
def test_torch_tests_pass(whose, tmp_path):
    names = "grad_scal or gradscaler or params_invalidated"
    failed, said = run(Path(FOLDER) / "test_torch.py", whose, names, tmp_path)
    assert len(failed) >= 26, said
    assert not any(failed.values()), said
