"""The client of `ampsim.peers.serve`: a peer in another process, and a plain word for whatever becomes of that."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import get_annotations
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import ampsim
from ampsim.peers import environments
from ampsim.peers.peer import Peer, Step

T = TypeVar("T")
LINES = 5  # of what the peer printed last, in an error
LONGEST = 1 << 26  # bytes of an answer
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)  # of wrong forms


class PeerRaisedError(RuntimeError):
    """An exception of the peer's own: `kind` is its dotted name, `text` its message."""

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.kind, self.text = kind, text
        super().__init__(f"{name} raised {kind}: {text}")


class PeerLostError(RuntimeError):
    """A peer that hung, ended its process, or answered in the wrong form; the next `start` begins a new process."""


class Remote(Peer):
    """A peer in a process of its own, which begins with the first call, and again with `start` after it was lost."""

    def __init__(
        self, peer: type[Peer], *, limit: float = 60.0, first: float = 600.0, python: str | None = None
    ) -> None:
        for each in get_annotations(Peer):
            setattr(self, each, getattr(peer, each, None))
        self.limit, self.first = limit, first
        self._python = python or environments.python(self.environment)
        self._process: _Process | None = None

    def version(self) -> str:
        return self._ask("version", str)

    def start(self, **constants: Any) -> None:
        self._ask("start", bool, **constants)

    def get_scale(self) -> float:
        return self._ask("get_scale", float)

    def scale_loss(self, loss: float) -> float:
        return self._ask("scale_loss", float, loss)

    def step(self, scaled: Sequence[float]) -> Step:
        return self._ask("step", _step, list(scaled))

    def history(self, constants: Mapping[str, Any], scaled: Sequence[Sequence[float]]) -> list[float | None]:
        return self._ask("history", list, dict(constants), [list(each) for each in scaled])

    def state_dict(self) -> object:
        return self._ask("state_dict", lambda state: state)

    def load_state_dict(self, state: object) -> None:
        self._ask("load_state_dict", bool, state)

    def close(self) -> None:
        """End the process, if one runs."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, call: str, form: Callable[[Any], T], *args: object, **kwargs: object) -> T:
        limit = self.limit
        if self._process is None:
            if call not in ("start", "version", "history"):
                raise PeerLostError(f"{self.name}: no process to ask for {call}; expected start() before")
            self._process, limit = _Process(self.name, self._python, self.environment), self.first
        elif call == "start":
            limit = self.first  # it may be the first call that loads the package
        try:
            value, raised = self._process.ask({"call": call, "args": args, "kwargs": kwargs}, limit, form)
        except BaseException:
            self.close()
            raise
        if not raised:
            return cast("T", value)
        kind, text = raised
        if kind == "NotImplementedError":
            raise NotImplementedError(text)
        raise PeerRaisedError(self.name, kind, text)


def _step(given: dict[str, Any]) -> Step:
    seen = given.pop("unscaled")
    return Step(**given, unscaled=None if seen is None else tuple(map(float, seen)))


class _Process:
    """One serving process, its socket, and the file that takes what it prints."""

    def __init__(self, name: str, python: str, environment: str) -> None:
        self.name = name
        self.folder = tempfile.TemporaryDirectory(prefix="ampsim-peer-")
        # Only what `serve` needs is put before the environment's own: the rest wants another Python, another numpy.
        home, ours = Path(self.folder.name, "ampsim"), Path(ampsim.__file__).parent
        if environment == "main":
            home.symlink_to(ours)
        else:
            home.mkdir()
            (home / "__init__.py").touch()
            (home / "peers").symlink_to(ours / "peers")
        self.printed = Path(self.folder.name, "printed")
        self.socket, theirs = socket.socketpair()
        variables = {"OMP_NUM_THREADS": "1", **os.environ, **environments.variables(environment)}
        with theirs, self.printed.open("wb") as sink:
            self.process = subprocess.Popen(  # noqa: S603
                [python, "-m", "ampsim.peers.serve", name, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                cwd=self.folder.name,
                env={**variables, "PYTHONPATH": self.folder.name, "PYTHONNOUSERSITE": "1"},
                start_new_session=True,  # so that what it starts ends with it
            )

    def ask(
        self, request: dict[str, Any], limit: float, form: Callable[[Any], T]
    ) -> tuple[T | None, tuple[str, str] | None]:
        """Send one request; return the answer in a form, or the kind and text of what the peer raised.

        Raises:
            PeerLostError: none of the right form came in time.
        """
        with contextlib.suppress(OSError):  # it has ended, which the reading tells better
            self.socket.sendall(json.dumps(request).encode() + b"\n")
        line = self._line(request["call"], limit)
        with contextlib.suppress(*MALFORMED):
            answer = json.loads(line)
            if "raised" not in answer:
                return form(answer["value"]), None
            kind, text = answer["raised"]
            return None, (str(kind), str(text))
        raise self._lost(f"answered {request['call']} by {line[:80]!r}; expected a JSON object with value or raised")

    def _line(self, call: str, limit: float) -> bytes:
        line, piece, until = bytearray(), b"", time.monotonic() + limit
        while b"\n" not in piece:
            left = max(0.0, until - time.monotonic())
            if not select.select([self.socket], [], [], left)[0] or (line and not left):
                raise self._lost(f"did not answer {call} within {limit:g} s")
            if len(line) > LONGEST:
                raise self._lost(f"answered {call} by more than {LONGEST:,} bytes without a line feed")
            try:
                piece = self.socket.recv(1 << 16)
            except OSError:
                piece = b""
            if not piece:
                raise self._lost(f"{self._ending()} in {call}")
            line += piece
        return bytes(line).partition(b"\n")[0]

    def _ending(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout=10)
            return f"ended with exit status {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
        return "closed its line"

    def _lost(self, what: str) -> PeerLostError:
        lines = self.printed.read_text(errors="replace").splitlines()[-LINES:]
        said = "\n  ".join(["; it printed last:", *lines]) if lines else ", and printed nothing"
        return PeerLostError(f"{self.name} {what}{said}")

    def end(self) -> None:
        """End the process and what it started, and remove its folder."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.folder.cleanup()
