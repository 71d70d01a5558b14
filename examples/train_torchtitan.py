"""Trains a small Llama on generated tokens with torchtitan, protected by two lines. On CPUs too (torchtitan_cpu.py).

deadpool run --nodes 2 --spares 1 examples/train_torchtitan.py
torchrun --nproc-per-node 2 examples/train_torchtitan.py      # unprotected
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import torchtitan_cpu  # noqa: F401  # before torchtitan's trainer
from torch.utils.data import IterableDataset
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.tools.logging import init_logger
from torchtitan.trainer import Trainer

from deadpool.integrations.torchtitan import protect

VOCABULARY, LENGTH = 2048, 64


class Counting(IterableDataset[Any]):
    """Rows that count up by one of a few strides, which the model can learn. `_index` is its whole state."""

    def __init__(self, rank: int) -> None:
        self._rank, self._index = rank, 0

    def __iter__(self) -> Any:
        while True:
            generator = torch.Generator().manual_seed(self._rank * 1_000_000 + self._index)
            first, stride = torch.randint(1, 50, (2,), generator=generator).tolist()
            row = (first + stride * torch.arange(LENGTH + 1)) % VOCABULARY
            self._index += 1
            yield {"input": row[:-1], "positions": torch.arange(LENGTH)}, row[1:]

    def state_dict(self) -> dict[str, int]:
        return {"index": self._index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._index = state["index"]


class CountingLoader(ParallelAwareDataloader):
    @dataclass(kw_only=True, slots=True)
    class Config(ParallelAwareDataloader.Config):
        pass

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **_: Any) -> None:
        super().__init__(Counting(dp_rank), dp_rank, dp_world_size, batch_size=local_batch_size)


class NoTokenizer(BaseTokenizer):
    """The data are numbers already."""

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


def configure(out: str, steps: int) -> Trainer.Config:
    config = llama3_debugmodel()
    if not torch.accelerator.is_available():
        for layer in config.model_spec.model.layers:  # flex attention has no backward pass on CPUs
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return replace(
        config,
        dump_folder=out,
        tokenizer=NoTokenizer.Config(),
        dataloader=CountingLoader.Config(),
        training=TrainingConfig(
            local_batch_size=4, seq_len=LENGTH, steps=steps, disable_cuda_graphs=True, mixed_precision_param="float32"
        ),
        metrics=MetricsProcessor.Config(log_freq=1, disable_color_printing=True),
        parallelism=ParallelismConfig(spmd_backend="partial_dtensor"),
        checkpoint=CheckpointManager.Config(enable=True, interval=10, last_save_model_only=False),
        debug=replace(config.debug, seed=1, enable_structured_logging=False),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="out/torchtitan", help="folder for checkpoints and logs")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    init_logger()
    trainer = configure(args.out, args.steps).build()
    protect(trainer)
    trainer.train()
    trainer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
