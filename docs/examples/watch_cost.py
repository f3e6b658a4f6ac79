"""Measure what `watch` adds to a training step: python watch_cost.py prints one line per network."""

import tempfile
import time
from collections.abc import Callable

import torch

from ampsim.runs import watch

BLOCKS, STEPS = 40, 100  # a block has one sample of the exponents


def make_step(
    width: int, layers: int, batch: int, file: str | None
) -> Callable[[], None]:
    """Return a training step of a multilayer perceptron in float32; with a file, the step is
    recorded.
    """
    torch.manual_seed(0)
    blocks = [(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers)]
    model = torch.nn.Sequential(*[module for block in blocks for module in block])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler("cpu")
    inputs, targets = torch.randn(2, batch, width)
    run = watch(model, optimizer, scaler, to=file) if file else None

    def step() -> None:
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        if run:
            run.log(loss=loss)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def quartile(seconds: list[float]) -> float:
    """Return the 25th percentile, which other programs on the machine disturb little."""
    return sorted(seconds)[len(seconds) // 4]


def main() -> None:
    """Take the CPU time of blocks of steps with and without `watch`, in turn."""
    torch.set_num_threads(1)
    for width, layers, batch in ((64, 4, 32), (64, 32, 32), (256, 8, 64)):
        file = f"{tempfile.mkdtemp()}/run.jsonl"
        arms = [
            make_step(width, layers, batch, None),
            make_step(width, layers, batch, file),
        ]
        times: list[list[float]] = [[], []]
        for _ in range(BLOCKS):
            for step, seconds in zip(arms, times, strict=True):
                start = time.process_time()
                for _ in range(STEPS):
                    step()
                seconds.append((time.process_time() - start) / STEPS)
        bare, watched = map(quartile, times)
        print(
            f"{layers} x {width}: {bare * 1e3:.2f} ms, with watch {watched / bare:.2f} times"
        )


if __name__ == "__main__":
    main()
