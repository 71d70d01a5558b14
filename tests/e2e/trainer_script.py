"""A small training with transformers.Trainer: accumulation, epochs, evaluation, checkpoints, a callback with a state.

Nothing is downloaded. Each rank notes the loss of every update, and in the end a digest of its model and optimizer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import DistributedType, PartialState
from acts import act
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset, IterableDataset, Sampler
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from deadpool.integrations.transformers import protect

VOCABULARY = 64


class Rows(Dataset[dict[str, Tensor]]):
    def __init__(self, seed: int, rows: int, random_data: bool = False) -> None:
        chosen = torch.randint(VOCABULARY, (rows, parsed.length), generator=torch.Generator().manual_seed(seed))
        self._rows, self._random = chosen, random_data

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self._rows[index]
        if self._random:
            row = torch.where(torch.rand(row.shape) < 0.2, torch.randint(VOCABULARY, row.shape), row)
        return {"input_ids": row, "labels": self._rows[index]}


class Stream(IterableDataset[dict[str, Tensor]]):
    """Rows in an order that is drawn from a generator of its own, through a small buffer."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self._rng = rows, np.random.default_rng(4)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        waiting: list[int] = []
        for index in range(len(self._rows)):
            waiting.append(index)
            if len(waiting) > 5:
                yield self._rows[waiting.pop(int(self._rng.integers(len(waiting))))]
        yield from (self._rows[index] for index in waiting)


def streamed(kind: str, rows: Rows) -> Any:
    if kind == "torch":
        return Stream(rows)
    import datasets

    lists = {name: [rows[index][name].tolist() for index in range(len(rows))] for name in ("input_ids", "labels")}
    stream = datasets.Dataset.from_dict(lists).to_iterable_dataset(num_shards=2)
    return stream.shuffle(seed=5, buffer_size=6) if kind == "hf-shuffled" else stream


def mask(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Masks at random, as a collator for masked language models does."""
    batch = {name: torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in ("input_ids", "labels")}
    ids = batch["input_ids"]
    return {**batch, "input_ids": ids.masked_fill(torch.rand(ids.shape) < 0.15, 1)}


class OwnOrder(Sampler[int]):
    """Draws each epoch's order from a generator that it keeps, the same one on each rank."""

    def __init__(self, count: int) -> None:
        self._rng, self._count = np.random.default_rng(5), count

    def __iter__(self) -> Iterator[int]:
        return iter(self._rng.permutation(self._count).tolist())

    def __len__(self) -> int:
        return self._count


class Noting(Trainer):
    """Notes the losses of its microbatches, as a user's subclass might; the sum is part of what has to come back."""

    losses_seen = 0
    noted: list[str]

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler[int] | None:
        return OwnOrder(parsed.rows) if parsed.own_sampler else super()._get_train_sampler(*args, **kwargs)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        act(self.state.global_step)
        loss = super().training_step(*args, **kwargs)
        self.losses_seen += 1
        self.noted.append(loss.item().hex())
        return loss


class Notes(TrainerCallback):
    def __init__(self, out: Path) -> None:
        self._out, self.updates, self.seen = out, 0, {"epochs": np.int64(0)}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.rand(3)  # neither this nor a counter that begins here may change what a newcomer has loaded
        self.updates = 0

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen["epochs"] += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.updates += 1
        loss = f"{' '.join(trainer.noted)} {self.updates} {trainer.losses_seen} {state.epoch} {self.seen['epochs']}"
        trainer.noted.clear()
        if parsed.log:
            job.log(state.global_step - 1, updates=self.updates)
        line = {"step": state.global_step - 1, "loss": loss, "ended": time.time(), "cpu_s": time.process_time()}
        with (self._out / f"rank{args.process_index}.jsonl").open("a") as file:
            print(json.dumps(line), file=file, flush=True)


def digest(trainer: Trainer) -> str:
    hasher = hashlib.sha256()
    tensors = {f"model {name}": each for name, each in trainer.model.state_dict().items()}
    for index, state in trainer.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer {index} {name}": each for name, each in state.items()}
    for name, tensor in sorted(tensors.items()):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        hasher.update(name.encode() + local.detach().cpu().contiguous().numpy().tobytes())
    history = [
        {k: v for k, v in logs.items() if "runtime" not in k and "per_second" not in k}
        for logs in trainer.state.log_history
    ]
    hasher.update(json.dumps(history).encode())
    return hasher.hexdigest()


parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--random-data", action="store_true")
parser.add_argument("--mask", action="store_true", help="a collator that draws random numbers")
parser.add_argument("--stream", choices=["torch", "hf", "hf-shuffled"], help="an IterableDataset")
parser.add_argument("--no-dispatch", action="store_true", help="each rank reads the stream by itself")
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--stop-at", type=int, default=0)
parser.add_argument("--scale", type=int, default=1, help="of the model's width, for measurements")
parser.add_argument("--rows", type=int, default=44)
parser.add_argument("--length", type=int, default=16)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--save-every", type=int, default=7)
parser.add_argument("--sampling", default="random")
parser.add_argument("--own-sampler", action="store_true", help="one that draws from a generator of its own")
parser.add_argument("--epoch-stop", action="store_true")
parser.add_argument("--resume-last", action="store_true", help="from the newest checkpoint that this process finds")
parser.add_argument("--compile", help="a backend of torch.compile")
parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
parser.add_argument("--fsdp", action="store_true", help="FSDP2 through Accelerate")
parser.add_argument("--log", action="store_true", help="through the job that protect returns")
parser.add_argument("--unchanged", action="store_true", help="a script that knows nothing of DeadPool")
parser.add_argument("--resume", type=Path, help="a checkpoint of Trainer's")
parsed = parser.parse_args()
parsed.out.mkdir(parents=True, exist_ok=True)
if parsed.device == "cuda":
    torch.use_deterministic_algorithms(True, warn_only=True)


class StopsEarly(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step == parsed.stop_at
        control.should_epoch_stop |= parsed.epoch_stop and state.global_step == 4


arguments = TrainingArguments(
    output_dir=str(parsed.out / "checkpoints"),
    num_train_epochs=3,
    per_device_train_batch_size=parsed.batch,
    gradient_accumulation_steps=parsed.accumulation,
    dataloader_num_workers=parsed.workers,
    dataloader_persistent_workers=parsed.persistent,
    accelerator_config={"dispatch_batches": False if parsed.no_dispatch else None},
    max_steps=16 if parsed.stream else -1,
    learning_rate=1e-3,
    lr_scheduler_type="cosine",
    warmup_steps=3,
    max_grad_norm=1.0,
    logging_steps=2,
    eval_strategy="no" if parsed.persistent else "steps",
    eval_steps=5,
    save_steps=parsed.save_every,
    save_total_limit=2,
    train_sampling_strategy=parsed.sampling,
    torch_compile_backend=parsed.compile,
    report_to=[],
    disable_tqdm=True,
    use_cpu=parsed.device == "cpu",
    ddp_backend="gloo" if parsed.device == "cpu" else "nccl",
    seed=3,
    fsdp=parsed.fsdp,
    fsdp_config={"transformer_layer_cls_to_wrap": "GPT2Block"} if parsed.fsdp else None,
)
if parsed.fsdp and arguments.device.type == "cpu":
    # Accelerate shards only where it knows of GPUs. What it does then can be done on CPUs as well.
    PartialState().distributed_type = DistributedType.MULTI_GPU
torch.manual_seed(3)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=parsed.length,
        n_embd=32 * parsed.scale,
        n_layer=2,
        n_head=2,
        attn_implementation="eager" if parsed.device == "cuda" else None,  # others are not deterministic there
        bos_token_id=0,
        eos_token_id=0,
    )
)
rows = Rows(1, parsed.rows, parsed.random_data)
trainer = Noting(
    model=model,
    args=arguments,
    data_collator=mask if parsed.mask else None,
    train_dataset=streamed(parsed.stream, rows) if parsed.stream else rows,
    eval_dataset=Rows(2, 8),
    callbacks=[Notes(parsed.out), StopsEarly()],
)
trainer.noted = []
job: Any = None if parsed.unchanged else protect(trainer)
resume = (
    get_last_checkpoint(arguments.output_dir) if parsed.resume_last and Path(arguments.output_dir).exists() else None
)
trainer.train(resume_from_checkpoint=str(parsed.resume) if parsed.resume else resume)
with (parsed.out / f"rank{arguments.process_index}.jsonl").open("a") as file:
    print(json.dumps({"digest": digest(trainer)}), file=file, flush=True)
