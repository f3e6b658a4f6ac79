"""What one rank or engine of a console log says, and the steps that its lines are of."""

import math

from ampsim.diagnose.formats import NAMED, PROGRAMS, pattern
from ampsim.diagnose.history import HistoryBuilder
from ampsim.diagnose.readers.fields import Entry
from ampsim.diagnose.readers.plan import Form

_STEP, _EPOCH, _PAIR, _BATCH = map(pattern, ("step", "epoch", "pair", "batch"))
UNKNOWN = "a training log"  # A program that the table does not name
MOST_STEPS = 2**53  # what is numbered beyond it is no step


class Stream:
    """One rank or engine of a log, and what it says."""

    def __init__(self, source: str) -> None:
        self.builder = HistoryBuilder(source, UNKNOWN)
        self.row: dict[str, object] = {"name": ""}  # of the table of programs
        self.step = -1.0
        self.bar = (-1, 0)  # where the longest progress bar stands, and its end
        self.pair = (
            -1,
            0,
            0,
        )  # the last epoch that is given with a batch, the steps before it, its batches
        self.epoch = (
            -1.0,
            0.0,
        )  # the last epoch, and the steps before it where they are counted anew
        self.totals = False  # whether its counts have shown that they are of the whole run
        self.told: tuple[str, float] | None = None  # the last sentence that each rank prints
        self.same = False  # whether the last one was the one before once more
        self.line = (-1, "")  # its whole line, and how many rows there were then
        self.rank: str | None = None
        self.numbers: set[str] = set()  # what its steps are numbered by: a bar may be of anything
        self.engines: list[float] = []  # of DeepSpeed's counts: the last step of each

    def numbered(self, by: str, step: float) -> float:
        """Return a step, by whatever it is numbered."""
        if by not in self.numbers:
            self.numbers.add(by)
            self.builder.settings |= {"composed": True} if self.numbers != {"name"} else {}
        return step

    def kind(self, entry: Entry) -> None:
        """Keep what kind of scale it has."""
        kinds = (
            (self.row["scale"],) if "scale" in self.row else entry
        )  # what a program prints is known
        for kind in ("means", "bare"):
            if kind in kinds:
                self.builder.settings[kind] = True

    def recognise(self, text: str) -> None:
        """Take it that the lines are of the program which alone prints what one of them has."""
        if not self.row["name"] and (
            mine := next((each for each in PROGRAMS if each["mark"].search(text)), None)
        ):
            self.known(mine["name"])
        elif "'learning_rate': " in text and "'epoch': " in text:
            self.builder.settings["trainer"] = True

    def known(self, program: str) -> None:
        """Take it that these are a program's lines; the Trainer's may stand beside DeepSpeed's."""
        if self.builder.program == "HF Trainer":
            self.builder.settings["trainer"] = True
        self.builder.program = program
        self.row = NAMED.get(program, self.row)

    def step_of(self, entry: Entry, done: int | None, text: str, form: Form) -> float:
        """Return the step of a line: its number, that of the bar in its line or of the last one; NaN without."""
        epochs, step = form.epochs, entry.pop("step", None)
        step = step if step is None or step.is_integer() else None
        named = step is not None
        if step is not None and 0 <= step < MOST_STEPS and not (epochs or self.epoch[1]):
            return self.numbered("name", step)
        if step is None and done is None and form.step and (found := _STEP.search(text)):
            step, named = float(found[1]), True
        if step is None and form.pair and (found := _PAIR.search(text)):
            self.builder.settings["composed"] = True
            return self.step_in(*map(int, found.groups()))
        if (
            step is None
            and epochs
            and form.batch
            and (found := _BATCH.search(text))
            and (epoch := _EPOCH.search(text))
        ):
            self.builder.settings["composed"] = True
            return self.step_in(int(epoch[1][:9]), int(found[1]), int(found[2]))
        if step is None and epochs:
            step = done
        if (
            step is None and max(self.step, 0) < self.bar[0] < self.bar[1]
        ):  # one at its end may be any loop's
            step = self.bar[0]
        epoch_now = self.epoch_of(entry, text) if epochs else self.epoch[0]
        if step is None or not 0 <= step < MOST_STEPS:
            if epoch_now < self.epoch[0]:
                self.builder.begin()
            self.epoch = epoch_now, self.epoch[1]
            return math.nan
        if epoch_now > self.epoch[0]:
            restarted = step + self.epoch[1] <= self.step
            self.epoch = epoch_now, self.step + 1 - step if restarted else self.epoch[1]
            self.builder.settings |= {"composed": True} if restarted else {}
        return self.numbered("name" if named else "bar", step + self.epoch[1])

    def step_in(self, epoch: int, batch: int, batches: int) -> float:
        """Return the step of a batch; an epoch begins where the last one ended, which may have had more or fewer."""
        last, before, many = self.pair
        if epoch != last:
            before = before + many if epoch == last + 1 and many else epoch * batches
        self.pair = epoch, before, batches
        return float(before + batch)

    def epoch_of(self, entry: Entry, text: str) -> float:
        """Return the epoch of a line, which may be the last one's."""
        epoch = entry.get("epoch", -1.0)
        if 0 <= epoch < MOST_STEPS:
            return epoch // 1
        found = _EPOCH.search(text)
        return int(found[1][:9]) if found else self.epoch[0]
