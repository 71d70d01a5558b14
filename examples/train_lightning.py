"""Trains a small language model on generated text with lightning.Trainer, protected by two lines.

deadpool run --nodes 2 --spares 1 examples/train_lightning.py
torchrun --nproc-per-node 2 examples/train_lightning.py      # unprotected
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from deadpool.integrations.lightning import protect

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
LENGTH = 48


class Sentences(Dataset[Tensor]):
    """Rhymes of a few words in another order each time; the tokens are letters."""

    WORDS = ("the", "spare", "node", "takes", "over", "and", "no", "step", "is", "lost")

    def __init__(self, count: int, first: int = 0) -> None:
        self._count, self._first = count, first

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(self._first + index)
        order = torch.randint(len(self.WORDS), (LENGTH,), generator=generator)
        text = " ".join(self.WORDS[word] for word in order)[: LENGTH + 1]
        return torch.tensor([LETTERS.index(letter) for letter in text])


class Letters(L.LightningModule):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(len(LETTERS), width), nn.Linear(width, len(LETTERS))
        self.memory = nn.GRU(width, width, num_layers=2, dropout=0.1, batch_first=True)

    def loss_of(self, batch: Tensor) -> Tensor:
        hidden, _ = self.memory(self.embedding(batch[:, :-1]))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), batch[:, 1:].flatten())

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss = self.loss_of(batch)
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Tensor, index: int) -> None:
        self.log("validation", self.loss_of(batch), prog_bar=True, sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out/lightning", help="folder for checkpoints and logs")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--sentences", type=int, default=256)
    args = parser.parse_args()
    L.seed_everything(1)
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = L.Trainer(
        default_root_dir=args.out,
        devices=devices,
        num_nodes=int(os.environ.get("WORLD_SIZE", "1")) // devices,
        strategy="ddp",
        max_epochs=args.epochs,
        accumulate_grad_batches=2,
        callbacks=[ModelCheckpoint(args.out, monitor="validation")],
        log_every_n_steps=5,
    )
    protect(trainer)
    trainer.fit(
        Letters(),
        DataLoader(Sentences(args.sentences), batch_size=4, shuffle=True),
        DataLoader(Sentences(32, first=1_000_000), batch_size=4),
    )


if __name__ == "__main__":
    main()
