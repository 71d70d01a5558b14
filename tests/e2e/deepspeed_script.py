"""A small training with DeepSpeed, whose loop is the script's: accumulation, clipping, dropout, a scheduler of
DeepSpeed, overflows on request. Nothing is downloaded.

Each rank notes the losses and counters of every step, and in the end a digest of parameters, master partitions,
moments, loss scaler and scheduler.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from deadpool.integrations.deepspeed import protect

WIDTH = 24


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 32)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.skips = False
        if args.frozen:
            self.blocks[0].inner[0].weight.requires_grad = False

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen += tokens.numel()
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks[: 2 if self.skips else 3]:
            x = checkpoint(block, x, use_reentrant=False) if args.recompute else block(x)
        return nn.functional.cross_entropy(self.head(x).float().flatten(0, 1), tokens[:, 1:].flatten())


class Batches:
    """Draws from a generator of its own, which differs from rank to rank."""

    def __init__(self, rank: int) -> None:
        self._generator = torch.Generator().manual_seed(100 + rank)

    def __next__(self) -> Tensor:
        return torch.randint(32, (4, 9), generator=self._generator)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


def configuration() -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": args.stage, "reduce_bucket_size": args.bucket, "allgather_bucket_size": 2000}
    zero |= {"overlap_comm": args.overlap, "contiguous_gradients": not args.scattered}
    zero |= json.loads(args.zero)
    more: dict[str, Any] = json.loads(args.more)
    if args.dtype == "fp16":
        more["fp16"] = {
            "enabled": True,
            "initial_scale_power": 8,
            "loss_scale_window": 3,
            "hysteresis": 2,
            "min_loss_scale": 1,
        }
    elif args.dtype == "bf16":
        more["bf16"] = {"enabled": True}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": args.accumulation,
        "gradient_clipping": args.clip,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 3, "total_num_steps": 20}},
        "steps_per_print": 1000,
        **more,
    }


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    trained = [each for each in model.parameters() if each.requires_grad]
    thick, thin = [each for each in trained if each.ndim > 1], [each for each in trained if each.ndim == 1]
    return [{"params": thick, "weight_decay": 0.1}, {"params": thin, "weight_decay": 0.0}]


@contextlib.contextmanager
def overflow(model: Net, step: int) -> Iterator[None]:
    """Makes the gradient of one parameter infinite in these steps, on one rank."""
    if step not in args.overflow or deepspeed.comm.get_rank() != 1:
        yield
        return
    hook = model.head.weight.register_hook(lambda gradient: torch.full_like(gradient, torch.inf))
    try:
        yield
    finally:
        hook.remove()


def digest(engine: Any) -> str:
    hasher = hashlib.sha256()
    for name, tensor in [*state_of(engine)]:
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hasher.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    scheduler = {name: each for name, each in vars(engine.lr_scheduler).items() if name != "optimizer"}
    hasher.update(json.dumps([figures(engine), scheduler], default=str).encode())
    return hasher.hexdigest()


def state_of(engine: Any) -> Any:
    for name, parameter in engine.module.named_parameters():
        yield name, getattr(parameter, "ds_tensor", parameter).data.reshape(-1)
    for name, buffer in engine.module.named_buffers():
        yield name, buffer.reshape(-1)
    inner = engine.optimizer if isinstance(engine.optimizer, torch.optim.Optimizer) else engine.optimizer.optimizer
    held = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)
    masters = held if held is not None else [each for group in inner.param_groups for each in group["params"]]
    for index, master in enumerate(masters):
        yield f"master {index}", master.reshape(-1)
        for name, value in sorted(inner.state[master].items()):
            yield f"moment {index} {name}", torch.as_tensor(value).reshape(-1)


def figures(engine: Any) -> list[Any]:
    counters = [engine.global_steps, engine.micro_steps, engine.global_samples, engine.skipped_steps]
    scaler = getattr(engine.optimizer, "loss_scaler", None) or getattr(engine.optimizer, "loss_scale_config", None)
    scale = {name: str(each) for name, each in sorted(vars(scaler).items())} if scaler is not None else {}
    norm = engine.get_global_grad_norm()
    return [*counters, engine.get_lr(), scale, None if norm is None else float(norm)]


parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--dtype", default="bf16")
parser.add_argument("--accumulation", type=int, default=2)
parser.add_argument("--clip", type=float, default=0.5)
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--bucket", type=int, default=3000)
parser.add_argument("--overlap", action="store_true")
parser.add_argument("--scattered", action="store_true", help="gradients that are not copied into one buffer")
parser.add_argument("--recompute", action="store_true", help="checkpoint activations")
parser.add_argument("--frozen", action="store_true")
parser.add_argument("--overflow", type=int, nargs="*", default=[], help="steps whose gradients are infinite")
parser.add_argument("--save-at", type=int, default=-1)
parser.add_argument("--zero", default="{}", help="more settings of zero_optimization")
parser.add_argument("--more", default="{}", help="more settings")
parser.add_argument("--wrong-end", action="store_true", help="a step that ends in the middle of an accumulation")
parser.add_argument("--skip-block", type=int, default=-1, help="from this step on one block is not used")
parser.add_argument("--load", type=Path, help="begin with this checkpoint")
parser.add_argument("--kind", default="AdamW")
parser.add_argument("--local_rank", type=int, help="as DeepSpeed's launcher passes it")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

get_accelerator().is_fp16_supported = lambda: True  # CPUs compute it slowly, and exactly
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # takes a minute to compile, and training never uses it
torch.manual_seed(3)
model = Net()
options = {"lr": 1e-2} | ({"betas": (0.9, 0.95)} if "Adam" in args.kind else {})
optimizer = getattr(torch.optim, args.kind)(parameter_groups(model), **options)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=configuration())
assert args.local_rank in (None, deepspeed.comm.get_local_rank())
rank = deepspeed.comm.get_rank()
torch.manual_seed(1000 + rank)
batches = Batches(rank)
if args.load is not None:
    engine.load_checkpoint(str(args.load), tag="saved")
job = protect(engine, data=batches)

with (args.out / f"rank{rank}.jsonl").open("a") as file:
    for step in job.steps(args.steps):
        with step, overflow(model, step.number):
            losses, model.skips = [], 0 <= args.skip_block <= step.number
            for _ in range(args.accumulation):
                loss = engine(next(batches))
                engine.backward(loss)
                engine.step()
                losses.append(loss.item().hex())
            if args.wrong_end and step.number == 3 and not step.dry:
                engine.backward(engine(next(batches)))
            if step.number == args.save_at and not step.dry:
                engine.save_checkpoint(str(args.out / "checkpoint"), tag="saved")
            times = {"ended": time.time(), "cpu_s": time.process_time()}
            line = {"step": step.number, "loss": f"{losses} {figures(engine)}", **times}
            if not step.dry:
                print(json.dumps(line), file=file, flush=True)
    print(json.dumps({"digest": digest(engine)}), file=file, flush=True)
