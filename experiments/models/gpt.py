"""A GPT on bytes: embeddings, pre-normalised attention and MLP blocks on one residual stream, tied
output.

Architecture and initialisation are GPT-2's: A. Radford et al., *Language Models are Unsupervised
Multitask Learners*, 2019, section 2.3. There is no dropout, so that two runs differ in their
precision only.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

BYTES = 256  # vocabulary of a byte-level model


class Size(NamedTuple):
    """The size of a GPT."""

    vocabulary: int
    context: int  # tokens that it sees at most
    layers: int
    heads: int
    width: int  # of the residual stream; divisible by `heads`


GPT2_SMALL = Size(
    vocabulary=50257, context=1024, layers=12, heads=12, width=768
)  # 124 million parameters


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x))."""

    causal = True  # no token sees a later one

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def attend(self, x: Tensor) -> Tensor:
        """Apply self-attention, (batch, tokens, width) to the same."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(
            q, k, v, is_causal=self.causal
        )  # (batch, heads, tokens, width / heads)
        out: Tensor = self.mix(y.transpose(1, 2).flatten(2))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same."""
        x = x + self.attend(self.norm1(x))
        out: Tensor = x + self.narrow(
            gelu(self.widen(self.norm2(x)), approximate="tanh")
        )
        return out


class GPT(nn.Module):
    """Predicts each next token; one matrix embeds the tokens and reads them off again."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(
            Block(size.heads, size.width) for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.width)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:  # a matrix
                into_stream = name.endswith(
                    ("mix.weight", "narrow.weight")
                )  # 2 a layer add up there
                nn.init.normal_(
                    parameter,
                    std=0.02 / (2 * size.layers) ** 0.5 if into_stream else 0.02,
                )

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, tokens) int64 to logits (batch, tokens, vocabulary)."""
        x = self.tokens(tokens) + self.places(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.norm(x), self.tokens.weight)
