"""A small training with lightning.Trainer: accumulation, epochs, validation, checkpoints, early stopping, a callback
and a module with state of their own, a metric that adds up.

Nothing is downloaded. Each rank notes the loss of every optimizer step, and in the end a digest of all that has to be
as in an undisturbed run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torchmetrics
from acts import act
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from deadpool.integrations.lightning import protect

ROWS, WIDTH = 44, 12
LOCAL = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


class Rows(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, seed: int, rows: int, random_data: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._x, self._random = torch.randn(rows, WIDTH, generator=generator), random_data
        self._y = torch.randint(3, (rows,), generator=generator)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self._random:
            return self._x[index] + torch.rand(WIDTH), self._y[index]
        return self._x[index], self._y[index]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Each rank reads rows of its own, through a buffer whose order is drawn from a generator of its own."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._rng = rows, np.random.default_rng(4)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        waiting: list[int] = []
        for index in range(int(os.environ["RANK"]), len(self._rows), int(os.environ["WORLD_SIZE"])):
            waiting.append(index)
            if len(waiting) > 5:
                yield self._rows[waiting.pop(int(self._rng.integers(len(waiting))))]
        yield from (self._rows[index] for index in waiting)


def mask(rows: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Masks at random, as a collator for masked language models does."""
    x = torch.stack([row[0] for row in rows])
    return [x.masked_fill(torch.rand(x.shape) < 0.15, 0.0), torch.stack([row[1] for row in rows])]


class Net(L.LightningModule):
    def __init__(self, manual: bool) -> None:
        super().__init__()
        self.automatic_optimization = not manual
        more = [nn.Linear(24, 24 * args.scale), nn.Linear(24 * args.scale, 24)] if args.scale else []
        self.net = nn.Sequential(nn.Linear(WIDTH, 24), nn.BatchNorm1d(24), *more, nn.Dropout(0.1), nn.Linear(24, 3))
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3)
        self.batches_seen = 0
        self.outputs: list[Tensor] = []

    def configure_model(self) -> None:
        """Only where the model is sharded. Lightning may call it more than once."""
        if args.fsdp2 and not isinstance(self.net, FSDPModule):
            for layer in (each for each in self.net if isinstance(each, nn.Linear)):
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        act(self.trainer.global_step)
        x, y = batch["a"] if args.two else batch
        if args.two:
            x = x + batch["b"][0][: len(x)].mean()
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.batches_seen += 1
        self.outputs.append(loss.detach())
        self.accuracy(logits, y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        if index % 3 == 2:
            self.log("seldom", loss, on_step=False, on_epoch=True, sync_dist=True)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            self.manual_backward(loss)
            if index % args.by_hand_over == 0:
                optimizer.step()
                optimizer.zero_grad()
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        self.log("validation", nn.functional.cross_entropy(self.net(x), y), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        self.log("spread", torch.stack(self.outputs).std(), sync_dist=True)
        self.outputs.clear()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.8), "interval": "step"}]


class Data(L.LightningDataModule):
    """Counts what was fetched, which is part of what has to come back."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0

    def train_dataloader(self) -> Any:
        rows = Rows(1, ROWS, args.random_data)
        rest = {
            "batch_size": 2,
            "num_workers": args.workers,
            "persistent_workers": args.persistent,
            "collate_fn": mask if args.mask else None,
        }
        if args.stream:
            return DataLoader(Stream(rows), **rest)
        if args.two:
            other = DataLoader(Rows(5, 16, args.random_data), shuffle=True, **rest)
            return {"a": DataLoader(rows, shuffle=True, **rest), "b": other}
        return DataLoader(rows, shuffle=True, **rest)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Rows(2, 8), batch_size=2)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.fetched += 1
        return batch


class Notes(L.Callback):
    def __init__(self, out: Path) -> None:
        self._out, self.steps, self.epochs = out, 0, 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        torch.rand(3)  # neither this nor a counter that begins here may change what a newcomer has loaded
        self.steps = 0

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.epochs += 1

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if trainer.global_step == self.steps:
            return
        self.steps += 1
        if args.log:
            job.log(self.steps - 1, updates=self.steps)
        seen = (module.batches_seen, trainer.datamodule.fetched, self.epochs)
        figures = (*seen, trainer.current_epoch, trainer.optimizers[0].param_groups[0]["lr"])
        loss = f"{outputs['loss'].item().hex() if isinstance(outputs, dict) else outputs.item().hex()} {figures}"
        line = {"step": self.steps - 1, "loss": loss, "ended": time.time(), "cpu_s": time.process_time()}
        with (self._out / f"rank{trainer.global_rank}.jsonl").open("a") as file:
            print(json.dumps(line), file=file, flush=True)


def digest(trainer: L.Trainer, checkpoints: ModelCheckpoint) -> str:
    hasher = hashlib.sha256()
    tensors = dict(trainer.lightning_module.state_dict())
    for index, state in trainer.optimizers[0].state_dict()["state"].items():
        tensors |= {f"optimizer {index} {name}": each for name, each in state.items()}
    tensors |= {f"metric {name}": each for name, each in trainer.callback_metrics.items()}
    for name, held in sorted(tensors.items()):
        tensor = held.to_local() if isinstance(held, DTensor) else held
        hasher.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    best = {Path(path).name: score.item() for path, score in checkpoints.best_k_models.items()}
    hasher.update(json.dumps([best, trainer.global_step, trainer.current_epoch]).encode())
    return hasher.hexdigest()


parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--scale", type=int, default=0, help="adds a layer of this width times 24, for measurements")
parser.add_argument("--max-steps", type=int, default=-1)
parser.add_argument("--patience", type=int, default=100)
parser.add_argument("--fsdp2", action="store_true", help="Lightning's strategy for sharded models")
parser.add_argument("--manual", action="store_true")
parser.add_argument("--random-data", action="store_true")
parser.add_argument("--mask", action="store_true", help="a collator that draws random numbers")
parser.add_argument("--stream", action="store_true", help="an IterableDataset")
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--two", action="store_true", help="two loaders, the second one shorter")
parser.add_argument("--resume", type=Path, help="a folder with a checkpoint of Lightning's")
parser.add_argument("--save", choices=["validation", "epochs", "steps"], default="validation", help="checkpoints when")
parser.add_argument("--force", action="store_true", help="accept what was never tried with a fault")
parser.add_argument("--by-hand-over", type=int, default=1, help="batches whose gradients --manual adds up")
parser.add_argument("--bar", action="store_true", help="draw a progress bar")
parser.add_argument("--log", action="store_true", help="through the job that protect returns")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

L.seed_everything(3)
SAVES: dict[str, dict[str, Any]] = {
    "validation": {"monitor": "validation", "save_top_k": 2},
    "epochs": {"save_top_k": -1, "save_on_train_epoch_end": True},
    "steps": {"save_top_k": -1, "every_n_train_steps": 4},
}
checkpoints = ModelCheckpoint(args.out / "checkpoints", **SAVES[args.save])
trainer = L.Trainer(
    accelerator="cpu",
    devices=LOCAL,
    num_nodes=int(os.environ["WORLD_SIZE"]) // LOCAL,
    strategy=ModelParallelStrategy(int(os.environ["WORLD_SIZE"]), 1) if args.fsdp2 else "ddp",
    max_epochs=3,
    max_steps=args.max_steps,
    accumulate_grad_batches=1 if args.manual else args.accumulation,
    gradient_clip_val=None if args.manual else 1.0,
    val_check_interval=5,
    num_sanity_val_steps=1,
    log_every_n_steps=2,
    logger=CSVLogger(args.out, name="logs"),
    callbacks=[
        checkpoints,
        EarlyStopping("validation", patience=args.patience),
        LearningRateMonitor(),
        Notes(args.out),
    ],
    enable_progress_bar=args.bar,
    enable_model_summary=False,
)
job = protect(trainer, force=args.force)
found = sorted(args.resume.glob("*.ckpt"), key=lambda path: path.stat().st_mtime) if args.resume else [None]
trainer.fit(Net(args.manual), datamodule=Data(), ckpt_path=found[-1], weights_only=False)
with (args.out / f"rank{trainer.global_rank}.jsonl").open("a") as file:
    print(json.dumps({"digest": digest(trainer, checkpoints)}), file=file, flush=True)
