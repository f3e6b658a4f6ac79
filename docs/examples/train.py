"""Train a small network in fp16 and learn too fast: python train.py > train.log"""

import torch


def main(lr: float = 0.5, steps: int = 400) -> None:
    """Print a line per step: loss and loss scale."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, 0.01, 1.0, total_iters=steps
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=100)
    for step in range(steps):
        batch = torch.randn(64, 32)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = (model(batch) - batch.abs()).square().mean(0).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        print(f"step {step}: loss {loss.item():.4f} scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()
