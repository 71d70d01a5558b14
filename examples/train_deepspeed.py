"""Trains a small language model on generated text with DeepSpeed's ZeRO, protected by four lines.

deadpool run --nodes 2 --spares 1 examples/train_deepspeed.py
torchrun --nproc-per-node 2 examples/train_deepspeed.py      # unprotected
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import deepspeed
import torch
from torch import Tensor, nn

from deadpool.integrations.deepspeed import protect

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
WORDS = ("the", "spare", "node", "takes", "over", "and", "no", "step", "is", "lost")
LENGTH = 48


class Sentences:
    """Words in another order each time; the tokens are letters. Its position is protected as `data`."""

    def __init__(self, rank: int, count: int) -> None:
        self._generator, self._count = torch.Generator().manual_seed(rank), count

    def __next__(self) -> Tensor:
        return torch.stack([self._sentence() for _ in range(self._count)])

    def _sentence(self) -> Tensor:
        order = torch.randint(len(WORDS), (LENGTH,), generator=self._generator)
        text = " ".join(WORDS[word] for word in order)[: LENGTH + 1]
        return torch.tensor([LETTERS.index(letter) for letter in text])

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


class Letters(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.embedding, self.head = nn.Embedding(len(LETTERS), width), nn.Linear(width, len(LETTERS))
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens[:, :-1])
        mask = torch.full((LENGTH, LENGTH), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        logits = self.head(self.layers(x, mask=mask))
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--stage", type=int, default=2, help="of ZeRO")
parser.add_argument("--width", type=int, default=64)
args = parser.parse_args()

torch.manual_seed(1)
model = Letters(args.width)
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": torch.cuda.is_available()},  # many CPUs compute it very slowly
    "zero_optimization": {"stage": args.stage, "overlap_comm": False},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 10}},
    "zero_allow_untested_optimizer": True,
}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
rank = deepspeed.comm.get_rank()
torch.manual_seed(100 + rank)
data = Sentences(rank, 8)

job = protect(engine, data=data)
began = 0.0
for step in job.steps(args.steps):
    with step:
        for _ in range(engine.gradient_accumulation_steps()):
            loss = engine(next(data).to(engine.device))
            engine.backward(loss)
            engine.step()
        if step.number == 10:
            began = time.monotonic()
        if rank == 0 and step.number % 10 == 9 and not step.dry:
            print(f"step {step.number}: loss {loss.item():.4f}", flush=True)
if rank == 0:
    print(f"seconds per step: {(time.monotonic() - began) / (args.steps - 11):.4f}")
