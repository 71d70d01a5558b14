"""A small training with torchtitan's Trainer and a tiny Llama: accumulation, clipping, validation, checkpoints, data
that ends or begins again.

Nothing is downloaded. Each rank notes loss, gradient norm, learning rate and tokens of every step, and in the end a
digest of all that has to be as in an undisturbed run. `--main` runs torchtitan's own main, without a changed line.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import runpy
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import torch
import torch.distributed as dist
import torchtitan_cpu  # noqa: F401  # before torchtitan's trainer
from torch.utils.data import IterableDataset
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.config.configs import CommConfig, CompileConfig, DebugConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import (
    _EMBEDDING_INIT,
    _NORM_INIT,
    Llama3Model,
    _build_llama3_layers,
    _output_linear_init,
    model_registry,
)
from torchtitan.tools.profiler import Profiler
from torchtitan.trainer import Trainer

from deadpool.integrations.torchtitan import protect

VOCABULARY, LENGTH, WIDTH = 64, 16, 32


class Tokens(IterableDataset[Any]):
    """Numbers that follow from the rank, the epoch and the index. `--forgetful`: its state does not have the epoch, so
    it goes on with another one."""

    def __init__(self, rank: int, length: int, infinite: bool) -> None:
        self._rank, self._length, self._infinite = rank, length, infinite
        self._epoch = self._index = 0

    def __iter__(self) -> Any:
        while True:
            while self._index < self._length:
                seed = (self._rank * 1000 + self._epoch) * 1000 + self._index
                row = torch.randint(VOCABULARY, (LENGTH + 1,), generator=torch.Generator().manual_seed(seed))
                if args.random_data:
                    row = (row + torch.randint(3, (1,))) % VOCABULARY
                self._index += 1
                yield {"input": row[:-1], "positions": torch.arange(LENGTH)}, row[1:]
            if not self._infinite:
                return
            self._epoch, self._index = self._epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"index": self._index} | ({} if args.forgetful else {"epoch": self._epoch})

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._index, self._epoch = state["index"], state.get("epoch", 0)


class TokensLoader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        rows: int = 1000
        infinite: bool = True

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **more: Any) -> None:
        tokens = Tokens(dp_rank, config.rows, config.infinite)
        settings = (
            {"snapshot_every_n_steps": more["snapshot_every_n_steps"]} if "snapshot_every_n_steps" in more else {}
        )
        super().__init__(
            tokens, dp_rank, dp_world_size, batch_size=local_batch_size, num_workers=config.num_workers, **settings
        )


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return []

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab_size(self) -> int:
        return VOCABULARY


def note(line: dict[str, Any]) -> None:
    with (args.out / f"rank{dist.get_rank()}.jsonl").open("a") as file:
        print(json.dumps(line), file=file, flush=True)


class Notes(MetricsProcessor):
    """Each line has all that torchtitan logs except times and memory."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        pass

    def __init__(self, *more: Any, **settings: Any) -> None:
        super().__init__(*more, **settings)
        self.validated = ""

    def log(self, step: int, loss: float, most: float, norm: float, extra_metrics: Any = None) -> None:
        counted = (self.ntokens_since_last_log, len(self.data_loading_times), self.validated)
        figures = (loss.hex(), most.hex(), norm.hex(), extra_metrics, counted)
        super().log(step, loss, most, norm, extra_metrics)
        note({"step": step - 1, "loss": str(figures), "ended": time.time(), "cpu_s": time.process_time()})

    def log_validation(self, loss: float, step: int, extra_metrics: Any = None) -> None:
        kill_if_asked("validation", step)
        super().log_validation(loss, step, extra_metrics)
        self.validated += f"{step}:{loss.hex()} "


def kill_if_asked(moment: str, step: int) -> None:
    """--kill MOMENT:STEP:RANK, once in the whole job."""
    if args.kill != f"{moment}:{step}:{dist.get_rank()}":
        return
    with contextlib.suppress(FileExistsError):
        (args.out / "killed").touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)


class DyingCheckpoints(CheckpointManager):
    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):
        pass

    def dcp_save(self, state_dict: Any, checkpoint_id: str, *more: Any, **settings: Any) -> Any:
        step = int(checkpoint_id.rpartition("-")[2])
        kill_if_asked("saving", step)
        saved = super().dcp_save(state_dict, checkpoint_id, *more, **settings)
        kill_if_asked("saved", step)
        return saved


def tiny() -> Trainer.Config:
    spec = model_registry("debugmodel", attn_backend="flex")
    model = Llama3Model.Config(
        dim=WIDTH,
        vocab_size=VOCABULARY,
        tok_embeddings=Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=WIDTH, param_init=_EMBEDDING_INIT),
        norm=RMSNorm.Config(normalized_shape=WIDTH, param_init=_NORM_INIT),
        lm_head=Linear.Config(in_features=WIDTH, out_features=VOCABULARY, param_init=_output_linear_init(WIDTH)),
        layers=_build_llama3_layers(
            n_layers=args.layers,
            dim=WIDTH,
            n_heads=4,
            n_kv_heads=4,
            hidden_dim=64,
            rope=ComplexRoPE.Config(dim=WIDTH // 4, max_seq_len=LENGTH, theta=10000),
            attn_backend="flex",
        ),
    )
    for layer in model.layers:  # the others have no backward pass on CPUs
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    ranks = int(os.environ["WORLD_SIZE"]) // (args.tp * args.pp * args.replicate * args.cp)
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY))
        if args.chunked
        else CrossEntropyLoss.Config(global_vocab_size=VOCABULARY),
        model_spec=replace(spec, model=model),
        dump_folder=str(args.out / "dump"),
        tokenizer=NoTokenizer.Config(),
        optimizer=default_adamw(lr=1e-2),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2, decay_ratio=0.8, min_lr_factor=0.1),
        training=TrainingConfig(
            local_batch_size=args.batch,
            global_batch_size=args.batch * ranks * args.replicate * args.accumulation,
            seq_len=LENGTH,
            steps=args.steps,
            mixed_precision_param="float32",
            gc_freq=3,
            disable_cuda_graphs=args.pp > 1,  # with it gradients are None between steps, without it zeros
        ),
        dataloader=TokensLoader.Config(rows=args.rows, infinite=not args.finite, num_workers=args.workers),
        metrics=Notes.Config(log_freq=args.log_every, enable_tensorboard=args.tensorboard, disable_color_printing=True),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=args.replicate,
            data_parallel_shard_degree=ranks,
            tensor_parallel_degree=args.tp,
            pipeline_parallel_degree=args.pp,
            context_parallel_degree=args.cp,
            pipeline_parallel_schedule=args.schedule,
            spmd_backend=args.spmd,
        ),
        checkpoint=DyingCheckpoints.Config(
            enable=args.checkpoints > 0,
            interval=max(args.checkpoints, 1),
            keep_latest_k=2,
            last_save_model_only=False,
            async_mode=args.async_mode,
        ),
        activation_checkpoint={"selective": SelectiveAC.Config(), "full": FullAC.Config(), "none": None}[args.ac],
        compile=CompileConfig(enable=args.compile, components=["model"]),
        comm=CommConfig(trace_buf_size=0),
        validator=Validator.Config(
            enable=args.validate > 0, freq=max(args.validate, 1), steps=2, dataloader=TokensLoader.Config(rows=40)
        ),
        profiler=Profiler.Config(enable_profiling=args.profile, profile_freq=4, profiler_warmup=1),
        debug=DebugConfig(seed=args.seed, deterministic=False),
    )


def digest(trainer: Any) -> str:
    hasher = hashlib.sha256()
    for part in trainer.model_parts:
        for name, tensor in sorted(part.state_dict().items()):
            hasher.update(name.encode() + local(tensor))
    for optimizer in trainer.optimizers.optimizers:
        for index, state in sorted(optimizer.state_dict()["state"].items()):
            for name, tensor in sorted(state.items()):
                hasher.update(f"{index} {name}".encode() + local(tensor))
        hasher.update(repr([group["lr"] for group in optimizer.param_groups]).encode())
    schedulers = [(each.last_epoch, each.get_last_lr()) for each in trainer.lr_schedulers.schedulers]
    counts = (trainer.step, trainer.ntokens_seen, trainer.metrics_processor.validated)
    hasher.update(repr((schedulers, counts, trainer.dataloader.state_dict())).encode())
    return hasher.hexdigest()


def local(tensor: Any) -> bytes:
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bytes(tensor.detach().cpu().contiguous().numpy().tobytes())


class NotingTrainer(Trainer):
    """A subclass with a counter of its own."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass

    batches_seen = 0

    def post_dataloading_process(self, *inputs: Any) -> Any:
        self.batches_seen += 1
        return super().post_dataloading_process(*inputs)

    def close(self) -> None:
        note({"digest": digest(self) + f" {self.batches_seen}"})
        super().close()


parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
for name, default in (
    *(("--steps", 8), ("--batch", 2), ("--accumulation", 2), ("--rows", 1000), ("--workers", 0), ("--layers", 2)),
    *(("--tp", 1), ("--pp", 1), ("--cp", 1), ("--replicate", 1), ("--checkpoints", 0), ("--validate", 0)),
    *(("--log-every", 1), ("--seed", 3)),
):
    parser.add_argument(name, type=int, default=default)
for name in ("finite", "tensorboard", "profile", "compile", "main", "chunked", "random-data", "forgetful"):
    parser.add_argument(f"--{name}", action="store_true")
parser.add_argument("--ac", default="selective")
parser.add_argument("--spmd", default="partial_dtensor")
parser.add_argument("--schedule", default="1F1B")
parser.add_argument("--async-mode", default="disabled")
parser.add_argument("--kill", default="")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)


def noting() -> Trainer.Config:
    config = tiny()
    names = [name for name in Trainer.Config.__dataclass_fields__ if not name.startswith("_")]
    return NotingTrainer.Config(**{name: getattr(config, name) for name in names})


if args.main:
    sys.modules["tiny_titan"] = sys.modules[__name__]
    sys.argv = ["torchtitan", "--module", "tiny_titan", "--config", "noting"]
    runpy.run_module("deadpool.integrations.torchtitan", run_name="__main__")
else:
    trainer = noting().build()
    protect(trainer)
    trainer.train()
    trainer.close()
    dist.destroy_process_group()
