"""RoundPipe's whole loop, on a GPU, with our scaler in place of its own: the same losses and parameters.

In a process of its own: RoundPipe's optimizer thread ends the process on any error.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ampsim

# Each run is deterministic: two microbatches on one device, and the optimizer's work in one queue. The first scale
# overflows float16, and with an interval of 3 it does so again and again.
SCRIPT = """
import json, sys
import torch, roundpipe
import ampsim.torch.roundpipe as ours

def train(make):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    config = roundpipe.RoundPipeRunConfig(num_microbatch=2)
    model = roundpipe.RoundPipe(layers.half(), optim_dtype=torch.float32, name="net", model_run_config=config)
    with roundpipe.OptimizerCtx():
        masters = list(model.parameters())
    optimizer = torch.optim.AdamW(masters, lr=0.01)
    scaler = make(init_scale=2.0**20, growth_interval=3)

    def loss_fn(outputs, labels):
        return scaler.scale(torch.nn.functional.mse_loss(outputs.float(), labels)) / 2

    def step_fn():
        scaler.step(optimizer)
        optimizer.zero_grad()

    losses, scales = [], []
    for _ in range(40):
        inputs, labels = torch.randn(8, 16).half(), torch.randn(8, 4)
        scales.append(scaler.get_scale())
        loss = model.forward_backward(input_args=(inputs,), label=labels, loss_fn=loss_fn)
        losses.append(loss.item().hex())
        model.step(step_fn)
        scaler.update()
    model.synchronize()
    return {"losses": losses, "scales": scales, "parameters": [p.tolist() for p in masters]}

print(json.dumps([train(make) for make in (roundpipe.GradScaler, ours.GradScaler)]))
"""


@pytest.mark.gpu
@pytest.mark.peer("roundpipe", "beartype", "cpuinfo", "tqdm")  # pip install roundpipe==0.1.1
def test_roundpipe_trains_the_same_with_our_scaler() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(ampsim.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
    }
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)  # noqa: S603
    assert done.returncode == 0, done.stderr + done.stdout
    theirs, ours = json.loads(done.stdout.splitlines()[-1])
    assert ours == theirs
    pairs = [*itertools.pairwise(ours["scales"])]
    assert sum(after < before for before, after in pairs) > 3
    assert sum(after > before for before, after in pairs) > 3


def test_the_script_compiles() -> None:
    compile(SCRIPT, "script", "exec")
