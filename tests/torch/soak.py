"""Real threads, signals, forks, and closes, against a small sequential model.

Run ``python -m tests.torch.soak SECONDS [SEED]``. `scales_after` is the model: the scale after each
update. Each ticket must have the model's scale, and each optimizer must see the true gradients in
order. The interpreter switches threads every microsecond. A scenario that hangs ends the process
with the stack of each thread.
"""

import argparse
import collections
import faulthandler
import os
import queue
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from functools import partial

import torch

from ampsim.torch.async_scaler import AsyncGradScaler
from ampsim.torch.async_state import ClosedError, Stage
from ampsim.torch.optimizer_thread import OptimizerThread

LIMIT = 60.0  # seconds, after which a scenario hangs


def scales_after(flags):
    """Return the scale before and after each update: 1024, times 2 after two finite steps."""
    scale, finite_steps, scales = 1024.0, 0, [1024.0]
    for overflows in flags:
        finite_steps = 0 if overflows else finite_steps + 1
        if overflows:
            scale *= 0.5
        elif finite_steps == 2:
            scale, finite_steps = scale * 2.0, 0
        scales.append(scale)
    return scales


def make(depth, thread=None):
    return AsyncGradScaler(
        "cpu", 1024.0, growth_interval=2, depth=depth, executor=thread
    )


class Recorder(torch.optim.Optimizer):
    """Records the gradients that it sees; raises once on request."""

    def __init__(self):
        self.param = torch.nn.Parameter(torch.ones(3))
        super().__init__([self.param], {})
        self.seen, self.raises = [], False

    def step(self, closure=None):
        if self.raises:
            self.raises = False
            raise ValueError("on request")
        self.seen.append(self.param.grad[0].item())


class Stepper(threading.Thread):
    """Steps an optimizer with the gradients that are handed over; repeats a step that raised."""

    def __init__(self, scaler):
        super().__init__(daemon=True)
        self.scaler, self.optimizer = scaler, Recorder()
        self.work, self.results = queue.SimpleQueue(), queue.SimpleQueue()
        self.start()

    def run(self):
        while (item := self.work.get()) is not None:
            try:
                self.results.put(self.step(*item))
            except BaseException as error:
                self.results.put(error)

    def step(self, index, ticket, grad, raises):
        self.optimizer.param.grad, self.optimizer.raises = grad, raises
        if index % 3 == 0:
            self.scaler.unscale_(self.optimizer, ticket=ticket)
        try:
            self.scaler.step(self.optimizer, ticket=ticket)
        except ValueError:
            self.scaler.step(self.optimizer, ticket=ticket)

    def wait(self):
        """Wait for the next step; raise its error."""
        error = self.results.get()
        if error is not None:
            raise error


def check(actual, expected, what):
    if actual != expected:
        raise AssertionError(f"{what}: {actual}, expected {expected}")


class Soak:
    """The scenarios, each with random parameters, and what they counted."""

    def __init__(self, seed):
        self.random = random.Random(seed)  # noqa: S311
        self.counts = collections.Counter()
        self.armed = False
        signal.signal(signal.SIGALRM, self.strike)

    def plan(self, length):
        return [self.random.random() < 0.3 for _ in range(length)]

    def gradient(self, index, scale, overflows):
        grad = torch.full((3,), (index + 1.0) * scale)
        if overflows:
            grad[self.random.randrange(3)] = self.random.choice(
                [float("inf"), float("nan")]
            )
        return grad

    # ------------------------------------------------------------------ tickets and threads

    def several_optimizers(self):
        """Each optimizer steps on its own thread, this one updates; some steps raise once."""
        depth, length = self.random.randrange(4), self.random.randint(4, 12)
        scaler = make(depth)
        steppers = [Stepper(scaler) for _ in range(self.random.randint(1, 3))]
        plan = [self.plan(len(steppers)) for _ in range(length)]
        scales, live = scales_after(map(any, plan)), []

        def update():
            for stepper in steppers:
                stepper.wait()
            scaler.update(ticket=live.pop(0))

        for i in range(length):
            if len(live) > depth:
                update()
            live.append(scaler.begin_iteration(timeout=20))
            scale = live[-1].value.scale
            check(scale, scales[max(0, i - depth)], f"scale of iteration {i}")
            for stepper, overflows in zip(steppers, plan[i], strict=True):
                grad = self.gradient(i, scale, overflows)
                stepper.work.put((i, live[-1], grad, not overflows and i % 4 == 1))
        while live:
            update()
        for number, stepper in enumerate(steppers):
            stepper.work.put(None)
            finite = [i + 1.0 for i in range(length) if not plan[i][number]]
            check(stepper.optimizer.seen, finite, f"gradients of optimizer {number}")
        check(scaler.get_scale(), scales[-1], "the last scale")

    def drop_in_loop(self):
        """RoundPipe's loop; some updates are waited for."""
        depth, length = self.random.randrange(4), self.random.randint(4, 12)
        thread = OptimizerThread("cpu")
        scaler, optimizer = make(depth, thread), Recorder()
        plan, waits = self.plan(length), self.plan(length)
        scales, floor = scales_after(plan), 0
        for i in range(length):
            floor = max(floor, i - depth)
            scale = scaler.scale(torch.tensor(1.0)).item()
            check(scale, scales[floor], f"scale of iteration {i}")
            grad = self.gradient(i, scale, plan[i])
            thread.launch(setattr, optimizer.param, "grad", grad)
            if i % 2:
                thread.launch(scaler.step, optimizer)
            else:
                scaler.step(optimizer)
            scaler.update(is_async=not waits[i])
            floor = i + 1 if waits[i] else floor
        check(scaler.get_scale(up_to_date=True), scales[-1], "the last scale")
        check(
            optimizer.seen, [i + 1.0 for i in range(length) if not plan[i]], "gradients"
        )
        thread.close()

    # --------------------------------------------------------------------------- interrupts

    def strike(self, *_):
        if self.armed:
            self.armed = False
            self.counts["signals"] += 1
            raise KeyboardInterrupt

    def arm(self):
        self.armed = True
        delay = self.random.choice([5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 2e-3])
        signal.setitimer(signal.ITIMER_REAL, delay)

    def disarm(self):
        self.armed = False  # first: a signal may be on its way
        signal.setitimer(signal.ITIMER_REAL, 0)

    def interrupts(self):
        """Ctrl-C at any point; the loop looks how far its iteration came, and repeats the rest."""
        depth, length = self.random.randrange(4), 10
        thread = OptimizerThread(device="cpu") if self.random.random() < 0.5 else None
        scaler, optimizer, plan = make(depth, thread), Recorder(), self.plan(length)
        scales = scales_after(plan)
        for i in range(length):
            is_done = False
            while not is_done:
                try:
                    self.arm()
                    self.iterate(scaler, optimizer, i, plan[i])
                    self.disarm()
                    is_done = True
                except KeyboardInterrupt:
                    scaler.synchronize()
                    is_done = scaler._shared.value.applied > i
        scaler.synchronize()
        check(scaler.get_scale(up_to_date=True), scales[-1], "the last scale")
        # A step that an interrupt kept from being recorded is taken again: nobody knows better.
        seen = [
            x
            for k, x in enumerate(optimizer.seen)
            if k == 0 or optimizer.seen[k - 1] != x
        ]
        self.counts["steps taken again"] += len(optimizer.seen) - len(seen)
        check(seen, [i + 1.0 for i in range(length) if not plan[i]], "gradients")
        if thread:
            thread.close()

    def iterate(self, scaler, optimizer, index, overflows):
        if scaler._shared.value.begun <= index:
            scaler.begin_iteration()
        ticket = scaler._shared.value.iterations[-1].ticket
        scale = scaler.scale(torch.tensor(1.0), ticket=ticket).item()
        record = scaler._shared.value.iteration(ticket, "step").record(optimizer)
        if record.stage is not Stage.STEPPED:
            optimizer.param.grad = self.gradient(index, scale, overflows)
            scaler.step(optimizer, ticket=ticket)
        scaler.update(ticket=ticket)

    # ------------------------------------------------------------------------ fork and close

    def forks(self):
        """Forks while other threads begin, step, and update; each call of a child raises at once."""
        thread = OptimizerThread(device="cpu")
        scaler, optimizer, ended = make(1, thread), Recorder(), threading.Event()
        errors = []

        def loop():
            try:
                while not ended.is_set():
                    scaler.scale(torch.tensor(1.0))
                    optimizer.param.grad = torch.ones(3)
                    scaler.step(optimizer)
                    scaler.update()
            except BaseException as error:
                errors.append(error)

        worker = threading.Thread(target=loop, daemon=True)
        worker.start()
        calls = [
            scaler.begin_iteration,
            scaler.update,
            partial(scaler.step, optimizer),
            partial(thread.launch, print),
        ]
        for _ in range(3):
            time.sleep(self.random.random() * 0.002)
            pid = os.fork()
            if pid == 0:
                os._exit(count_closed(calls))
            check(
                exit_code(pid), len(calls), "calls of the child that raise ClosedError"
            )
            self.counts["children"] += 1
        ended.set()
        worker.join(20)
        check(errors, [], "errors of the parent")
        thread.close()

    def closes(self):
        """`close` of the scaler or of its thread while others begin, step, and update."""
        thread = OptimizerThread("cpu")
        scaler, optimizer, errors = (
            make(self.random.randrange(3), thread),
            Recorder(),
            [],
        )
        optimizer.param.grad = torch.ones(3)
        # Two loops end each other's iterations, and hear of it.
        expected = (
            "is not next",
            "with ticket",
            "already updated",
            "No inf",
            "is on its way",
        )

        def loop(number):
            try:
                while True:
                    ticket = scaler.begin_iteration()
                    if number:
                        scaler.update(2.0, ticket=ticket)
                    else:
                        scaler.step(optimizer, ticket=ticket)
            except ClosedError:
                pass
            except (RuntimeError, AssertionError) as error:
                if not any(text in str(error) for text in expected):
                    errors.append(error)

        threads = [
            threading.Thread(target=loop, args=(n,), daemon=True) for n in range(3)
        ]
        for one in threads:
            one.start()
        time.sleep(self.random.random() * 0.003)
        (scaler if self.random.random() < 0.5 else thread).close()
        for one in threads:
            one.join(20)
        check(
            [one.is_alive() for one in threads], [False] * 3, "threads that still wait"
        )
        check(errors, [], "other errors")
        scaler.state_dict()
        thread.close()


def count_closed(calls):
    """Return how many calls raise ClosedError; a call that does not is not counted."""
    count = 0
    for call in calls:
        try:
            call()
        except ClosedError:
            count += 1
        except BaseException:
            traceback.print_exc()
    return count


def exit_code(pid):
    """Return the exit code of a child; a child that hangs is killed, and its code is negative."""
    watchdog = threading.Timer(LIMIT / 3, os.kill, (pid, signal.SIGKILL))
    watchdog.start()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    watchdog.cancel()
    return code


def main(arguments=None):
    """Run scenarios at random for a time; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    sys.setswitchinterval(1e-6)
    torch.set_num_threads(1)
    soak = Soak(options.seed)
    scenarios = [soak.several_optimizers, soak.drop_in_loop, soak.forks, soak.closes]
    scenarios += [soak.interrupts] * 2
    failures, end = 0, time.monotonic() + options.seconds
    while time.monotonic() < end:
        scenario = soak.random.choice(scenarios)
        soak.counts[scenario.__name__] += 1
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        try:
            scenario()
        except BaseException:
            soak.disarm()
            failures += 1
            print(f"{scenario.__name__} failed:", flush=True)
            traceback.print_exc()
        finally:
            faulthandler.cancel_dump_traceback_later()
    print(f"seed {options.seed}: {dict(soak.counts)}, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
