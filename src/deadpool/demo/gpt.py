"""A small GPT; its default size is that of the comparison with other systems: 6 layers, width 256, 8 heads.

It consists of consecutive pieces, so that a pipeline can be cut between any two of them. In the attention's projection
the heads follow one another, each with its query, key and value, so that tensor parallelism splits it between heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    layers: int = 6
    width: int = 256
    heads: int = 8
    sequence: int = 128
    vocabulary: int = 2048
    dropout: float = 0.0
    checkpoint: bool = False  # recompute each block's activations in backward instead of keeping them


class Embedding(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.sequence, size.width)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        embedded: Tensor = self.tokens(tokens) + self.places(places)
        return embedded


class GPTBlock(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_width, self.dropout, self.checkpoint = size.width // size.heads, size.dropout, size.checkpoint
        self.norm_1 = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.norm_2 = nn.LayerNorm(size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpoint and self.training:
            recomputed: Tensor = checkpoint(self._transform, x, use_reentrant=False)
            return recomputed
        return self._transform(x)

    def _transform(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.norm_1(x))
        hidden = F.dropout(F.gelu(self.up(self.norm_2(x))), self.dropout, self.training)
        moved: Tensor = x + self.down(hidden)
        return moved

    def _attend(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x)  # with tensor parallelism it has the heads of this rank, and maybe more positions than x
        batch, length, _ = qkv.shape
        q, k, v = qkv.view(batch, length, -1, 3, self.head_width).permute(3, 0, 2, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return attended


class OutputHead(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.width)
        self.logits = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.logits(self.norm(x))
        return logits


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = Embedding(size)
        self.blocks = nn.ModuleList(GPTBlock(size) for _ in range(size.layers))
        self.head = OutputHead(size)

    @property
    def pieces(self) -> list[nn.Module]:
        """Returns the modules that a forward pass goes through, in order."""
        return [self.embedding, *self.blocks, self.head]

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens
        for piece in self.pieces:
            x = piece(x)
        return x


class BranchingGPT(GPT):
    """Has a block that only every third forward pass goes through, not the first one; a buffer counts the passes.

    So some parameters have no gradient at times, and their optimizer state appears later than that of the others.
    """

    passes: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.branch = GPTBlock(size)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        if int(self.passes) % 3 == 1:
            x = self.branch(x)
        self.passes += 1
        logits: Tensor = self.head(x)
        return logits


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class RandomBatches:
    """Random sequences by (step, data rank). Their position can be saved, like that of a stateful data loader."""

    def __init__(self, size: Size, rank: int, per_rank: int) -> None:
        self._size, self._rank, self._per_rank = size, rank, per_rank
        self._position = 0

    def __next__(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * self._position + self._rank)
        shape = (self._per_rank, self._size.sequence + 1)
        tokens = torch.randint(self._size.vocabulary, shape, generator=generator)
        self._position += 1
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, int]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._position = state["position"]
