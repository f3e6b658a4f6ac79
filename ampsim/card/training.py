"""Probe: a GPT on bytes in fp16, and the trajectory of its loss scale, with torch's scaler and with ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from ampsim.card.device import free_memory
from ampsim.card.kit import SCALERS
from ampsim.records import Record

RULE = {"init_scale": 2.0**24, "growth_interval": 20}  # both ends of the search are seen in a minute
MOST = 2000  # steps


class Size(NamedTuple):
    """The size of a GPT, and of what it is fed."""

    vocabulary: int
    layers: int
    heads: int
    width: int
    batch: int
    tokens: int
    needs: int  # bytes of memory


SIZES = {"small": Size(256, 2, 4, 64, 8, 32, 0), "gpt2-small": Size(50257, 12, 12, 768, 8, 256, 8 << 30)}


class GPT(nn.Module):
    """Predicts each next token; pre-normalised blocks, one matrix embeds the tokens and reads them off again."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.tokens, size.width)
        block = nn.TransformerEncoderLayer(
            size.width, size.heads, 4 * size.width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, size.layers, nn.LayerNorm(size.width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.tokens))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens) int64 to logits (batch, tokens, vocabulary)."""
        x = self.blocks(self.tokens(tokens) + self.places.weight, mask=self.mask, is_causal=True)
        return linear(x, self.tokens.weight)


def run(name: str, device: str, left: Callable[[], float]) -> Record:
    """Train a GPT of one size by torch's scaler in half of the time, and by ours, if it fits."""
    size, half = SIZES[name], left() / 2
    if size.needs > free_memory(device):
        return {"skipped": f"needs {size.needs >> 30} GiB of free memory on a card"}
    return {"trajectories": [train("torch", size, device, lambda: left() > half), train("ampsim", size, device, left)]}


def batches(size: Size) -> Callable[[], Tensor]:
    """Return what draws (batch, tokens + 1) int64 of the package's own source, byte by byte: text that is there."""
    files = sorted(Path(__file__).parents[1].glob("core/**/*.py"))
    text = torch.frombuffer(bytearray(b"".join(each.read_bytes() for each in files)), dtype=torch.uint8).long()
    generator, places = torch.Generator().manual_seed(0), torch.arange(size.tokens + 1)
    return lambda: text[torch.randint(len(text) - size.tokens, (size.batch, 1), generator=generator) + places]


def train(kind: str, size: Size, device: str, more: Callable[[], object]) -> Record:
    """Train for a while; of each step keep scale, loss, whether a gradient was not finite, and whether it skipped."""
    torch.manual_seed(0)
    model, draw, scaler = GPT(size).to(device), batches(size), SCALERS[kind](device, **RULE)
    params = [*model.parameters()]
    optimizer, before = torch.optim.AdamW(params, lr=3e-4, fused=True), 0.0
    seen: dict[str, list[Any]] = {"scale": [], "loss": [], "found_inf": [], "skipped": []}
    while not seen["loss"] or (len(seen["loss"]) < MOST and more()):
        tokens = draw().to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = model(tokens[:, :-1])
        loss = cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        seen["scale"].append(scaler.get_scale())
        seen["loss"].append(loss.item())
        scaler.scale(loss).backward()
        finite = torch.stack([p.grad.isfinite().all() for p in params if p.grad is not None]).all().item()
        seen["found_inf"].append(not finite)
        scaler.step(optimizer)
        scaler.update()
        taken = float(optimizer.state[params[0]]["step"]) if optimizer.state else 0.0
        seen["skipped"].append(taken == before)
        before = taken
    return {"name": kind, "rule": RULE, "depth": 0, **seen}
