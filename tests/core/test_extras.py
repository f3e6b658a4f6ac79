"""What is said of a package that is missing: the line to type, and the error's own name for whoever catches it."""

import pytest

from ampsim.core import extras
from ampsim.core.extras import missing, needing


def test_the_line_to_type_is_of_the_package_and_the_error_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = ModuleNotFoundError("No module named 'tyro.conf'", name="tyro.conf", path="here")
    for checkout, line in ((True, "-c constraints.txt -e '.[experiments]'"), (False, "'ampsim[experiments]'")):
        monkeypatch.setattr(extras, "_CHECKOUT", checkout)
        told = missing(raised)
        assert (str(told), told.name, told.path) == (f"{raised}; pip install {line}", "tyro.conf", "here")
    unknown = ModuleNotFoundError("No module named 'other'", name="other")
    assert missing(unknown) is unknown
    assert extras.line_to_type("other") == "pip install other"


def test_a_command_ends_with_a_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left, needing("ampsim-it"):
        raise ModuleNotFoundError("No module named 'other'", name="other")
    assert left.value.code == 2
    assert capsys.readouterr() == ("", "ampsim-it: error: No module named 'other'\n")
