"""The loop of train.py, recorded: python watched.py writes run.jsonl, ampsim report run.jsonl makes
a page of it.
"""

import torch

from ampsim.runs import watch


def main(file: str = "run.jsonl", lr: float = 0.5, steps: int = 400) -> None:
    """Record each step: loss, loss scale, skip, and norm of the gradient; at every eighth the
    gradients' exponents.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, 0.01, 1.0, total_iters=steps
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=100)
    with watch(
        model, optimizer, scaler, to=file, sample_every=8, sample_pattern="*.weight"
    ) as run:
        for _ in range(steps):
            batch = torch.randn(64, 32)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(batch) - batch.abs()).square().mean(0).sum()
            run.log(loss=loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()


if __name__ == "__main__":
    main()
