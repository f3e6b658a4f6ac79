"""Data frames of run files and of experiments' data: the rows are the records, and numbers are
numbers.
"""

import math
import sys
from types import ModuleType

import pytest

import ampsim
from ampsim.core.files import DamagedFileError
from ampsim.runs.record import data_file
from ampsim.runs.record.run_file import RunFile

PANDAS = pytest.param(
    "pandas", marks=pytest.mark.framework("pandas", how="pip install pandas")
)
POLARS = pytest.param(
    "polars", marks=pytest.mark.framework("polars", how="pip install polars")
)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run.jsonl"
    with RunFile(path, {"seed": 1}) as file:
        for step, norm in enumerate([1.0, 2.0, math.inf]):
            file.append({"step": step, "grad_norm": norm, "loss_scale": 8})
    with RunFile(path, {"seed": 1}) as file:  # restarted at step 1
        file.append(
            {
                "step": 1,
                "grad_norm": math.nan,
                "loss_scale": 4.0,
                "nonfinite": {"w": "x"},
            }
        )
    return path


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "x.jsonl"
    units = [
        {
            "arm": "a",
            "seed": 0,
            "settings": {"lr": 0.1},
            "loss": [1, math.inf],
            "at": None,
        },
        {
            "arm": "b",
            "seed": 1,
            "settings": {"lr": 1},
            "loss": [2.5, math.nan],
            "at": 3,
        },
    ]
    data_file.write(path, {"script": "x.py"}, units)
    return path


@pytest.fixture
def plain(monkeypatch):
    """A stand-in for pandas, whose frame is a list of the rows."""

    class Frame(list):
        def __init__(self, rows):
            super().__init__(rows)
            self.attrs = {}

    module = ModuleType("pandas")
    module.DataFrame = Frame
    monkeypatch.setitem(sys.modules, "pandas", module)


def test_restarted_step_counts_once(plain, run):
    frame = ampsim.load(run)
    assert [(row["step"], row["loss_scale"]) for row in frame] == [
        (0, 8),
        (1, 4.0),
        (2, 8),
    ]
    assert frame.attrs["provenance"] == {"seed": 1}


def test_settings_become_columns(plain, data):
    frame = ampsim.load(data)
    assert [row["settings.lr"] for row in frame] == [0.1, 1]
    assert frame.attrs["provenance"] == {"script": "x.py"}


@pytest.mark.parametrize("library", [PANDAS, POLARS])
def test_number_columns_are_numeric(monkeypatch, library, run, data):
    for other in {"pandas", "polars"} - {library}:
        monkeypatch.setitem(sys.modules, other, None)
    frame, units = ampsim.load(run), ampsim.load(data)
    assert frame["grad_norm"].max() == math.inf
    assert frame["loss_scale"].sum() == 20.0
    assert units["settings.lr"].sum() == 1.1
    assert units["at"].max() == 3
    assert [*units["loss"][1]][:1] == [2.5]


@pytest.mark.framework("pandas", how="pip install pandas")
@pytest.mark.framework("polars", how="pip install polars")
def test_imported_library_is_preferred(monkeypatch, run):
    import polars

    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    assert isinstance(ampsim.load(run), polars.DataFrame)


def test_missing_library_names_install_command(monkeypatch, run):
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ModuleNotFoundError, match="'pandas' or 'polars'; pip install pandas"
    ):
        ampsim.load(run)


@pytest.mark.parametrize("text", ["", "{}\n", "loss 3\n", '{"provenance":{}}\n'])
def test_other_file_raises(plain, tmp_path, text):
    path = tmp_path / "train.log"
    path.write_text(text)
    with pytest.raises(DamagedFileError, match=r"train\.log, line 1"):
        ampsim.load(path)
