"""Runs of tests in a copy of the tree: which lines each test reaches, and which of them fails with a mutant.

A run is a fork of a process that has imported the large packages and nothing of `ampsim`. The tests that reach the
mutant's line come first, the fastest of them at the front; then, because a line that ran while JAX traced or a module
was imported is reached by more tests than were seen to, the others that reach its file. Tests that are newer than the
measurement come before both. The first failure ends the run.
"""

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutation.mutants import ROOMS, ROOT, Mutant

FORK = multiprocessing.get_context("fork")
LIMIT = 60.0  # seconds of tests for one mutant: what only the slowest tests of many would see counts as survived
SILENCE = 300.0  # seconds of the clock without a word from a test: it waits for what does not come
ENVIRONMENT = {
    "HYPOTHESIS_PROFILE": "mutants",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Verdict:
    """What a run of tests ended with: `how` is "passed", or how the test `by` failed."""

    how: str
    by: str | None = None
    tests: int = 0


class Reach:
    """Which tests of a package reach which line, and how long each takes."""

    def __init__(self, data: Path) -> None:
        self.seconds: dict[str, float] = json.loads(data.with_suffix(".json").read_text())
        self._lines = coverage.CoverageData(basename=str(data))
        self._lines.read()
        seen = {test for file in self._lines.measured_files() for test in self._contexts(file)}
        self._elsewhere = {test for test, seconds in self.seconds.items() if seconds and test not in seen}

    def tests(self, mutant: Mutant) -> dict[str, float]:
        """Return the tests that may see a mutant, in the order to run them, with their seconds."""
        near = self._near(mutant)
        order = sorted(self.every(mutant), key=lambda test: (test not in near, self.seconds[test], test))
        ends = accumulate(self.seconds[test] for test in order)
        return {test: self.seconds[test] for test, end in zip(order, ends, strict=True) if end <= LIMIT}

    def every(self, mutant: Mutant) -> set[str]:
        """Return the tests that may see a mutant, however long they take."""
        chosen = self._contexts(mutant.file) & self.seconds.keys() or {*self.seconds}  # run by children alone: any may
        if "" in self._near(mutant):  # it ran at import: a test may read what it made
            files = tuple(f"{_file(test)}::" for test in chosen)
            chosen |= {test for test in self.seconds if test.startswith(files)}
        return chosen | self._elsewhere  # in a process of their own

    def _near(self, mutant: Mutant) -> set[str]:
        return set(self._lines.contexts_by_lineno(mutant.file).get(mutant.line, ()))

    def _contexts(self, file: str) -> set[str]:
        return {test for tests in self._lines.contexts_by_lineno(file).values() for test in tests}


def _file(test: str) -> str:
    return test.partition("::")[0]


class Tree:
    """A copy of what the tests read, to write mutants to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for path in ROOT.iterdir():
            if path.name in ("ampsim", "tests", "experiments"):
                shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.name == "pyproject.toml":
                shutil.copy(path, folder)
            elif path.name == ".ci" or not path.name.startswith("."):
                (folder / path.name).symlink_to(path)

    def measure(self, package: str, data: Path) -> None:
        """Run the tests of a package once and write what each of them reaches."""
        data.parent.mkdir(parents=True, exist_ok=True)
        verdict = self._run([ROOMS[package].tests], _Measurement(package, data), None)
        if verdict.how != "passed":
            print((self.folder / "output.txt").read_text())
            raise SystemExit(f"without a mutant {verdict.by} is {verdict.how}: expected to pass; mend it first")

    def judge(self, mutant: Mutant, package: str, reach: Reach) -> Verdict:
        """Run tests with a mutant in place of its file, to the first that fails."""
        tests = reach.tests(mutant)
        measured, wanted = ({_file(test) for test in some} for some in (reach.seconds, reach.every(mutant)))
        every = {path.relative_to(ROOT).as_posix() for path in (ROOT / ROOMS[package].tests).glob("test_*.py")}
        files = sorted(every & wanted | every - measured)
        path = self.folder / mutant.file
        original = path.read_text()
        path.write_text(mutant.source)
        try:
            return self._run(files, _Chosen(tests, reach.seconds), tests)
        finally:
            path.write_text(original)

    def _run(self, files: Iterable[str], plugin: object, tests: Mapping[str, float] | None) -> Verdict:
        here, there = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_pytest, args=(there, self.folder, list(files), plugin, tests))
        process.start()
        there.close()
        running, count = None, 0
        how = "stopped"  # by a signal of its own: no CPU time left, or a crash
        while True:
            if tests is not None and not here.poll(SILENCE):
                how = "hung"
                break
            try:
                word, test = here.recv()
            except EOFError:
                break
            if word in ("failed", "passed"):
                how, running = word, test
                break
            running, count = test, count + 1
        if how != "passed" and process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return Verdict(how, running, count)


def preload() -> None:
    """Import, before the forks, what is slow to import: of torch also what its first optimizer brings."""
    os.environ.update(ENVIRONMENT)
    for name in ("hypothesis", "numba", "z3", "torch._dynamo", "optax", "flax"):
        importlib.import_module(name)


def _pytest(pipe: Connection, folder: Path, files: list[str], plugin: Any, tests: Mapping[str, float] | None) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ampsim", "tests", "experiments")]:
        del sys.modules[name]
    with Path("output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    stop = "-x" if tests is not None else "--maxfail=1"
    plugins = [plugin, _Words(pipe, tests)]
    status = pytest.main(
        [stop, "-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=short", *files], plugins=plugins
    )
    pipe.send(("passed", None) if status == 0 else ("failed", "collection"))
    os._exit(0)


class _Words:
    """Tells the parent which test runs and which fails, and gives each ten times its CPU time."""

    def __init__(self, pipe: Connection, tests: Mapping[str, float] | None) -> None:
        self.pipe, self.tests = pipe, tests

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self.tests is not None:
            signal.setitimer(signal.ITIMER_PROF, 10 + 10 * self.tests.get(nodeid, 1.0))
        self.pipe.send(("running", nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.pipe.send(("failed", report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.pipe.send(("failed", report.nodeid))


class _Chosen:
    """Keeps the tests that were not measured, then the chosen ones in their order."""

    def __init__(self, tests: Iterable[str], measured: Collection[str]) -> None:
        self.tests, self.measured = tests, measured

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        new = [item for test, item in found.items() if test not in self.measured]
        items[:] = new + [found[test] for test in self.tests if test in found]


class _Measurement:
    """Notes the lines and the time of each test; one that is skipped has taken none."""

    def __init__(self, package: str, data: Path) -> None:
        self.data = data
        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(data_file=str(data), config_file=False, source=[ROOMS[package].code])
        self.coverage.set_option("run:relative_files", True)

    def pytest_configure(self) -> None:
        self.coverage.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.seconds[nodeid], self.started = 0.0, time.process_time()
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.seconds[report.nodeid] = max(0.001, round(time.process_time() - self.started, 3))

    def pytest_runtest_logfinish(self) -> None:
        self.coverage.switch_context("")

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self.data.with_suffix(".json").write_text(json.dumps(self.seconds))
