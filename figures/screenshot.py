"""Take `figures/report.png`, a screenshot of a report: `python -m figures.screenshot`. Needs
Chromium.

The page is `ampsim report docs/examples/run.jsonl`. Pixels differ between versions of Chromium, so
the picture stores the digest of its input file, and a test compares that digest.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from ampsim.core.output import run_command
from ampsim.runs.explain_log import explain
from ampsim.runs.report.report import report
from figures import _style

RUN = _style.HERE.parent / "docs" / "examples" / "run.jsonl"
PICTURE = _style.HERE / "report.png"
SIZE = (1000, 1560)  # pixels: down to the gradients' chart
BROWSERS = ("chromium", "google-chrome", "chromium-browser")


def sha256() -> str:
    """Return the sha256 of the run's file."""
    return hashlib.sha256(RUN.read_bytes()).hexdigest()


def taken_of(picture: Path) -> str:
    """Return the sha256 of the run that a picture shows."""
    with Image.open(picture) as image:
        return str(image.info.get("run_sha256"))


def take(browser: str, picture: Path) -> None:
    """Take the picture."""
    with tempfile.TemporaryDirectory(prefix="ampsim-picture-") as folder:
        page = Path(folder) / "run.html"
        image = Path(folder) / "page.png"
        page.write_text(report(explain(RUN)), encoding="utf-8")
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/browser",
            "--window-size={},{}".format(*SIZE),
            f"--screenshot={image}",
            "--virtual-time-budget=5000",
        ]
        subprocess.run(  # noqa: S603
            [browser, *options, page.as_uri()], check=True, capture_output=True
        )
        about = PngInfo()
        about.add_text("run_sha256", sha256())
        with Image.open(image) as taken:
            taken.convert("RGB").save(picture, optimize=True, pnginfo=about)


def main() -> int:
    """Return the exit status."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(
            f"screenshot: error: found none of {', '.join(BROWSERS)}; run `apt-get install chromium`",
            file=sys.stderr,
        )
        return 1
    take(browser, PICTURE)
    print(f"screenshot: {PICTURE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run_command("screenshot", main))
