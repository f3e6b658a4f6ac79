"""``python -m ampsim.peers.serve NAME FD``: one peer, in the environment that has its package, as JSON lines.

A request is ``{"call": "step", "args": [[1.0, Infinity]]}``, or with ``"kwargs"``; the answer ``{"value": ...}`` or
``{"raised": ["FloatingPointError", "message"]}``. Floats are written by repr, which JSON's reader turns back into the
same bits, and Infinity, -Infinity and NaN by name. Lines come and go by the descriptor FD, a socket: what the
package prints goes elsewhere. This file and `ampsim.peers.peer` are all that a peer's environment needs.
"""

import dataclasses
import json
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from ampsim.peers import load

CALLS = frozenset({"version", "start", "get_scale", "scale_loss", "step", "state_dict", "load_state_dict", "history"})


def answer(peer: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return what one call of the peer gave, or the exception that it raised."""
    try:
        if request["call"] not in CALLS:
            raise ValueError(f"{request['call']!r}: expected one of {', '.join(sorted(CALLS))}")
        value = getattr(peer, request["call"])(*request.get("args", []), **request.get("kwargs", {}))
        value = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
        return json.loads(json.dumps({"value": value}))  # type: ignore[no-any-return]  # or it is no JSON
    except (Exception, SystemExit) as error:
        kind = type(error)
        where = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        return {"raised": [f"{where}{kind.__qualname__}", str(error)]}


def serve(name: str, channel: socket.socket) -> None:
    """Answer one line with one line until the other end closes, which ends this process whatever it is doing."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, lines.put), daemon=True).start()
    peer = load(name)()
    while True:
        channel.sendall(json.dumps(answer(peer, json.loads(lines.get()))).encode() + b"\n")


def _read(channel: socket.socket, put: Callable[[str], None]) -> None:
    """Hand on each line; at the end kill this process and what it started, such as a compiler."""
    for line in channel.makefile("r", encoding="utf-8"):
        put(line)
    os.killpg(0, signal.SIGKILL)  # it leads a session of its own


def main() -> None:
    """Serve the peer that the command line names; end with the process that asks."""
    name, number = sys.argv[1:]
    os.set_inheritable(int(number), False)  # noqa: FBT003  it has no keyword; what the package starts must not hold the line
    serve(name, socket.socket(fileno=int(number)))


if __name__ == "__main__":
    main()
