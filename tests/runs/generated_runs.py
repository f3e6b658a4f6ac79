"""Generated runs, with everything that is true of them, and their logs as programs print them."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
from hypothesis import strategies as st

from ampsim import Rule, dialects, init, update

Line = tuple[str, int, int]
"""A line's text, and the steps that it tells of: the first and the last."""

ENDINGS = (
    "healthy",
    "searching",
    "never started",
    "collapsed",
    "loss-not-finite",
    "scale-0",
    "static",
    "thrash",
)
SICK = frozenset(ENDINGS) - {"healthy", "searching"}
RULES: dict[str, Callable[[float, int], Rule]] = {
    "torch": lambda scale, interval: Rule(scale, growth_interval=interval),
    "deepspeed": lambda scale, interval: dialects.get(
        "deepspeed.DynamicLossScaler",
        init_scale=scale,
        growth_interval=interval,
        raise_error_at_min_scale=False,
    ),
    "fused": lambda scale, interval: dialects.get(
        "deepspeed.FP16_Optimizer", init_scale=scale, growth_interval=interval
    ),
    "megatron": lambda scale, interval: dialects.get(
        "megatron.core.DynamicGradScaler", init_scale=scale, growth_interval=interval
    ),
    "apex": lambda scale, interval: dialects.get(
        "apex.amp.LossScaler", init_scale=scale, growth_interval=interval
    ),
}


@dataclass(frozen=True)
class Step:
    """One step of a generated run; its number is its place."""

    scale: float
    after: float
    skipped: bool
    norm: float
    loss: float


@dataclass(frozen=True)
class GeneratedRun:
    """A run and how it ends."""

    ending: str
    steps: tuple[Step, ...]
    begin: int
    """The step at which what is wrong begins."""
    since: int = 0
    """The first step of the process that prints."""

    def skips(self, first: int, last: int) -> int:
        """Return the steps that were skipped from one step to another."""
        return sum(step.skipped for step in self.steps[max(first, 0) : last + 1])


def generated(
    ending: str, dialect: str, count: int, begin: int, seed: int
) -> GeneratedRun:
    """Return a run of so many steps, in which what is wrong begins at a step."""
    random = np.random.default_rng(seed)
    begin = (
        0
        if ending in ("never started", "searching", "static", "thrash", "healthy")
        else min(begin, count // 2)
    )
    interval = (
        int(random.choice([1, 2, 3]))
        if ending == "thrash"
        else int(random.integers(60, 2000))
    )
    level = 2.0 ** int(random.integers(6, 16))
    first = (
        level * 2.0 ** int(random.integers(3, 12)) if ending == "searching" else level
    )
    rule = RULES[dialect](max(first, 1.0), interval)
    state, steps, loss = init(rule), [], 4.0
    static = float(2.0 ** random.integers(4, 16)) if ending == "static" else None
    for number in range(count):
        scale = static or (
            0.0 if ending == "scale-0" and number >= begin else state.scale
        )
        bad = number >= begin and ending in (
            "never started",
            "collapsed",
            "loss-not-finite",
            "scale-0",
            "static",
        )
        over = (
            bad
            or scale > level * (1 if ending == "thrash" else 4)
            or (ending == "healthy" and random.random() < 0.003)
        )
        falls = ending == "scale-0" and number == begin - 1
        over = over or falls
        skipped = over and not (ending == "scale-0" and bad)
        loss -= 0.0 if over else 2.0 / count
        shown = (
            math.nan
            if bad and ending == "loss-not-finite"
            else loss + float(random.normal(0, 0.01))
        )
        norm = math.nan if bad else math.inf if over else float(random.lognormal())
        state = update(rule, state, bool(over))
        after = static or (
            0.0
            if ending == "scale-0" and number >= begin - 1 and begin
            else state.scale
        )
        after = 0.0 if ending == "scale-0" and number >= begin - 1 else after
        steps.append(Step(scale, after, bool(skipped), norm, shown))
    return GeneratedRun(ending, tuple(steps), begin)


def megatron(run: GeneratedRun, every: int) -> Iterator[Line]:
    for end in range(every, len(run.steps) + 1, every):
        part = run.steps[end - every : end]
        taken = [
            step.loss for step in part if not step.skipped and math.isfinite(step.loss)
        ]
        loss = f" lm loss: {sum(taken) / len(taken):.6E} |" if taken else ""
        norm = "" if part[-1].skipped else f" grad norm: {part[-1].norm:.3f} |"
        nans = sum(step.skipped and not math.isfinite(step.loss) for step in part)
        yield (
            f" iteration {end - 1:8d}/{len(run.steps):8d} | consumed samples: {32 * end:12d} | learning rate: 1.000E-02 |"  # noqa: E501
            f"{loss} loss scale: {part[-1].after:.1f} |{norm} number of skipped iterations: "
            f"{sum(step.skipped for step in part):3d} | number of nan iterations: {nans:3d} |"
        ), end - every, end - 1  # fmt: skip


STAMP = "[2026-01-01 10:00:00,000] [INFO]"


def deepspeed(run: GeneratedRun, every: int) -> Iterator[Line]:
    place = f"{STAMP} [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss"
    total = 0
    for number, step in enumerate(run.steps):
        total += step.skipped
        held = "but hysteresis is 2. Reducing hysteresis to 1"
        told = f"reducing to {step.after:g}" if step.after < step.scale else held
        if step.skipped:
            yield f"{place} scale: {step.scale:.17g}, {told}", number, number
        if (number + 1) % every == 0:
            yield (
                f"{STAMP} [logging.py:96:log_dist] [Rank 0] step={number + 1}, skipped={total}, lr=[0.1]",
                0,
                number,
            )


def fused(run: GeneratedRun, every: int) -> Iterator[Line]:
    place, total = f"{STAMP} [fused_optimizer.py:345:_update_scale] ", 0
    for number, step in enumerate(run.steps):
        total += step.skipped
        said, way = [], f"{step.scale:.17g} to {step.after:.17g}"
        if step.skipped:
            told = f"Attempted loss scale: {step.scale:.17g}, reducing to {step.after:.17g}"
            said = [
                place,
                f"Grad overflow on iteration {number}",
                f"{place}Reducing dynamic loss scale from {way}",
            ]
            said.append(
                f"{STAMP} [logging.py:96:log_dist] [Rank 0] Overflow detected. Skipping step. {told}"
            )
        elif step.after > step.scale:
            said = [f"{place}Increasing dynamic loss scale from {way}"]
        yield from ((text, number, number) for text in said)
        if (number + 1) % every == 0:
            yield (
                f"{STAMP} [logging.py:96:log_dist] [Rank 0] step={number + 1}, skipped={total}, lr=[0.1]",
                0,
                number,
            )


def stale(run: GeneratedRun, every: int) -> Iterator[Line]:
    """Megatron's lines where DeepSpeed steps: no skip is counted, and a skipped step prints the
    norm of the last one.
    """
    place = "[2026-01-01] [INFO] [stage_1_and_2.py:1644:step] [deepscale] OVERFLOW! Rank 0 Skipping step."
    norm = 0.0
    for number, step in enumerate(run.steps):
        if step.skipped:
            yield (
                f"{place} Attempted loss scale: {step.scale}, reducing to {step.after}",
                number,
                number,
            )
        norm = norm if step.skipped or not math.isfinite(step.norm) else step.norm
        if (number + 1) % every == 0:
            loss = f" lm loss: {step.loss:.6E} |" if math.isfinite(step.loss) else ""
            text = (
                f" iteration {number:8d}/{len(run.steps):8d} | consumed samples: {32 * number:12d} | learning rate: 1.000E-02 |"  # noqa: E501
                f"{loss} loss scale: {step.after:.1f} | grad norm: {norm:.3f} | number of skipped iterations: "
                "  0 | number of nan iterations:   0 |"
            )
            yield text, number + 1 - every, number


def generic(run: GeneratedRun, every: int) -> Iterator[Line]:
    for number, step in [*enumerate(run.steps)][::every]:
        numbers = f"loss: {step.loss:.4f} | loss_scale: {step.scale:g} | grad_norm: {step.norm:.4f}"
        yield f"step {number} | {numbers} |", number, number


def bare(run: GeneratedRun, every: int) -> Iterator[Line]:
    for number, step in [*enumerate(run.steps)][::every]:
        yield (
            f"step {number}: loss {step.loss:.4f}, scale {step.scale:.17g}",
            number,
            number,
        )


def trainer(run: GeneratedRun, every: int) -> Iterator[Line]:
    updates = 0
    for number, step in enumerate(run.steps):
        updates += not step.skipped
        if (number + 1) % every == 0:
            loss = step.loss if math.isfinite(step.loss) else 0.0
            rate = 1e-4 * min(1.0, updates / 100)
            numbers = {
                "loss": round(loss, 4),
                "grad_norm": step.norm,
                "learning_rate": rate,
                "epoch": number / 1000,
            }
            yield (
                f" 1%|# | {number + 1}/100000 [00:01<00:09, 80.00it/s]{numbers}",
                number,
                number,
            )
        if (number + 1) % (7 * every) == 0:
            yield (
                f"{{'eval_loss': {step.loss}, 'eval_runtime': 2.5, 'epoch': {number / 1000}}}",
                number,
                number,
            )


def notebook(run: GeneratedRun, every: int) -> Iterator[Line]:
    """The Trainer's in a notebook: each loss the mean of the finite ones."""
    yield "Step\tTraining Loss\tValidation Loss", 0, 0
    for end in range(every, len(run.steps) + 1, every):
        losses = [
            step.loss
            for step in run.steps[end - every : end]
            if math.isfinite(step.loss)
        ]
        mean = sum(losses) / len(losses) if losses else 0.0
        yield f"{end}\t{mean:.6f}\t{run.steps[end - 1].loss:.6f}", end - every, end - 1


def outputs(run: GeneratedRun, every: int) -> Iterator[Line]:
    for number, step in [*enumerate(run.steps)][::every]:
        numbers = (
            f"Float32, [ {step.loss:.8e}]",
            f"Bool, {step.skipped}",
            f"Float32, {step.scale:.17g}",
        )
        shown = ", ".join(
            f"Tensor(shape=[{'1' * (not at)}], dtype={each})"
            for at, each in enumerate(numbers)
        )
        yield (
            f"epoch: 0.0, current epoch percent: 0.001, step: {number}, outputs are ({shown})",
            number,
            number,
        )


def mindformers(run: GeneratedRun, every: int) -> Iterator[Line]:
    for number, step in [*enumerate(run.steps)][::every]:
        text = (
            f"2026-01-01 10:00:00 - INFO - {{ Epoch:[  1/  2], step:[{number:5d}/99999], loss: {step.loss:5.3f}, "
            f"per_step_time: 12ms, lr: 1e-05, overflow cond: {step.skipped}, loss_scale: {step.scale:.17g}, "
            f"global_norm: [{step.norm:.4f}], train_throughput_per_npu: 1.0T"
        )
        yield text, number, number


def epochs(run: GeneratedRun, every: int) -> Iterator[Line]:
    for epoch, begin in enumerate(range(0, len(run.steps) - every + 1, every)):
        part = run.steps[begin : begin + every]
        loss, scale = (
            float(np.mean(column))
            for column in ([s.loss for s in part], [s.scale for s in part])
        )
        text = (
            f'{{"train_loss": {loss}, "train_loss_scale": {scale}, "epoch": {epoch}}}'
        )
        yield text.replace("nan", "NaN"), begin, begin + every - 1


def apex(run: GeneratedRun, every: int) -> Iterator[Line]:
    told = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to"
    for number, step in enumerate(run.steps):
        if step.skipped:
            yield f"{told} {step.after}", number, number
        if number % every == 0:
            numbers = f"loss {step.loss:.4f} (3.3)\tgrad_norm {step.norm:.4f} (nan)"
            yield f"INFO Train: [0/300][{number}/50040]\t{numbers}", number, number


def fairseq(run: GeneratedRun, every: int) -> Iterator[Line]:
    """Its newest scale: fairseq logs it with a weight of 0, of which its meter makes no mean."""
    updates, since = 0, 0
    for number, step in enumerate(run.steps):
        if step.skipped:
            told = f"NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: {step.after}"
            yield (
                f"2026-01-01 10:00:00 | INFO | fairseq.trainer | {told}",
                number,
                number,
            )
            continue
        updates += 1
        if updates % every == 0:
            numbers = f"loss={step.loss:.3f}, num_updates={updates}, gnorm={step.norm:.3f}, loss_scale={step.after:.4g}"
            text = f"2026-01-01 10:00:00 | INFO | train_inner | epoch 001: {updates:6d} / 99999 {numbers}"
            yield text, since, number
            since = number + 1


def diffusion(run: GeneratedRun, every: int) -> Iterator[Line]:
    for number, step in enumerate(run.steps):
        if step.skipped and step.after > 0:
            yield (
                f"Found NaN, decreased lg_loss_scale to {math.log2(step.after)}",
                number,
                number,
            )
        if number % every == 0 and step.scale > 0:
            cells = {
                "grad_norm": step.norm,
                "lg_loss_scale": math.log2(step.scale),
                "loss": step.loss,
                "step": number,
            }
            for name, value in cells.items():
                yield f"| {name:13s} | {value:<8.3g} |", number, number
            yield "-" * 30, number, number


def insightface(run: GeneratedRun, every: int) -> Iterator[Line]:
    """The scale without decimals: one below a half is printed as 0."""
    for number, step in [*enumerate(run.steps)][::every]:
        text = (
            f"Training: Speed 931.38 samples/sec   Loss {step.loss:.4f}   LearningRate 0.1   Epoch: 0   "
            f"Global Step: {number}   Fp16 Grad Scale: {step.scale:2.0f}   Required: 9 hours"
        )
        yield text, number, number


def rounded(run: GeneratedRun, every: int) -> Iterator[Line]:
    """The scale with two decimals: one below 0.005 is printed as 0."""
    for number, step in [*enumerate(run.steps)][::every]:
        yield (
            f"iter {number} | loss {step.loss:.4f} | scale {step.scale:.2f} |",
            number,
            number,
        )


def videomae(run: GeneratedRun, every: int) -> Iterator[Line]:
    """DeepSpeed's sentences, and a line every few steps with the median of the last 20 scales."""
    sentences = {
        number: text for text, number, last in deepspeed(run, len(run.steps) + 1)
    }
    for number, step in enumerate(run.steps):
        if number in sentences:
            yield sentences[number], number, number
        if number % every == 0:
            part = sorted(
                each.scale
                for each in run.steps[
                    max(min(run.since, number), number - 19) : number + 1
                ]
            )
            scale = f"{part[(len(part) - 1) // 2]:.4f} ({sum(part) / len(part):.4f})"
            text = f"Epoch: [0]  [{number:4d}/9999]  eta: 1:00:00  loss: {step.loss:.4f} (3.1)  loss_scale: {scale}  time: 0.5"  # noqa: E501
            yield text, max(0, number - 19), number


def gan(run: GeneratedRun, every: int) -> Iterator[Line]:
    """Two records per step, of a generator's loss and of a discriminator's."""
    for number, step in [*enumerate(run.steps)][::every]:
        yield f"  --> STEP: {number}/999 -- GLOBAL_STEP: {number}", number, number
        yield f"     | > loss_gen: {step.loss:.5f}  (3.14231)", number, number
        yield f"     | > grad_norm_0: {step.norm:.5f}  (3.14231)", number, number
        yield f"     | > loss_disc: {9 - step.loss:.5f}  (3.14231)", number, number
        yield f"     | > amp_scaler: {step.scale:.5f}  (3.14231)", number, number


def mmcv(run: GeneratedRun, every: int) -> Iterator[Line]:
    """Means over the interval, of norms that are not finite too."""
    for end in range(every, len(run.steps) + 1, every):
        part = run.steps[end - every : end]
        loss, norm = (
            float(np.mean(column))
            for column in ([s.loss for s in part], [s.norm for s in part])
        )
        text = f"- mmdet - INFO - Epoch [1][{end}/9999]\tlr: 1.000e-03, loss: {loss:.4f}, grad_norm: {norm:.4f}"
        yield f"2026-01-01 10:00:00,000 {text}", end - every, end - 1


NUMBER = re.compile(
    r"(?:iteration +|[^g] step[:= ]*|\] step=|^step |step:\[ *|\]\[ *|iter |Global Step: |\]  \[ *|num_updates=|# \| |^\| step  *\| |epoch\": |^(?=\d+\t))(\d+)"  # noqa: E501
)
"""The number of a step, as lines have it."""
PRINTERS = {
    "stale": (stale, "deepspeed"),
    "Megatron": (megatron, "megatron"), "DeepSpeed": (deepspeed, "deepspeed"), "fused": (fused, "fused"),
    "generic": (generic, "torch"), "bare": (bare, "torch"), "HF Trainer": (trainer, "torch"),
    "MindFormers": (mindformers, "torch"), "epochs": (epochs, "torch"), "apex": (apex, "apex"),
    "fairseq": (fairseq, "apex"), "diffusion": (diffusion, "torch"),
    "insightface": (insightface, "torch"), "mmcv": (mmcv, "torch"), "rounded": (rounded, "torch"),
    "videomae": (videomae, "fused"), "gan": (gan, "torch"),
    "notebook": (notebook, "torch"), "outputs": (outputs, "torch"),
}  # fmt: skip


@dataclass(frozen=True)
class Log:
    """A log as somebody has it, with the run behind it; its fields are all that was drawn."""

    ending: str
    form: str
    count: int
    """Steps of the run, and the one at which what is wrong begins at the latest."""
    begin: int
    seed: int
    every: int
    """Steps per line."""
    drop: int = 0
    """Lines that are missing at the start."""
    thin: int = 1
    """Of so many lines, or tables of several, one is left."""
    width: int = 0
    """Characters at which a terminal cut the lines; 0 for none."""
    tag: str = ""
    """What stands before each line."""
    ranks: int = 0
    """0 for one, 1 where the sentence of an overflow comes from two ranks, 2 where each line does."""
    torn: bool = False
    """Whether its last line was cut."""
    stop: int = 0
    """The step at which it was started again; 0 if it was not."""
    resumed: int = 0
    """The number of the step at which it then begins, with a state of its own."""
    hole: int = 0
    """Lines that are missing in the middle, and at the end."""
    twice: bool = False
    """Whether each line is printed by two handlers."""
    late: bool = False
    """Whether sentences come behind the next record, as from another stream."""
    dev: bool = False
    """Whether records of another data set stand in between."""

    @cached_property
    def starts(self) -> tuple[GeneratedRun, ...]:
        """The run, and the one that was started again, from a checkpoint of the first, whose counts
        it takes over.
        """
        dialect = PRINTERS[self.form][1]
        seeds = (self.seed, self.seed + 1) if self.stop else (self.seed,)
        runs = [
            generated(self.ending, dialect, self.count, self.begin, seed)
            for seed in seeds
        ]
        first, at = runs[0], self.resumed
        return (
            first,
            *(
                replace(run, since=at, steps=first.steps[:at] + run.steps[at:])
                for run in runs[1:]
            ),
        )

    @cached_property
    def run(self) -> GeneratedRun:
        """The run behind it: the steps of both starts in the order in which they were made."""
        first, *again = self.starts
        if not again:
            return first
        steps = first.steps[: self.stop] + again[0].steps[self.resumed :]
        return GeneratedRun(
            self.ending, steps, self.stop + max(0, again[0].begin - self.resumed)
        )

    def number(self, step: int) -> int:
        """Return how a step is numbered that is the so-and-so-manieth."""
        return (
            step - self.stop + self.resumed if self.stop and step >= self.stop else step
        )

    @property
    def visible(self) -> bool:
        """Whether the numbers in the lines go back where the run was started again."""
        told = [
            (last >= self.stop, found)
            for text, _, last in self.lines
            if (found := NUMBER.search(text))
        ]
        numbers = [
            [int(found[1]) for again, found in told if again == late]
            for late in (False, True)
        ]
        return all(numbers) and numbers[1][0] < numbers[0][-1]

    @cached_property
    def printed(self) -> list[Line]:
        """What both starts print."""
        first, *again = (
            [*PRINTERS[self.form][0](run, self.every)] for run in self.starts
        )
        if not again:
            return first
        moved = self.stop - self.resumed
        whole = self.form in (
            "DeepSpeed",
            "fused",
            "videomae",
        )  # their lines count from the start, or from this one
        kept = [
            line
            for line in again[0]
            if line[2] >= self.resumed and (whole or line[1] >= self.resumed)
        ]
        later = [
            (text, max(begin, self.resumed) + moved, end + moved)
            for text, begin, end in kept
        ]
        return [line for line in first if line[2] < self.stop] + later

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Its lines, each with the steps that it tells of."""
        lines = self.printed[self.drop :]
        if self.form in ("diffusion", "gan"):  # a record of many lines
            tables = [list(table) for _, table in groupby(lines, lambda line: line[1:])]
            lines = [line for table in tables[:: self.thin] for line in table]
        else:
            lines = lines[:: self.thin]
            middle = len(lines) // 2
            lines = lines[:middle] + lines[middle + self.hole : len(lines) - self.hole]
            if self.late:
                lines = [
                    line
                    for _, line in sorted(_places(lines), key=lambda placed: placed[0])
                ]
            if self.dev:
                lines = [
                    each
                    for at, line in enumerate(lines)
                    for each in (line, *_dev(at, line))
                ]
            if self.twice:
                told = "INFO:root:" * (
                    self.seed % 2
                    or all("verflow" in text.lower() for text, *_ in lines)
                )
                lines = [
                    (f"{before}{text}", *span)
                    for text, *span in lines
                    for before in (told, "")
                ]
        if self.width:
            return tuple(wrapped(lines, self.width))
        lines = [(self.tag + text, first, last) for text, first, last in lines]
        return tuple(
            (
                text.replace("rank0", f"rank{rank}").replace("Rank 0", f"Rank {rank}"),
                *span,
            )
            for text, *span in lines
            for rank in range(
                2
                if self.ranks == 2
                or (self.ranks and "verflow" in text.lower() and "NOTE" not in text)
                else 1
            )
        )

    @property
    def text(self) -> list[str]:
        """The lines as they are read."""
        lines = [f"{text}\n" for text, _, _ in self.lines]
        return (
            [*lines[:-1], lines[-1][: max(1, len(lines[-1]) * 2 // 3)]]
            if self.torn and len(lines) > 1
            else lines
        )

    @property
    def last(self) -> int:
        """The last step that it tells of."""
        return max((last for _, _, last in self.lines), default=-1)

    @property
    def first(self) -> int:
        """The first step that it tells of."""
        return min((first for _, first, _ in self.lines), default=0)


def _places(lines: Sequence[Line]) -> Iterator[tuple[int, Line]]:
    """Yield lines with their places, a sentence behind the next line that is none."""
    records = [at for at, line in enumerate(lines) if "verflow" not in line[0].lower()]
    for at, line in enumerate(lines):
        later = next((each for each in records if each > at), len(lines))
        yield (2 * at if "verflow" not in line[0].lower() else 2 * later + 1), line


def _dev(at: int, line: Line) -> list[Line]:
    """Return what an evaluation prints now and then, whose loss is not the training's."""
    text = (
        "Epoch 1, validation: loss=nan, ppl=9.1",
        f"valid | step {line[2]} | loss nan | ppl 2.3",
        "dev loss: nan",
    )[at % 3]
    return [(text, line[2], line[2])] if at % 7 == 5 else []


def wrapped(lines: Sequence[Line], width: int) -> list[Line]:
    """Return lines as a terminal cuts them."""
    return [
        (text[at : at + width], first, last)
        for text, first, last in lines
        for at in range(0, max(len(text), 1), width)
    ]


@st.composite
def logs(
    draw: st.DrawFn, endings: Sequence[str] = ENDINGS, *, whole: bool = False
) -> Log:
    """Draw a run, and its log in one of the forms: `whole`, or a part, thinned, wrapped, behind a
    stamp, of two ranks.
    """
    ending, form = (
        draw(st.sampled_from(endings)),
        draw(st.sampled_from(sorted(PRINTERS))),
    )
    count, begin, seed = (
        draw(st.integers(20, 300)),
        draw(st.integers(0, 150)),
        draw(st.integers(0, 10**6)),
    )
    log = Log(ending, form, count, begin, seed, draw(st.sampled_from([1, 2, 5, 10])))
    if whole:
        return log
    log = replace(
        log,
        drop=draw(st.sampled_from([0, 0, 0, 1, 3, 20])),
        thin=draw(st.sampled_from([1, 1, 1, 2, 3, 7])),
    )
    if form != "epochs" and draw(st.booleans()) and draw(st.booleans()):
        log = replace(log, width=draw(st.sampled_from([60, 80, 120])))
    elif draw(st.booleans()) and form not in ("epochs", "diffusion"):
        tag = draw(
            st.sampled_from(
                ["[rank0]: ", "0: ", "2026-01-01 10:00:00 INFO ", "[default0]:", ""]
            )
        )
        log = replace(
            log,
            tag=tag,
            ranks=1 if not tag else 2 * (tag == "[rank0]: " and draw(st.booleans())),
        )
    if form not in ("epochs", "diffusion", "gan", "notebook"):
        log = replace(
            log,
            hole=draw(st.sampled_from([0, 0, 0, 5])),
            dev=draw(st.booleans()) and not log.width,
        )
        log = replace(log, late=draw(st.booleans()) and draw(st.booleans()))
        log = replace(
            log,
            twice=draw(st.booleans())
            and draw(st.booleans())
            and not (log.width or log.tag),
        )
    if draw(st.booleans()):
        stop = draw(st.integers(1, count - 1))
        again = replace(log, stop=stop, resumed=draw(st.integers(0, stop)))
        log = again if again.visible else log
    return replace(log, torn=draw(st.booleans()))
