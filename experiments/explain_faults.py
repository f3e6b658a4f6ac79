"""Does `ampsim explain` name the fault seeded in a run, and no fault in a healthy run?

Small networks train in native fp16 with one of seven faults, or none. `ampsim.runs.watch` records half of
the runs. For the other half, only the log remains that Megatron, DeepSpeed, Hugging Face's Trainer, or
fairseq would print, with a line every 10 steps. The findings of `ampsim.runs` were tuned on seeds 0 to
7 and 100 to 107, which are not among these.

Device: cpu.
"""

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from rich.table import Table
from torch import Tensor, nn

from ampsim.core.json_lines import Record
from ampsim.runs import explain, watch
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import fp16, printed_logs
from experiments.training.printed_logs import Step

HEALTHY = "healthy"
WIDTH = 32
BATCH = 32  # examples per step
VERDICTS = {"no problem found": HEALTHY, "problem": "wrong", "too little to tell": "cannot tell"}
KINDS = {
    "scaled-norm": "scaled-clip",
    "clip-of-scaled-gradients": "scaled-clip",
    "scale-collapse": "collapse",
    "overflow-at-low-scale": "collapse",
    "skipped-to-the-end": "collapse",
    "never-stepped": "collapse",
    "norm-not-finite": "collapse",
    "scale-at-minimum": "floor-reached",
    "dead-parameters": "dead-layer",
    "loss-never-finite": "loss-not-finite",
    "loss-zero-hides-nan": "loss-not-finite",
    "loss-diverged": "data spike",
    "overflow-burst": "data spike",
    "scale-recovers-slowly": "interval too long",
    "loss-spike": "data spike",
}  # finding -> the fault that it shows
FORMS = (
    "watch",
    "Megatron",
    "watch",
    "DeepSpeed",
    "watch",
    "HF Trainer",
    "watch",
    "fairseq",
)  # of seeds in turn


@dataclass(frozen=True)
class Fault:
    """A fault that is planted, and the scaler that meets it."""

    kind: str
    interval: int = 20  # growth interval, in finite steps
    floor: float | None = None  # min_scale


ARMS = {
    arm.kind: arm
    for arm in (
        Fault(HEALTHY),
        Fault("collapse"),
        Fault("data spike", interval=8),
        Fault("interval too long", interval=2000),
        Fault("floor-reached", interval=40, floor=2.0**8),
        Fault("scaled-clip"),
        Fault("dead-layer"),
        Fault("loss-not-finite"),
    )
}


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 200  # optimizer steps per unit
    seeds: tuple[int, ...] = tuple(range(200, 208))  # none that the rules were tuned on
    lr: float = 0.02  # of SGD
    max_norm: float = 1.0  # that gradients are clipped to
    kinds: Annotated[tuple[str, ...], runner.one_of(ARMS)] = tuple(ARMS)


SMOKE = Config(steps=60, seeds=(3,), kinds=("collapse",))


def arms(config: Config) -> dict[str, Fault]:
    return {name: ARMS[name] for name in config.kinds}


class Gain(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, gain: float) -> Tensor:
        ctx.gain = gain  # type: ignore[attr-defined]
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.gain, None  # type: ignore[attr-defined]


class Net(nn.Module):
    """Two residual blocks; a fault may kill one, blow up an activation, or the gradient that comes back."""

    def __init__(self, *, dead: bool) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.activation = self.gradient = 1.0
        if dead:
            nn.init.constant_(self.get_parameter("blocks.1.bias"), -1e3)  # its ReLU never opens

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        for block in self.blocks:
            x = x + torch.relu(block(x))
        x = Gain.apply(x * self.activation, self.gradient)  # type: ignore[no-untyped-call]
        out: Tensor = self.head(x)
        return out


def run(config: Config, arm: Fault, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train with a fault, keep its log, and have it explained; the columns are explained in `data/README.md`."""
    generator = fp16.prepare(seed)
    form = (
        FORMS[seed % len(FORMS)] if arm.kind != "dead-layer" else "watch"
    )  # a console shows no layers
    begin = int(torch.randint(config.steps * 2 // 5, config.steps // 2, (), generator=generator))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        train(config, arm, form, begin, generator, path, tick)
        explanation = explain(path)
    ids = ("scale-recovers-slowly", "loss-spike", "overflow-burst")
    spikes = [each for each in explanation.findings if each.id in ids]
    found = sorted(
        [*explanation.problems, *spikes], key=lambda each: KINDS.get(each.id, each.id) not in ARMS
    )
    kinds = [kind if (kind := KINDS.get(each.id, each.id)) in ARMS else "another" for each in found]
    return {
        "form": form,
        "begin": begin if arm.kind not in (HEALTHY, "scaled-clip", "dead-layer") else 0,
        "verdict": VERDICTS[explanation.verdict],
        "found": kinds,
        "named": kinds[0] if kinds else HEALTHY,
        "seen": int(found[0].step) if found and math.isfinite(found[0].step) else None,
    }


def train(
    config: Config, arm: Fault, form: str, begin: int, generator: torch.Generator, path: Path,
    tick: Callable[[int], None],
) -> None:  # fmt: skip
    """Train, and leave a watched run's file or a program's log."""
    model, teacher = (
        Net(dead=arm.kind == "dead-layer"),
        torch.randn(WIDTH, 1, generator=generator) / math.sqrt(WIDTH),
    )
    optimizer = torch.optim.SGD(model.parameters(), config.lr)
    scaler = GradScaler("cpu", 2.0**14, growth_interval=arm.interval, min_scale=arm.floor)
    height = 2.0 ** float(torch.empty(()).uniform_(5, 8, generator=generator))
    steps: list[Step] = []
    with watch(model, optimizer, scaler, to=path, sample_every=20, stall_steps=0) as watched:
        for number in range(config.steps):
            x = torch.randn(BATCH, WIDTH, generator=generator)
            factor = plant(model, arm.kind, number - begin, height)
            with fp16.autocast("cpu", fp16=True):
                loss = factor * (model(x).float() - torch.tanh(x @ teacher)).square().mean()
            watched.log(loss=loss)
            steps.append(
                update(
                    model,
                    optimizer,
                    scaler,
                    loss,
                    config.max_norm,
                    scaled=arm.kind == "scaled-clip",
                )
            )
            tick(number + 1)
    if form != "watch":
        path.write_text("\n".join(printed_logs.PROGRAMS[form](steps)), encoding="utf-8")


def plant(model: Net, kind: str, since: int, height: float) -> float:
    """Set the fault of a step, `since` steps after it begins; return what the loss is multiplied by."""
    if kind in ("data spike", "interval too long"):
        return height**2 if 0 <= since < 10 else 1.0  # a batch of outliers
    if since >= 0:
        if kind == "collapse":
            model.gradient = height * 2.0 ** min(
                1.5 * since, 110
            )  # it grows faster than a scale can fall
        if kind == "floor-reached":
            model.gradient = height * 2.0**20
        if kind == "loss-not-finite":
            model.activation = height * 2.0**16
    return 1.0


def update(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: GradScaler, loss: Tensor, max_norm: float, *,
    scaled: bool,
) -> Step:  # fmt: skip
    """Make one step with clipped gradients; `scaled`: they are clipped, and their norm logged, before unscaling."""
    before = float(scaler.get_scale())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    if not scaled:
        scaler.unscale_(optimizer)
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), max_norm))
    scaler.step(optimizer)
    scaler.update()
    return Step(
        before, float(scaler.get_scale()), bool(scaler.last_step.skipped), norm, loss.item()
    )


def table(rows: Sequence[Record]) -> Table:
    """Return the confusion table."""
    named = [*ARMS, "another"]
    table = Table("planted", *named, title="what was named")
    for kind in ARMS:
        counts = Counter(row["named"] for row in rows if row["arm"] == kind)
        table.add_row(kind, *(str(counts[name] or "") for name in named))
    return table


if __name__ == "__main__":
    raise SystemExit(runner.main("explain_faults"))
