"""Probe: a GPT on bytes in fp16, and the trajectory of its loss scale, with torch's scaler and with ours."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from ampsim.card.device import Skipped, free_memory
from ampsim.card.kit import SCALERS
from ampsim.records import Record

RULE = {"init_scale": 2.0**24, "growth_interval": 20}  # both ends of the search are seen in a minute
STEPS, BATCH = 2000, 8  # steps at most


SIZES: dict[str, dict[str, int]] = {
    "small": {"vocabulary": 256, "layers": 2, "heads": 4, "width": 64, "tokens": 32},
    "gpt2-small": {"vocabulary": 50257, "layers": 12, "heads": 12, "width": 768, "tokens": 256},
}
NEEDED = {"small": 0, "gpt2-small": 10}  # GiB, for two of them


class GPT(nn.Module):
    """Predicts each next token; pre-normalised blocks, one matrix embeds the tokens and reads them off again."""

    def __init__(self, vocabulary: int, layers: int, heads: int, width: int, tokens: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        block = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens) int64 to logits (batch, tokens, vocabulary)."""
        x = self.blocks(self.tokens(tokens) + self.places.weight, mask=self.mask, is_causal=True)
        return linear(x, self.tokens.weight)


def run(name: str, device: str) -> Iterator[Record]:
    """Train two GPTs of one size in turn, if they fit: one by torch's scaler, one by ours."""
    if NEEDED[name] << 30 > free_memory(device):
        raise Skipped(f"needs {NEEDED[name]} GiB of free memory on a card")
    for both in zip(*(train(kind, name, device) for kind in SCALERS), strict=True):
        yield {"trajectories": [*both]}


def train(kind: str, name: str, device: str) -> Iterator[Record]:
    """Train; after each step yield scale, loss, whether a gradient was not finite, and whether it skipped, of all."""
    torch.manual_seed(0)
    model, scaler = GPT(**SIZES[name]).to(device), SCALERS[kind](device, **RULE)
    params = [*model.parameters()]
    optimizer, steps = torch.optim.AdamW(params, lr=3e-4, fused=True), [0.0]
    seen: Record = {key: [] for key in ("scale", "loss", "found_inf", "skipped")}
    for tokens in batches(SIZES[name]["tokens"], device):
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
        steps.append(float(optimizer.state[params[0]].get("step", 0)))
        seen["skipped"].append(steps[-1] == steps[-2])
        yield {"name": kind, "rule": RULE, "depth": 0, **seen}


def batches(length: int, device: str) -> Iterator[Tensor]:
    """Yield (batch, length + 1) int64 of the package's own source, byte by byte: text that is there."""
    files = sorted(Path(__file__).parents[1].glob("core/**/*.py"))
    text = torch.frombuffer(bytearray(b"".join(each.read_bytes() for each in files)), dtype=torch.uint8).long()
    generator, places = torch.Generator().manual_seed(0), torch.arange(length + 1)
    for _ in range(STEPS):
        yield text[torch.randint(len(text) - length, (BATCH, 1), generator=generator) + places].to(device)
