"""Fabric: a checkpoint of model and optimizer does not contain the loss scale.

Run with lightning 2.6.6 and torch 2.13.0 on the CPU: the scale is 1 after one overflow, and 2^16 on resume.
"""

import tempfile
from pathlib import Path

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import MixedPrecision


def start(scaler):
    fabric = Fabric(
        accelerator="cpu",
        devices=1,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)],
    )
    model = torch.nn.Linear(2, 1)
    return fabric, *fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))


with tempfile.TemporaryDirectory() as folder:
    for extra in (False, True):
        path = Path(folder, f"checkpoint-{extra}")
        scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
        fabric, model, optimizer = start(scaler)
        fabric.backward(model(torch.full((1, 2), float("inf"))).sum())
        optimizer.step()  # skipped
        state = {"model": model, "optimizer": optimizer} | (
            {"scaler": scaler} if extra else {}
        )
        fabric.save(path, state)

        resumed = torch.amp.GradScaler("cpu", init_scale=65536.0)
        fabric, model, optimizer = start(resumed)
        state = {"model": model, "optimizer": optimizer} | (
            {"scaler": resumed} if extra else {}
        )
        fabric.load(path, state)
        print(
            f"scaler in the state: {extra}; scale {scaler.get_scale()} -> {resumed.get_scale()}"
        )
