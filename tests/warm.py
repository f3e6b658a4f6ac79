"""A Python that has torch already: what a test starts in a process of its own need not import it for three seconds.

`python()` is a command that takes what an interpreter takes, of options ``-c``, ``-m``, ``-u`` and ``-W``. It asks a
server, which `share` gives to all processes of the tests, else one of its own, which has imported torch and forks; the
fork has the open files, the folder and the environment of who asked, runs, and ends as an interpreter does, but that
the modules of a program which ends well are torn down in the environment `WHOLE_END` alone: that takes five times as
long as all else. What Python itself reads of the environment when it starts, but for PYTHONIOENCODING, and what a test
of imports asks, are those of the server: such a test takes `sys.executable`.

Run as a program it is the server or, with ``-IS``, in a hundredth of a second, who asks.
"""

import os
import sys

WHOLE_END = {"WARM_WHOLE_END": "1"}
SHARED = "WARM_PYTHON"
ABOVE = 500  # the numbers of open files: those of who asks are below, and as few


def python():
    """Return the command, whose server starts with the first call; without pidfds it is the interpreter itself."""
    return os.environ.get(SHARED) or (_started() if hasattr(os, "pidfd_open") else sys.executable)


def share():
    """Start the server for the processes that this one starts, too."""
    os.environ[SHARED] = python()


def _started(started=[]):  # noqa: B006 - one server
    if not started:
        import atexit
        import subprocess
        import tempfile

        folder = tempfile.mkdtemp()  # the server removes it
        words, environment = [sys.executable, __file__, folder], {**os.environ, "PYTHONPATH": ""}
        server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603
        server.stdout.read()  # to the end: it listens
        atexit.register(server.communicate)
        with open(f"{folder}/python", "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as command:
            command.write(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" "{folder}" "$@"\n')
        started.append(command.name)
    return started[0]


def ask(folder, arguments):
    """Have the server run what this process was started for, and end as that does."""
    import json
    import socket

    files = [number for number in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{number}")]
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(f"{folder}/socket")
        socket.send_fds(server, [b"-"], files)
        server.sendall(json.dumps([files, arguments, os.getcwd(), dict(os.environ)]).encode() + b"\n")
        code = int(server.makefile().read() or 1)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def serve(folder):
    """Fork for each who asks, until the tests end; return, in a fork, what it is to run."""
    import gc
    import select
    import shutil
    import socket

    sys.modules["triton"] = None  # its nanobind would call leaked, at a fork's end, what is not looked through then
    import hypothesis
    import torch._dynamo
    import typer

    assert hypothesis
    assert torch
    assert typer
    del sys.modules["triton"]
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{folder}/socket")
    listening.listen()
    os.dup2(2, 1)  # which ends what the tests read
    waiting = set()
    while listening in select.select([listening, 0], [], [])[0]:
        connection, _ = listening.accept()
        if not (fork := os.fork()):
            listening.close()
            return handle(connection)
        connection.close()
        waiting = {one for one in waiting | {fork} if os.waitpid(one, os.WNOHANG) == (0, 0)}
    for one in waiting:
        os.waitpid(one, 0)
    shutil.rmtree(folder)
    os._exit(0)


def handle(connection):
    """Fork, and tell who asked how the fork ended; it is killed if who asked is gone. Return, in the fork, its job."""
    import fcntl
    import json
    import select
    import signal
    import socket

    _, received, *_ = socket.recv_fds(connection, 1, ABOVE)
    with connection.makefile() as request:
        files, *job = json.loads(request.readline())
    if not (fork := os.fork()):
        connection.close()
        os.setsid()  # one may end its whole group
        moved = [fcntl.fcntl(each, fcntl.F_DUPFD, ABOVE) for each in received]
        os.closerange(0, ABOVE)
        for number, each in zip(files, moved):  # noqa: B905 - as many
            os.dup2(each, number)
        os.closerange(ABOVE, 2 * ABOVE)
        return job
    for each in (0, 1, 2, *received):
        os.close(each)
    ended = os.pidfd_open(fork)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(fork, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    connection.sendall(str(code).encode())
    os._exit(0)


def become(folder, arguments, here, environment):
    """Run what an interpreter with these arguments would run."""
    import runpy
    import types
    import warnings
    from pathlib import Path

    os.chdir(here)
    os.environ.clear()
    os.environ.update(environment)
    vars(sys.modules["hypothesis.configuration"])["__hypothesis_home_directory_default"] = Path(here, ".hypothesis")
    sys.executable = f"{folder}/python"
    if encoding := environment.get("PYTHONIOENCODING"):
        sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # noqa: SIM115
    while arguments[0] in ("-u", "-W"):
        if arguments.pop(0) == "-W":
            warnings.simplefilter(arguments.pop(0))
    what, *rest = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [here if what == "-m" else os.path.dirname(what), *filter(None, paths)]
    if what == "-m":
        sys.argv = rest
        runpy._run_module_as_main(rest[0])
    else:
        sys.argv = ["-c", *rest[1:]] if what == "-c" else arguments
        text, main.__file__ = (rest[0], "<string>") if what == "-c" else (Path(what).read_text(), what)
        exec(compile(text, main.__file__, "exec"), vars(main))  # noqa: S102


def end(code):
    """End with this status, after the threads, the exit functions and the output, as an interpreter does."""
    import atexit
    import threading

    if not isinstance(code, int | None):
        sys.exit(code)
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # which says so
    os._exit(code or 0)


if __name__ == "__main__":
    if sys.argv[2:]:
        ask(sys.argv[1], sys.argv[2:])
    try:
        code = become(sys.argv[1], *serve(sys.argv[1]))
    except SystemExit as ended:
        code = ended.code
    if WHOLE_END.items() <= os.environ.items():
        sys.exit(code)
    end(code)
