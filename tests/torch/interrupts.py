"""Ctrl-C at each place where CPython looks at signals, and at random moments.

A program, run by test_interrupts.py, because what goes wrong is a hang: ``interrupts.py COUNT SEED``;
``deep`` at the end tells places apart by the whole stack. After each interrupt the loop must go on.
Prints how often it struck; what is wrong ends in a traceback.
"""

import ctypes
import dis
import faulthandler
import itertools
import pickle
import random
import signal
import sys
from contextlib import suppress

import torch

import ampsim
from ampsim.torch import GradScaler, OptimizerThread

WEIGHTS = torch.tensor([1.0, 2.0])
STEPPED = [-1.0, -2.0]

# As trace functions they run no Python code: the next place which looks is in the traced code.
interrupt, nothing = ctypes.pythonapi.PyErr_SetInterrupt, ctypes.pythonapi.Py_IsInitialized
for function in (interrupt, nothing):
    function.argtypes, function.restype = [ctypes.py_object] * 3, None

# Ours by the whole path: a checkout may be called ampsim, too, and have torch in its `.venv`.
STANDARD = ("/threading.py", "/concurrent/futures/", "/contextlib.py", "/queue.py")
TRACED = (f"{ampsim.__path__[0]}/", *STANDARD)
# Behind these it looks, or does in the caller.
LOOKS = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RETURN")


class Everywhere:
    """Strikes a call where it has not struck yet.

    A place is a stack; if not `deep`, the last two frames of it.
    """

    def __init__(self, deep):
        self.deep, self.met, self.before, self.struck = deep, set(), {}, False

    def run(self, call):
        """Make the call, which may end in KeyboardInterrupt; tell whether it was struck."""
        self.aimed = self.struck = False
        signal.signal(signal.SIGINT, self.strike)
        with suppress(KeyboardInterrupt):
            sys.settrace(self.trace)
            call()
            sys.settrace(None)  # it looks here too
        return self.struck

    def strike(self, *_):
        if not self.struck:
            self.struck = True
            sys.settrace(None)
            raise KeyboardInterrupt

    def trace(self, frame, event, _):
        code = frame.f_code
        if event == "call":
            if not self.befores(code):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode" and frame.f_lasti in self.before[code]:
            frames = stack(frame) if self.deep else (frame, frame.f_back)
            place = tuple([(id(f.f_code), f.f_lasti) for f in frames])
            if place not in self.met:
                self.met.add(place)
                self.aimed = True
                sys.settrace(nothing)
                for caller in stack(frame.f_back):
                    caller.f_trace = nothing
                # From now on this frame's trace function: at the next instruction, one of LOOKS.
                return interrupt
        return self.trace

    def befores(self, code):
        """Return the offsets of the instructions before those that look, of code that is traced."""
        if code not in self.before:
            traced = any(part in code.co_filename for part in TRACED)
            listed = list(dis.get_instructions(code)) if traced else []
            pairs = itertools.pairwise(listed)
            self.before[code] = {
                one.offset for one, after in pairs if after.opname.startswith(LOOKS)
            }
        return self.before[code]


def stack(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back


LOOPS = (("local", 0), ("drop in", 1))


class Loop:
    """A loop that goes on after an interrupt, as in a notebook: it begins another iteration."""

    def __init__(self, kind, depth):
        self.thread = None if kind == "local" else OptimizerThread()
        launch = None if self.thread is None else self.thread.launch
        numbers = {"init_scale": 4.0, "growth_interval": 1, "max_scale": 2.0**60}
        self.scaler = GradScaler("cpu", **numbers, depth=depth, launch=launch)
        self.param = torch.zeros(2)

    def iterate(self):
        self.param = param = torch.nn.Parameter(torch.zeros(2))
        self.scaler.scale((param * WEIGHTS).sum()).backward()
        optimizer = torch.optim.SGD([param], lr=1.0)
        self.scaler.unscale_(optimizer)
        self.scaler.step(optimizer)
        self.scaler.update()

    def all_calls(self):
        """Make every call of the library that waits, locks or changes more than one thing."""
        self.iterate()
        self.iterate()
        self.scaler.synchronize()
        self.scaler.load_state_dict(self.scaler.state_dict())
        self.iterate()
        self.scaler.set_growth_factor(2.0)
        if self.thread is not None:
            self.thread.launch(list).result()
            self.thread.synchronize()

    def recover(self):
        """End whatever was going on."""
        torch.set_grad_enabled(True)  # an interrupt in the end of torch's own no_grad leaves it off
        if self.thread is not None:
            with suppress(RuntimeError):  # of work that the interrupt left without its half
                self.thread.synchronize()
        assert self.param.tolist() in ([0.0, 0.0], STEPPED)
        with suppress(AssertionError):  # before the first scale
            self.scaler.update(4.0, is_async=False)

    def goes_on(self):
        """Iterate as if nothing had been, and find nothing half done."""
        self.recover()
        for _ in range(3):
            self.iterate()
            self.scaler.synchronize()
            assert self.param.tolist() == STEPPED, self.param
        assert self.scaler.get_scale(up_to_date=True) >= 8.0  # each of the three grew it
        # Raises if a ticket or a record was left behind.
        copy = pickle.loads(pickle.dumps(self.scaler))  # noqa: S301
        assert copy.state_dict() == self.scaler.state_dict()
        self.close()

    def close(self):
        self.scaler.close()
        if self.thread is not None:
            self.thread.close()


def every(deep):
    """Strike everywhere, in `all_calls` and then in `close`; return how often."""
    everywhere, strikes = Everywhere(deep), 0
    for kind, depth in LOOPS:
        while everywhere.run((loop := Loop(kind, depth)).all_calls):
            strikes += 1
            loop.goes_on()
        loop.goes_on()
        (loop := Loop(kind, depth)).iterate()
        while everywhere.run(loop.close):
            strikes += 1
            loop.close()
            (loop := Loop(kind, depth)).iterate()
    return strikes


def moments(count, seed):
    """Strike `count` times at random, by the system's timer with the handler of Ctrl-C."""
    generator = random.Random(seed)  # noqa: S311

    def strike(*_):
        struck.append(True)
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, strike)
    for _ in range(count):
        loop = Loop(*generator.choice(LOOPS))
        with suppress(KeyboardInterrupt):
            while True:  # again: what is raised in a callback of the garbage collector is lost
                struck = []
                # It repeats, to end a wait behind a lost interrupt: so late that even a busy
                # machine has disarmed it by then.
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, 5e-3), 10.0)
                while not struck:
                    loop.all_calls()
        signal.setitimer(signal.ITIMER_REAL, 0)
        loop.goes_on()
    return count


if __name__ == "__main__":
    count, seed, *deep = sys.argv[1:]
    faulthandler.dump_traceback_later(3000 if deep else 600, exit=True)
    torch.set_num_threads(1)
    Loop("local", 0).iterate()
    print(every(bool(deep)) + moments(int(count), int(seed)))
