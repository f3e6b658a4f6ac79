"""The probes: each yields what it has found so far, again and again, and is left when its time is over."""

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from timeit import timeit
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from torch.optim import Adam, AdamW
from torch.utils.benchmark import Timer

from ampsim.card.verify import mismatch
from ampsim.core.extras import needing
from ampsim.records import Record
from ampsim.torch import GradScaler, OptimizerThread

SCALERS: dict[str, Any] = {"torch": torch.amp.GradScaler, "ampsim": GradScaler}
REFUSED = "fused_steps_follow_strides"  # torch's CUDA kernels refuse what it asks: `check_fast_path_restrictions`
LEVELS, EXAMPLES = (0, 5, 1, 2, 4), 20  # of the kit, the most valuable first; histories per law
ELEMENTS = (1 << 10, 1 << 18, 1 << 22, 1 << 24)  # behind a stream: the last takes longer to step than to launch
ITERATIONS, CYCLES = 24, (0, 10_000, 2_000_000)  # of a history; of a pause, the longest about a millisecond
RULE = {"init_scale": 2.0**24, "growth_interval": 20}  # of a GPT: both ends of the search are seen in a minute
GPTS = {"small": (0, 256, 2, 4, 64, 32), "gpt2-small": (10, 50257, 12, 12, 768, 256)}  # GiB for two; see train
SIZES = {"400 of 1,000": [1000] * 400, "50 of 400,000": [400_000] * 50, "150 of 10,000,000": [10_000_000] * 150}
BYTES, SECONDS = 28, 1.0  # per element: parameter, gradient, two moments, and room; of a way to step, for its median
OURS = "ours.scale(loss); ours.unscale_and_clip_(optimizer, 1e30); ours.step(optimizer); ours.update()"
TORCHS = "torchs.scale(loss); torchs.unscale_(optimizer); clip(params, 1e30); torchs.step(optimizer); torchs.update()"


def source() -> bytes:
    """Return the files of the package, each behind its name: what a run is known by, and text for a GPT to learn."""
    root = Path(__file__).parents[1]
    files = sorted(root.rglob("*.py"))
    return b"".join(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() for path in files)


def ask_laws(name: str, device: str) -> Iterator[Record]:
    """Judge one scaler law by law; torch's is expected to fail as it does on the CPU, but for `REFUSED` on a card."""
    with needing():
        from ampsim.testing import Subject, known
        from ampsim.testing.kit.judge import chosen, judge

    laws = [each for level in LEVELS for each in chosen([level])]
    subject, expected = Subject(partial(SCALERS[name], device), name=name), known.TORCH if name == "torch" else {}
    expected = {law: why for law, why in expected.items() if law != REFUSED or device == "cpu"}
    found: Record = {"checks": {}, "findings": {}, "of": len(laws)}
    with torch.device(device), warnings.catch_warnings(action="ignore"):  # where whatever a law makes comes to lie
        for result in judge(subject, laws, examples=EXAMPLES, expected=expected):
            found["checks"][result.law.name] = result.outcome
            found["findings"] |= {result.law.name: result.text} if result.is_finding else {}
            yield found


def compare(way: str, plain: str, device: str) -> Iterator[Record]:
    """Step drawn histories in a way; yield those which leave other scales than the machine or bits than a plain way."""
    found: Record = {"trajectories": [], "differing": []}
    for seed in count():
        run, bits = step(way, device, seed)
        found["trajectories"].append(run)
        found["differing"] += [seed] if mismatch(run) or bits != step(plain, device, seed)[1] else []
        yield found


def step(way: str, device: str, seed: int) -> tuple[Record, bytes]:
    """Step a history in a way; return the scales that were used, by ours, and the parameters' bits.

    The seed says what overflows and how late scales are; where the optimizer has a thread and a stream of its own,
    "behind", also how long each stream pauses. A CPU has the thread alone.
    """
    it, used, behind = random.Random(seed), [], way == "behind"  # noqa: S311 - no secret
    rule: Record = {"init_scale": 8.0, "growth_interval": it.randint(1, 4)}
    depth, sizes = it.randint(0, 3), (it.choice(ELEMENTS[: seed + 1]), it.randint(1, 4000))
    flags, generator = [it.random() < 0.25 for _ in range(ITERATIONS)], torch.Generator(device).manual_seed(seed)
    params = [nn.Parameter(torch.linspace(-1, 1, size, device=device)) for size in sizes]
    optimizer = it.choice([Adam, AdamW])(params, lr=0.01, weight_decay=seed % 2 / 10, fused=True)
    pause: Callable[[int], object] = torch.cuda._sleep if behind and device == "cuda" else abs  # noqa: SLF001

    def take(grads: list[Tensor], ticket: Record, cycles: int) -> None:
        pause(cycles)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        scaler.step(optimizer, **ticket)
        optimizer.zero_grad()

    with closing(OptimizerThread()) as thread:
        late: Record = {"depth": depth, "launch": thread.launch if behind else None}
        options: Record = {} if way == "torch" else late
        scaler = SCALERS["torch" if way == "torch" else "ampsim"](device, **rule, **options)
        for flag in flags:
            noise = [torch.randn(size, device=device, generator=generator) for size in sizes]
            noise[0][-1] = inf if flag else 1.0
            ticket = {} if way == "torch" else {"ticket": scaler.begin()}
            used += [each.value for each in ticket.values()]
            pause(it.choice(CYCLES))
            work = partial(take, scaler.scale(noise, **ticket), ticket, it.choice(CYCLES))
            thread.launch(work) if behind else work()
            del work  # it holds the gradients, which are free when their step is done
            scaler.update(**ticket)
    run = {"name": f"history {seed}", "rule": rule, "depth": options.get("depth", 0), "found_inf": flags}
    bits = b"".join(param.detach().cpu().numpy().tobytes() for param in params)
    return {**run, "scale": [each.read().scale for each in used]}, bits


def train_both(name: str, device: str) -> Iterator[Record]:
    """Train two GPTs of one size in turn, if they fit: one by torch's scaler, one by ours."""
    gib, *shape = GPTS[name]
    if gib and (device == "cpu" or torch.cuda.mem_get_info()[0] < gib << 30):
        raise RuntimeWarning(f"needs {gib} GiB of free memory on a card")
    for both in zip(*(train(kind, device, *shape) for kind in SCALERS), strict=True):
        yield {"trajectories": [*both]}


def train(kind: str, device: str, words: int, layers: int, heads: int, width: int, length: int) -> Iterator[Record]:
    """Train on bytes; after each step yield scale, loss, whether a gradient was not finite, and whether it skipped."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
    blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
    model = nn.ModuleList([nn.Embedding(words, width), nn.Embedding(length, width), blocks]).to(device)
    params = [*model.parameters()]
    for matrix in (param for param in params if param.dim() == 2):
        nn.init.normal_(matrix, std=0.02)
    mask = nn.Transformer.generate_square_subsequent_mask(length, torch.device(device))
    text = torch.frombuffer(bytearray(source()), dtype=torch.uint8).unfold(0, length + 1, 1)
    scaler, optimizer, steps = SCALERS[kind](device, **RULE), AdamW(params, lr=3e-4, fused=True), 0.0
    seen: Record = {key: [] for key in ("scale", "loss", "found_inf", "skipped")}
    draw = torch.Generator().manual_seed(0)
    for _ in range(2000):
        tokens = text[torch.randint(len(text), (8,), generator=draw)].to(device).long()
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            x = model[2](model[0](tokens[:, :-1]) + params[1], mask=mask, is_causal=True)
            loss = cross_entropy(linear(x, params[0]).float().flatten(0, 1), tokens[:, 1:].flatten())
        seen["scale"].append(scaler.get_scale())
        seen["loss"].append(loss.item())
        scaler.scale(loss).backward()
        seen["found_inf"].append(not all(p.grad.isfinite().all() for p in params if p.grad is not None))
        scaler.step(optimizer)
        scaler.update()
        before, steps = steps, float(optimizer.state[params[0]].get("step", 0))
        seen["skipped"].append(steps == before)
        yield {"name": kind, "rule": RULE, "depth": 0, **seen}


def compare_arithmetic(device: str) -> Iterator[Record]:
    """Find what products of a row and a column in fp16 come to, filled up with zeros to a tile, here and on the CPU."""

    def product(where: str, left: list[float], right: list[float]) -> float:
        a, b = torch.zeros(2, 64, 64, dtype=torch.float16, device=where)
        a[0, : len(left)], b[: len(right), 0] = torch.tensor(left), torch.tensor(right)
        return float((a @ b)[0, 0])

    facts: dict[str, Callable[[str], object]] = {
        "a GEMM overflows at": lambda at: 65504.0 + sum(product(at, [65504, x], [1, 1]) < inf for x in range(64)),
        "a GEMM's sum may pass 65504": lambda at: product(at, [65504, 65504, -65504], [1, 1, 1]),
        "a GEMM keeps a subnormal factor": lambda at: product(at, [2.0**-24], [1024]) == 2.0**-14,
        "a GEMM keeps a subnormal result": lambda at: product(at, [2.0**-12], [2.0**-12]) == 2.0**-24,
    }
    yield {"facts": {name: [fact(device), fact("cpu")] for name, fact in facts.items()}}


def time_steps(device: str) -> Iterator[Record]:
    """Time ways to step sets of parameters that fit into memory, small ones first; on the CPU none that are large.

    Yield microseconds per step for device and host, torch's over each, and how often the host waits in ten steps, as
    torch's debug mode sees it.
    """
    fused, found = device == "cuda", {}
    room = torch.cuda.mem_get_info()[0] // BYTES if fused else 1_000_000
    debug: Callable[[str], object] = torch.cuda.set_sync_debug_mode if fused else str
    ways = {"bare": "optimizer.step()", "torch": TORCHS, "ours": OURS}
    for name in (name for name, sizes in SIZES.items() if sum(sizes) <= room):
        params = [nn.Parameter(torch.randn(size, device=device)) for size in SIZES[name]]
        for param in params:
            param.grad = torch.randn_like(param)
        names = {
            "optimizer": AdamW(params, lr=1e-4, fused=True), "params": params,
            "clip": nn.utils.clip_grad_norm_, "loss": torch.ones((), device=device),
            "torchs": torch.amp.GradScaler(device, 1.0, growth_interval=1 << 30),  # divided by 1 no gradient shrinks
            "ours": GradScaler(device, 1.0, growth_interval=1 << 30),
        }  # fmt: skip
        waits, us, host_us = {}, {}, {}
        for way, code in ways.items():
            us[way] = 1e6 * Timer(code, globals=names).blocked_autorange(min_run_time=SECONDS).median
            with warnings.catch_warnings(record=True, action="always") as caught:
                debug("warn")
                host_us[way] = 1e5 * timeit(code, globals=names, number=10)
                debug("default")
            waits[way] = sum("synchronizing CUDA operation" in str(each.message) for each in caught)
        ratios = {way: us["torch"] / each for way, each in us.items()}
        found[name] = {"waits": waits, "device_us": us, "host_us": host_us, "ratios": ratios}
        yield {"sizes": found}
