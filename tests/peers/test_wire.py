"""A peer in its own process: what comes back, and one that hangs, crashes, or answers nonsense."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from ampsim.peers import wire
from ampsim.peers.peer import Peer
from ampsim.peers.wire import PeerLostError, PeerRaisedError, Remote

INF, NAN = float("inf"), float("nan")

# A peer that does in `scale_loss` what a loss tells, in a process that is otherwise as `serve` makes it.
PLANTED = f"""#!{sys.executable}
import json, os, signal, subprocess, sys, time
from ampsim.peers import serve
from ampsim.peers.peer import Peer, Step

class Planted(Peer):
    name = "planted"
    def start(self, **constants): self.factor = constants.get("factor", 2.0)
    def get_scale(self): print("a line on stdout"); return self.factor
    def step(self, scaled): return Step(self.factor, None, tuple(scaled), float("inf"))
    def scale_loss(self, loss):
        print("last words", flush=True)
        if loss in (0.5, 3.0): child = subprocess.Popen(["sleep", "1000"], close_fds=False)
        if loss == 1.0: time.sleep(1000)
        if loss == 2.0: os.kill(os.getpid(), signal.SIGSEGV)
        if loss == 3.0: open(__file__ + ".child", "w").write(str(child.pid)); sys.stdout.flush(); os._exit(7)
        if loss == 4.0: sys.exit("leaving")
        if loss == 5.0: raise FloatingPointError("no way down")
        if loss == 6.0: return {{1, 2}}
        if loss == 7.0: os.write(int(sys.argv[-1]), b"nonsense\\n"); time.sleep(1000)
        if loss == 8.0: return self.nothing
        while loss == 9.0: os.write(int(sys.argv[-1]), b"x" * 4096)
        if loss in range(10, 99): os.write(int(sys.argv[-1]), json.loads(os.environ["FORMS"])[int(loss) - 10].encode())
        if loss in range(10, 99): os.write(int(sys.argv[-1]), b"\\n")
        return loss

sys.argv = sys.argv[2:]
serve.load = lambda name: Planted
serve.main()
"""


class Described(Peer):
    name = "planted"
    environment = "main"
    start = get_scale = scale_loss = step = lambda self: None  # type: ignore[assignment]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    path = tmp_path / "python"
    path.write_text(PLANTED)
    path.chmod(0o755)
    with Remote(Described, python=str(path)) as peer:
        yield peer


def test_floats_cross_with_their_bits(remote: Remote) -> None:
    remote.start(factor=0.1)
    assert remote.get_scale() == 0.1
    step = remote.step([5e-324, -INF, NAN])
    assert step.unscaled is not None
    assert step.unscaled[:2] == (5e-324, -INF)
    assert step.unscaled[2] != step.unscaled[2]
    assert (step.used, step.stepped, step.scale) == (0.1, None, INF)
    assert remote.step([]).unscaled == ()
    assert remote.history({"factor": 0.5}, [[1.0], [NAN]]) == [0.5, 0.5, 0.5]
    with pytest.raises(NotImplementedError, match="planted"):
        remote.state_dict()


def raised(remote: Remote, loss: float) -> PeerRaisedError:
    remote.start()
    with pytest.raises(PeerRaisedError) as caught:
        remote.scale_loss(loss)
    assert remote.get_scale() == 2.0, "the peer lives on"
    return caught.value


def test_an_exception_comes_through(remote: Remote) -> None:
    assert (raised(remote, 5.0).kind, raised(remote, 5.0).text) == ("FloatingPointError", "no way down")
    assert str(raised(remote, 4.0)) == "planted raised SystemExit: leaving"
    assert raised(remote, 6.0).text == "Object of type set is not JSON serializable"
    assert raised(remote, 8.0).kind == "AttributeError"


ENDS = {2.0: "SIGSEGV", 3.0: "exit status 7", 7.0: "nonsense", 1.0: "within 0.1 s"}


def test_a_lost_peer_says_how(remote: Remote) -> None:
    for loss, how in ENDS.items():
        remote.start()
        remote.get_scale()
        remote.limit = 0.1 if loss == 1.0 else 60.0
        with pytest.raises(PeerLostError, match=f"(?s){how}.*printed last:\n  a line on stdout\n  last words"):
            remote.scale_loss(loss)
        with pytest.raises(PeerLostError, match="no process to ask for get_scale"):
            remote.get_scale()
    child = Path(remote._python + ".child")
    assert has_ended(int(child.read_text())), "what it had started"
    remote.start(factor=3.0)
    assert remote.get_scale() == 3.0


def has_ended(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return bool(select.select([os.pidfd_open(process)], [], [], 20)[0])
    return True


def test_children_end_with_the_peer(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text(PLANTED)
    path.chmod(0o755)
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()  # which is at its end when each process that may write to it has ended
    with os.fdopen(reader, "rb"), ours:
        command = [str(path), "-m", "ampsim.peers.serve", "planted", str(theirs.fileno())]
        peer = subprocess.Popen(command, pass_fds=(theirs.fileno(), writer), start_new_session=True)  # noqa: S603
        theirs.close()
        os.close(writer)
        with ours.makefile("rw") as channel:
            for request in ({"call": "start"}, {"call": "scale_loss", "args": [0.5]}):
                print(json.dumps(request), file=channel, flush=True)
                assert "value" in channel.readline()
        ours.shutdown(socket.SHUT_RDWR)
        peer.wait()
        assert select.select([reader], [], [], 20)[0]


FORMS = [
    '{"value": "x"}', '{"value": null}', '{"raised": ["a"]}', '{"value": ' + "[" * 99999, "\udcff",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_a_wrong_answer_loses_the_peer(remote: Remote, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORMS", json.dumps([form.encode(errors="ignore").decode() for form in FORMS]))
    remote.start()
    with pytest.raises(PeerLostError, match="planted answered scale_loss by b") as caught:
        remote.scale_loss(10.0 + number)
    assert len(str(caught.value)) < 300


def test_a_flood_is_cut_off(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST", 1 << 20)
    remote.start()
    with pytest.raises(PeerLostError, match="1,048,576 bytes"):
        remote.scale_loss(9.0)


@pytest.mark.skipif(os.name != "posix", reason="needs an interval timer")
def test_an_interrupted_call_loses_the_peer(remote: Remote) -> None:
    class OverdueError(Exception):
        pass

    def interrupt(*_: object) -> NoReturn:
        raise OverdueError

    remote.start()
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.5)
    try:
        with pytest.raises(OverdueError):
            remote.scale_loss(1.0)  # it answers late
        with pytest.raises(PeerLostError):
            remote.get_scale()  # and not with that answer
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
