"""Megatron-LM's own pretrain_gpt.py, from the folder that MEGATRON_LM names, on CPUs and with data that it makes up.

Each rank notes the losses, norms and counters of every iteration and what evaluations gave, and in the end a digest of
model and optimizer. Nothing of Megatron-LM is changed but what it would ask CUDA for, and what is compiled for it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(os.environ["MEGATRON_LM"])
sys.path[:0] = [str(Path(__file__).parents[2] / "examples"), str(ROOT)]
from megatron_on_cpu import use_cpu  # noqa: E402

use_cpu()
import torch  # noqa: E402

device: Any = torch.cuda
device.device_count = lambda: 1
device.is_available = lambda: True
device.get_device_capability = lambda *_: (8, 0)
device.get_device_properties = lambda *_: SimpleNamespace(major=8, minor=0, total_memory=1 << 30)

from acts import act  # noqa: E402
from megatron.core.datasets import utils  # noqa: E402
from megatron.legacy import fused_kernels  # noqa: E402
from megatron.training import training  # noqa: E402

from deadpool.integrations.megatron import protect_pretrain  # noqa: E402

utils.compile_helpers = fused_kernels.load = lambda *_: None

SMALL = """
    --num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16
    --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 --lr-warmup-iters 2 --mock-data --tokenizer-type NullTokenizer
    --vocab-size 63 --transformer-impl local --distributed-backend gloo --no-gradient-accumulation-fusion
    --no-persist-layer-norm --attention-backend unfused --no-masked-softmax-fusion --no-bias-swiglu-fusion
    --no-bias-gelu-fusion --no-bias-dropout-fusion --no-rope-fusion --disable-bias-linear --rerun-mode disabled
    --log-interval 2 --eval-interval 4 --eval-iters 2
"""
LOG, SETUP, EVALUATE = training.training_log, training.setup_model_and_optimizer, training.evaluate
built: list[Any] = []
evaluated: list[str] = []


def note(newest: Any, losses: Any, *arguments: Any, **named: Any) -> Any:
    settings = training.get_args()
    before = {name: str(each) for name, each in losses.items()}
    found = LOG(newest, losses, *arguments, **named)
    told = {name: each.tolist() for name, each in newest.items()}
    counters = (settings.consumed_train_samples, settings.consumed_valid_samples, arguments[0], arguments[5])
    line = {"step": arguments[1] - 1, "loss": f"{told} {before} {counters} {evaluated}"}
    evaluated.clear()
    with (args.out / f"rank{settings.rank}.jsonl").open("a") as file:
        print(json.dumps({**line, "ended": time.time(), "cpu_s": time.process_time()}), file=file, flush=True)
    act(arguments[1])
    return found


def set_up(*arguments: Any, **named: Any) -> Any:
    found = SETUP(*arguments, **named)
    built.extend(found[:2])
    return found


def evaluate(*arguments: Any, **named: Any) -> Any:
    found = EVALUATE(*arguments, **named)
    evaluated.append(str({name: float(each) for name, each in found[0].items()}))
    return found


def digest() -> str:
    model, optimizer = built
    hasher = hashlib.sha256()
    for chunk in model:
        for name, each in sorted(chunk.state_dict().items()):
            if torch.is_tensor(each):
                hasher.update(name.encode() + each.detach().float().contiguous().numpy().tobytes())
    for inner in getattr(optimizer, "chained_optimizers", [optimizer]):
        for state in inner.optimizer.state.values():
            for name, each in sorted(state.items()):
                hasher.update(name.encode() + torch.as_tensor(each).detach().float().contiguous().numpy().tobytes())
    return hasher.hexdigest()


parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--out", type=Path, required=True)
args, rest = parser.parse_known_args()
args.out.mkdir(parents=True, exist_ok=True)
training.training_log, training.setup_model_and_optimizer, training.evaluate = note, set_up, evaluate
protect_pretrain(force=True)
sys.argv = [str(ROOT / "pretrain_gpt.py"), *SMALL.split(), *rest]
runpy.run_path(sys.argv[0], run_name="__main__")
with (args.out / f"rank{os.environ['RANK']}.jsonl").open("a") as file:
    print(json.dumps({"digest": digest()}), file=file, flush=True)
