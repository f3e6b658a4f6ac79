"""Logs of a training run as four programs print them, a line every few steps: their form, with our numbers."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

EVERY = 10  # steps from one line to the next


@dataclass(frozen=True)
class Step:
    """A step of a training loop, after it."""

    scale: float  # that the step's gradients carried
    after: float  # the scale that it left
    skipped: bool
    norm: float  # of the gradients, as the loop has it
    loss: float


def megatron(steps: Sequence[Step]) -> Iterator[str]:
    """Yield Megatron's lines: the scale that was left, the mean loss of the steps that were not skipped."""
    for end, part in _parts(steps):
        taken = [step.loss for step in part if not step.skipped and math.isfinite(step.loss)]
        loss = f"lm loss: {sum(taken) / len(taken):.6E} | " if taken else ""
        norm = "" if part[-1].skipped else f" grad norm: {part[-1].norm:.3f} |"
        nans = sum(step.skipped and not math.isfinite(step.loss) for step in part)
        yield (
            f" iteration {end:8d}/{len(steps):8d} | consumed samples: {32 * end:12d} | "
            f"elapsed time per iteration (ms): 12.3 | learning rate: 1.000E-02 | global batch size:    32 | "
            f"{loss}loss scale: {part[-1].after:.1f} |{norm} "
            f"number of skipped iterations: {sum(step.skipped for step in part):3d} | "
            f"number of nan iterations: {nans:3d} |"
        )


def deepspeed(steps: Sequence[Step]) -> Iterator[str]:
    """Yield DeepSpeed's lines: one per overflow, the total of the skips, and the loop's own loss."""
    total = 0
    for number, step in enumerate(steps, 1):
        if step.skipped:
            total += 1
            yield _overflow(step)
        if number % EVERY == 0:
            yield f"{STAMP} [INFO] [logging.py:96:log_dist] [Rank 0] step={number}, skipped={total}, lr=[0.01]"
            yield f"steps: {number} loss: {step.loss:.4f} grad_norm: {step.norm:.4f} iter time (s): 0.012"


def trainer(steps: Sequence[Step]) -> Iterator[str]:
    """Yield what Hugging Face's Trainer prints when DeepSpeed steps for it: a bar, overflows, and dictionaries."""
    for number, step in enumerate(steps, 1):
        yield f"\r {number * 100 // len(steps):3d}%|███       | {number}/{len(steps)} [00:01<00:09, 80.00it/s]"
        if step.skipped:
            yield _overflow(step)
        if number % EVERY == 0:
            loss = (
                step.loss if math.isfinite(step.loss) else 0.0
            )  # the Trainer leaves out what is not finite
            numbers = {
                "loss": round(loss, 4),
                "grad_norm": step.norm,
                "learning_rate": 0.01,
                "epoch": number / 100,
            }
            yield str(numbers)


def fairseq(steps: Sequence[Step]) -> Iterator[str]:
    """Yield fairseq's lines: one per overflow; its updates count no skipped step."""
    updates = 0
    for step in steps:
        if step.skipped:
            yield (
                "2026-01-01 10:00:00 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, "
                f"setting loss scale to: {step.after}"
            )
            continue
        updates += 1
        if updates % EVERY == 0:
            yield (
                f"2026-01-01 10:00:00 | INFO | train_inner | epoch 001: {updates:6d} / {len(steps)} "
                f"loss={step.loss:.3f}, ppl=1.0, wps=100, "
                f"num_updates={updates}, lr=0.01, gnorm={step.norm:.3f}, loss_scale={step.after:g}"
            )


STAMP = "[2026-01-01 10:00:00,000]"
PROGRAMS: dict[str, Callable[[Sequence[Step]], Iterator[str]]] = {
    "Megatron": megatron,
    "DeepSpeed": deepspeed,
    "HF Trainer": trainer,
    "fairseq": fairseq,
}


def _parts(steps: Sequence[Step]) -> Iterator[tuple[int, Sequence[Step]]]:
    for start in range(0, len(steps) - EVERY + 1, EVERY):
        yield start + EVERY, steps[start : start + EVERY]


def _overflow(step: Step) -> str:
    told = (
        f"reducing to {step.after:g}"
        if step.after < step.scale
        else "reducing to " + f"{step.scale:g}"
    )
    return (
        f"{STAMP} [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss "
        f"scale: {step.scale:g}, {told}"
    )
