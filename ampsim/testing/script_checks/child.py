"""The process that runs the script: ``python -m ampsim.testing.script_checks.child SETTINGS``."""

import inspect
import os
import pickle
import random
import runpy
import signal
import sys
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from ampsim.testing.script_checks import on_cpu
from ampsim.testing.script_checks.redirect import redirect_writes
from ampsim.testing.script_checks.session import Session

REDIRECTED = "files that the script writes go to a temporary folder"
IN_PROCESS = {  # a loader's workers are no part of a forked process
    "num_workers": 0, "persistent_workers": False, "prefetch_factor": None, "pin_memory": False,
    "timeout": 0, "multiprocessing_context": None,
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How a script is run; the fields without text are those of `run.judge_script`.

    Attributes:
        autocast: Whether autocast stays on with `on_cpu`; fp16 is slow on the CPU, and some kernels
            lack it.
        folder: Where the observation, the outcomes, and redirected files are written.
    """

    script: str
    arguments: tuple[str, ...]
    steps: int
    on_cpu: bool
    time_limit: float
    autocast: bool = False
    folder: Path = Path()


class Child:
    """Runs the script in this process, and leaves the process when enough was seen."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        limit = max(1.0, settings.time_limit / 4)
        self.session = Session(
            settings.folder,
            steps=settings.steps,
            limit=limit,
            on_enough=lambda: self.finish("enough"),
        )

    def finish(self, ended: str, error: str = "") -> NoReturn:
        """Write what was seen, and leave without the script's own cleaning up."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        replaced = [REDIRECTED]
        if self.settings.on_cpu:
            replaced.append(on_cpu.REPLACED)
        if self.settings.on_cpu and not self.settings.autocast:
            replaced.append(on_cpu.WITHOUT_AUTOCAST)
        observation = self.session.observation(ended, error, replaced)
        (self.settings.folder / "observation").write_bytes(pickle.dumps(observation))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def run(self) -> NoReturn:
        """Run the script as ``__main__``."""
        settings = self.settings
        sys.argv = [settings.script, *settings.arguments]
        sys.path[0] = str(Path(settings.script).resolve().parent)
        signal.signal(signal.SIGALRM, lambda *_: self.finish("time limit"))
        signal.setitimer(signal.ITIMER_REAL, settings.time_limit)
        with ExitStack() as stack:
            stack.enter_context(self.session.recorder.install())
            redirected = redirect_writes(settings.folder / "files")
            self.session.redirection = stack.enter_context(redirected)
            try:
                runpy.run_path(settings.script, run_name="__main__")
                self.finish("end")
            except SystemExit as error:
                self.finish("end", f"SystemExit: {error.code}" if error.code else "")
            except KeyboardInterrupt:
                self.finish("interrupted")
            except BaseException:
                self.finish("error", traceback.format_exc())


def prepare(settings: Settings) -> None:
    """Set seeds and threads, and put the script on the CPU if that is wanted."""
    torch.set_num_threads(1)  # the threads of a pool do not survive a fork
    setattr(torch, "set_num_threads", lambda _: None)  # noqa: B010
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    if settings.on_cpu:
        on_cpu.enter(autocast=settings.autocast)
    _load_in_process()


def _load_in_process() -> None:
    """Load data in this process."""
    loader: Any = torch.utils.data.DataLoader
    make = loader.__init__
    signature = inspect.signature(make)

    def init(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.arguments.update(IN_PROCESS)
        make(*bound.args, **bound.kwargs)

    loader.__init__ = init


def main() -> None:
    """Run the script that the settings name."""
    settings: Settings = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301
    prepare(settings)
    Child(settings).run()


if __name__ == "__main__":
    main()
