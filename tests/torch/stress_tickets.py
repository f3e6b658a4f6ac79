"""Free-running threads on the ticket register, for an interpreter without the GIL; see test_free_threading.py.

Run as a program: loads `ampsim.torch.threads.register` without the package around it, which would import torch.
A client begins tickets and hands them over; an executor applies them in order; readers look at any moment. Prints how
many updates were made; exits with 1 and says what is wrong at the first violation.
"""

import importlib.util
import queue
import sys
import threading
import types
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load() -> types.ModuleType:
    """The register and what it stands on: neither needs torch, and `pipeline` needs no numpy."""
    sys.path.insert(0, str(ROOT))
    for name in ("ampsim", "ampsim.core", "ampsim.torch"):
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
        sys.modules[name] = package
    spec = importlib.util.find_spec("ampsim.torch.threads.register")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Pipeline:
    """One client, one executor, two readers, and a list of what was wrong."""

    def __init__(self, tickets: types.ModuleType, depth: int, updates: int, wrong: list[str]) -> None:
        self.register, self.depth, self.updates, self.wrong = tickets.Register(0, depth), depth, updates, wrong
        self.handed: queue.SimpleQueue = queue.SimpleQueue()
        self.done = threading.Event()

    def client(self) -> None:
        for i in range(self.updates):
            ticket = self.register.begin()
            if (ticket.index, ticket.version, ticket.value) != (i, max(0, i - self.depth), max(0, i - self.depth)):
                self.wrong.append(f"ticket {i} at depth {self.depth}: {ticket}")
            self.handed.put(ticket)

    def executor(self) -> None:
        for _ in range(self.updates):
            self.register.apply(self.handed.get(), lambda value: value + 1)
        self.done.set()

    def reader(self) -> None:
        last = 0
        while not self.done.is_set():
            newest, outstanding = self.register.newest, self.register.outstanding()
            if newest < last or len(outstanding) > self.depth + 1:
                self.wrong.append(f"depth {self.depth}: newest {newest} after {last}, {len(outstanding)} outstanding")
            last = newest

    def run(self) -> None:
        threads = [threading.Thread(target=work) for work in (self.client, self.executor, self.reader, self.reader)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.register.newest != self.updates:
            self.wrong.append(f"depth {self.depth}: {self.register.newest} of {self.updates} updates")


def racers(tickets: types.ModuleType, rounds: int, wrong: list[str]) -> None:
    """Four threads update the same ticket: one succeeds, the others are refused."""
    register = tickets.Register(0, 0)
    for number in range(rounds):
        ticket, gate, won = register.begin(), threading.Barrier(4), []

        def race(ticket=ticket, gate=gate, won=won) -> None:
            gate.wait()
            try:
                register.apply(ticket, lambda value: value + 1)
            except RuntimeError:
                return
            won.append(1)

        threads = [threading.Thread(target=race) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(won) != 1 or register.newest != number + 1:
            wrong.append(f"round {number}: {len(won)} updates of one ticket, newest {register.newest}")
            return  # the count is off from here on: the next begin() might wait for ever


def main(updates: int) -> int:
    tickets, wrong = load(), []
    for depth in (0, 1, 2, 4):
        Pipeline(tickets, depth, updates, wrong).run()
    racers(tickets, updates // 20, wrong)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"{4 * updates + updates // 20} updates, GIL {'on' if gil else 'off'}, {len(wrong)} wrong")
    print(*wrong[:5], sep="\n", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
