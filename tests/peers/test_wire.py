"""A peer in its own process: what comes back, and what is said of one that hangs, crashes, prints or talks nonsense."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ampsim.peers import environments, serve, wire
from ampsim.peers.peer import Peer
from ampsim.peers.wire import PeerLostError, PeerRaisedError, Remote, _Process

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


class Elsewhere(Described):
    environment = "elsewhere"


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[Remote]:
    path = tmp_path / "python"
    path.write_text(PLANTED)
    path.chmod(0o755)
    with Remote(Described, python=str(path)) as peer:
        yield peer


def test_floats_cross_with_their_bits_and_what_is_printed_does_no_harm(remote: Remote) -> None:
    remote.start(factor=0.1)
    assert remote.get_scale() == 0.1
    step = remote.step([5e-324, -INF, NAN])
    assert step.unscaled is not None
    assert step.unscaled[:2] == (5e-324, -INF)
    assert step.unscaled[2] != step.unscaled[2]
    assert (step.used, step.stepped, step.scale) == (0.1, None, INF)
    assert remote.step([]).unscaled == ()


def test_each_call_of_a_peer_may_come_and_no_other() -> None:
    assert {*Peer.__abstractmethods__, "version", "history", "state_dict", "load_state_dict"} == serve.CALLS
    said = serve.answer(object(), {"call": "close"})["raised"]
    assert said == ["ValueError", f"'close': expected one of {', '.join(sorted(serve.CALLS))}"]


class Refusing:
    class WrongError(Exception):
        pass

    def get_scale(self) -> float:
        raise self.WrongError("no")


def test_an_exception_is_named_by_its_module_and_its_class() -> None:
    said = serve.answer(Refusing(), {"call": "get_scale"})["raised"]
    assert said == [f"{__name__}.Refusing.WrongError", "no"]


def test_a_history_is_asked_of_a_peer_that_has_not_begun(remote: Remote) -> None:
    assert remote.history({"factor": 0.5}, [[1.0], [NAN]]) == [0.5, 0.5, 0.5]


def test_a_peer_without_a_state_says_so(remote: Remote) -> None:
    remote.start()
    with pytest.raises(NotImplementedError, match="planted saves nothing"):
        remote.state_dict()


def raised(remote: Remote, loss: float) -> PeerRaisedError:
    remote.start()
    with pytest.raises(PeerRaisedError) as caught:
        remote.scale_loss(loss)
    assert remote.get_scale() == 2.0, "the peer lives on"
    return caught.value


def test_an_exception_of_the_peer_comes_through_and_the_peer_lives_on(remote: Remote) -> None:
    assert (raised(remote, 5.0).kind, raised(remote, 5.0).text) == ("FloatingPointError", "no way down")
    assert str(raised(remote, 4.0)) == "planted raised SystemExit: leaving"
    assert raised(remote, 6.0).text == "Object of type set is not JSON serializable"
    assert raised(remote, 8.0).kind == "AttributeError"


ENDS = {
    2.0: "planted ended by SIGSEGV in scale_loss; it printed last:\n  a line on stdout\n  last words",
    3.0: "planted ended with exit status 7 in scale_loss; it printed last:\n  a line on stdout\n  last words",
    7.0: "planted answered scale_loss by b'nonsense'; expected a JSON object with value or raised; it printed last:",
    1.0: "planted did not answer scale_loss within 0.1 s; it printed last:\n  a line on stdout\n  last words",
}


def test_a_peer_that_is_lost_says_how_and_start_begins_anew(remote: Remote) -> None:
    for loss, message in ENDS.items():
        remote.start()
        remote.get_scale()
        assert remote._process is not None
        folder = Path(remote._process.folder.name)
        remote.limit = 0.1 if loss == 1.0 else 60.0
        with pytest.raises(PeerLostError) as caught:
            remote.scale_loss(loss)
        assert str(caught.value).startswith(message)
        assert not folder.exists()
        with pytest.raises(
            PeerLostError, match=r"^planted: no process to ask for get_scale; expected start\(\) before$"
        ):
            remote.get_scale()
    assert has_ended(int(Path(f"{remote._python}.child").read_text())), "what it had started"
    remote.start(factor=3.0)
    assert remote.get_scale() == 3.0
    remote.limit = 0.0  # which is of calls: a start has the first one's
    remote.start(factor=4.0)
    with pytest.raises(PeerLostError, match=r"^planted did not answer scale_loss within 0 s"):
        remote.scale_loss(1.0)


def has_ended(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return bool(select.select([os.pidfd_open(process)], [], [], 20)[0])
    return True


def test_an_interrupt_ends_the_process(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    remote._process = object.__new__(_Process)
    ended: list[str] = []
    monkeypatch.setattr(_Process, "ask", interrupted)
    monkeypatch.setattr(_Process, "end", lambda _: ended.append("ended"))
    with pytest.raises(KeyboardInterrupt):
        remote.get_scale()
    assert (ended, remote._process) == (["ended"], None)


def test_what_a_peer_has_started_ends_with_it_when_nobody_asks_any_more(tmp_path: Path) -> None:
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
    '{"value": "x"}', '{"value": null}', '{"value": {}}', '{"value": ' + "1" * 400 + "}", "[]", "3", "{}", '"value"',
    '{"raised": 1}', '{"raised": ["a"]}', '{"value": ' + "[" * 99999, "\udcff",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_an_answer_of_a_wrong_form_is_a_lost_peer(remote: Remote, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORMS", json.dumps([form.encode(errors="ignore").decode() for form in FORMS]))
    remote.start()
    with pytest.raises(PeerLostError, match="planted answered scale_loss by b") as caught:
        remote.scale_loss(10.0 + number)
    assert len(str(caught.value)) < 300


def test_a_peer_that_floods_is_lost_in_time_and_within_bounds(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST", 1 << 40)  # of which a tenth of a second brings none
    remote.start()
    remote.limit = 0.1
    with pytest.raises(PeerLostError, match=r"did not answer scale_loss within 0.1 s"):
        remote.scale_loss(9.0)
    monkeypatch.setattr(wire, "LONGEST", 1 << 20)
    remote.start()
    remote.limit = 60.0
    with pytest.raises(PeerLostError, match="answered scale_loss by more than 1,048,576 bytes without a line feed"):
        remote.scale_loss(9.0)


def test_an_environments_variables_go_before_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "python"
    path.write_text(
        "#!/bin/sh\necho level $LEVEL, $OMP_NUM_THREADS threads, $PYTHONNOUSERSITE >&2\n"
        "cd $PYTHONPATH/ampsim\nls -d core peers\n"
    )
    path.chmod(0o755)
    monkeypatch.setattr(environments, "variables", lambda _: {"LEVEL": "2"})
    monkeypatch.setenv("LEVEL", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for kind, there in ((Described, "core\n  peers"), (Elsewhere, ".*\n  peers")):
        with (
            Remote(kind, python=str(path)) as peer,
            pytest.raises(PeerLostError, match=f"level 2, 3 threads, 1\n  {there}$"),
        ):
            peer.start()


def test_of_what_a_lost_peer_printed_the_last_lines_are_told(tmp_path: Path) -> None:
    process = object.__new__(_Process)
    process.name, process.printed = "planted", tmp_path / "printed"
    process.printed.write_text("\n".join(map(str, range(9))))
    assert str(process._lost("hung")) == "planted hung; it printed last:" + "".join(f"\n  {n}" for n in range(4, 9))
    process.printed.write_bytes(b"\xff is no letter")
    assert str(process._lost("hung")) == "planted hung; it printed last:\n  \ufffd is no letter"
    process.printed.write_text("")
    assert str(process._lost("hung")) == "planted hung, and printed nothing"


def test_the_first_line_is_the_answer_and_status_0_an_end() -> None:
    process = object.__new__(_Process)
    process.socket, theirs = socket.socketpair()
    with theirs, process.socket:
        theirs.sendall(b"first\nsecond\n")
        assert process._line("step", 1.0) == b"first"
    process.process = SimpleNamespace(wait=lambda timeout: 0)  # type: ignore[assignment]
    assert process._ending() == "ended with exit status 0"
