"""Whatever system call fails, as on a full disk or a lost one: nothing acknowledged is lost, and the error is told."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampsim.core.files import sole_writer, write_atomically
from ampsim.run_file import RunFile, records

fcntl = pytest.importorskip("fcntl", reason="POSIX only")

CALLS = [(os, name) for name in ("open", "write", "fsync", "truncate", "fstat", "mkdir", "chmod", "replace", "stat")]
CALLS += [(fcntl, "flock")]
ERRORS = [errno.ENOSPC, errno.EINTR]  # of which the first may write a half


class Faults:
    """The system calls of a program: they are counted, and the n-th fails; half of what it would write is written."""

    def __init__(self, patch: pytest.MonkeyPatch, n: int, number: int) -> None:
        self.left, self.number, self.failed = n, number, ""
        for module, name in CALLS:
            call = getattr(module, name) if name != "fsync" else bool  # to reach the disk would take seconds
            patch.setattr(module, name, self.counted(name, call))
        patch.setattr(os, "fdopen", lambda handle, mode: io.BufferedWriter(_Raw(handle, mode)))
        opened = io.open
        patch.setattr(
            io,
            "open",
            lambda file, mode="r", *more: (
                io.BufferedWriter(_Raw(file, mode)) if mode in ("ab", "wb") else opened(file, mode, *more)
            ),
        )

    def counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.failed = name
                if name == "write" and self.number != errno.EINTR:  # which is before anything is written
                    call(args[0], args[1][: len(args[1]) // 2])
                raise OSError(self.number, os.strerror(self.number))
            return call(*args, **kwargs)

        return counting


class _Raw(io.FileIO):
    def write(self, data: Any) -> int:
        return os.write(self.fileno(), bytes(data))


def run_file(path: Path, done: list[int]) -> None:
    with RunFile(path, {"seed": 1}) as file:
        for step in range(len(done), 3):
            file.append({"step": step, "norm": 1.0})
            done.append(step)


def kept_by_run_file(path: Path) -> list[int]:
    with RunFile(path, {}):  # a start that goes on
        pass
    return [record["step"] for record in records(path)]


def replaced(path: Path, done: list[int]) -> None:
    for number in range(len(done), 3):
        with sole_writer(path):
            write_atomically(path, b"%d" % number * 9)
        done.append(number)


def kept_by_replacing(path: Path) -> list[int]:
    with sole_writer(path):  # it is free again
        pass
    text = path.read_bytes() if path.exists() else b""
    assert text in (b"", b"0" * 9, b"1" * 9, b"2" * 9)
    assert {each.name for each in path.parent.iterdir()} <= {path.name}
    return [*range(int(text[:1]) + 1)] if text else []


PROGRAMS = [(run_file, kept_by_run_file), (replaced, kept_by_replacing)]


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", bool)


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize(("program", "kept"), PROGRAMS, ids=lambda each: each.__name__)
def test_at_the_nth_failing_call_nothing_is_lost(
    tmp_path: Path, program: Callable[..., None], kept: Callable[[Path], list[int]], number: int
) -> None:
    seen = set()
    for n in range(1, 200):
        path, done = tmp_path / str(n) / "x.jsonl", list[int]()
        path.parent.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            faults, told = Faults(patch, n, number), None
            try:
                program(path, done)
            except OSError as error:
                told = error
        again = list(done)
        program(path, again)  # the fault has passed
        seen.add(faults.failed)
        assert told is None or (told.errno, faults.failed != "") == (number, True), told
        assert kept(path)[: len(done)] == done, f"call {n}, {faults.failed}"
        assert kept(path) == again, f"call {n}, {faults.failed}"
        if not faults.failed:
            return
    pytest.fail(f"more calls than were thought of: {seen}")
