"""Trains a Llama-style decoder with pipeline, FSDP2 and tensor parallelism in any combination, in one file.

    deadpool run --nodes 4 --nproc-per-node 2 --spares 1 examples/train_3d.py --pp 2 --dp 2 --tp 2
    torchrun --nproc-per-node 4 examples/train_3d.py --pp 2 --tp 2 --schedule gpipe      # unprotected
    python examples/train_3d.py                                                          # one rank

All layouts compute the same training for the same --batch, except for the order of floating-point additions.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import deadpool

# --- the model: an embedding, decoder layers, an output ---------------------------------------------------------------


def rotate(x: Tensor) -> Tensor:
    """Applies rotary position embedding to a tensor of (batch, heads, positions, width)."""
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    left, right = x[..., :half], x[..., half:]
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1)


class Layer(nn.Module):
    """Attention with grouped queries, then SwiGLU. With tensor parallelism each rank has some of the heads."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.head_width = args.width // args.heads
        shared = args.kv_heads * self.head_width
        self.norm_1, self.norm_2 = nn.RMSNorm(args.width), nn.RMSNorm(args.width)
        self.q, self.k, self.v = (nn.Linear(args.width, n, bias=False) for n in (args.width, shared, shared))
        self.out = nn.Linear(args.width, args.width, bias=False)
        self.gate, self.up = (nn.Linear(args.width, 3 * args.width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * args.width, args.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm_1(x))
        h = self.norm_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for each in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Output(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.norm, self.logits = nn.RMSNorm(args.width), nn.Linear(args.width, args.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))


class Embedding(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(args.vocabulary, args.width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens)


def decoder(args: argparse.Namespace) -> list[nn.Module]:
    """Makes the whole model, the same on every rank; each rank keeps its part. A large model would be made on the meta
    device."""
    torch.manual_seed(0)
    return [Embedding(args), *(Layer(args) for _ in range(args.layers)), Output(args)]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# --- the layout -------------------------------------------------------------------------------------------------------

WHOLE, SPLIT = Replicate(), Shard(1)  # activations between modules are split along the sequence
TENSOR_PLANS: dict[type[nn.Module], Callable[[], dict]] = {
    Embedding: lambda: {"tokens": RowwiseParallel(input_layouts=WHOLE, output_layouts=SPLIT)},
    Layer: lambda: {
        "norm_1": SequenceParallel(),
        "norm_2": SequenceParallel(),
        **{name: ColwiseParallel(input_layouts=SPLIT) for name in ("q", "k", "v", "gate", "up")},
        **{name: RowwiseParallel(output_layouts=SPLIT) for name in ("out", "down")},
    },
    Output: lambda: {
        "norm": SequenceParallel(),
        "logits": ColwiseParallel(input_layouts=SPLIT, output_layouts=WHOLE),
    },
}


def part_of(index: int, stages: int, mesh: DeviceMesh, args: argparse.Namespace, device: torch.device) -> nn.Sequential:
    """Returns the pieces of one pipeline stage, split over tp and then sharded over dp."""
    pieces = decoder(args)
    share, left = divmod(len(pieces), stages)
    start = index * share + min(index, left)
    own = [piece.to(device) for piece in pieces[start : start + share + (index < left)]]
    part = nn.Sequential(*own)
    if args.tp > 1:
        for piece in own:
            parallelize_module(piece, mesh["tp"], TENSOR_PLANS[type(piece)]())
    if args.dp > 1:
        for piece in own:
            fully_shard(piece, mesh=mesh["dp"], reshard_after_forward=args.pp == 1)
        fully_shard(part, mesh=mesh["dp"], reshard_after_forward=args.pp == 1)
    return part


class Training:
    """This rank's parts of the model, and one training step through them."""

    def __init__(self, args: argparse.Namespace, mesh: DeviceMesh, device: torch.device) -> None:
        self.mesh, self.device = mesh, device
        stages = args.pp * (2 if args.schedule == "interleaved" else 1)
        own = range(mesh["pp"].get_local_rank(), stages, args.pp)
        parts = [part_of(index, stages, mesh, args, device) for index in own]
        self.model = nn.ModuleList(parts)
        self.is_first, self.is_last = own[0] == 0, own[-1] == stages - 1
        self.schedule = None
        if args.pp > 1:
            self.schedule = self.make_schedule(args, dict(zip(own, parts, strict=True)), stages)

    def make_schedule(self, args: argparse.Namespace, parts: dict[int, nn.Sequential], stages: int):
        micro_batch = args.batch // args.dp // args.micro_batches

        def example(*shape: int) -> Tensor:
            return torch.empty(micro_batch, *shape, device="meta", requires_grad=True)

        tokens = torch.empty(micro_batch, args.context, dtype=torch.int64, device="meta")
        between, logits = example(args.context // args.tp, args.width), example(args.context, args.vocabulary)
        made = [
            PipelineStage(
                part,
                index,
                stages,
                self.device,
                input_args=tokens if index == 0 else between,
                output_args=logits if index == stages - 1 else between,
                group=self.mesh.get_group("pp"),
            )
            for index, part in parts.items()
        ]
        if args.schedule == "interleaved":
            return ScheduleInterleaved1F1B(made, args.micro_batches, loss_fn=loss_of)
        kind = ScheduleGPipe if args.schedule == "gpipe" else Schedule1F1B
        return kind(made[0], args.micro_batches, loss_fn=loss_of)

    def forward_backward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean loss of the whole batch, on every rank."""
        losses: list[Tensor] = []
        if self.schedule is None:
            losses.append(loss_of(self.model[0](tokens), targets))
            losses[0].backward()
        else:
            inputs = (tokens,) if self.is_first else ()
            self.schedule.step(*inputs, **({"target": targets, "losses": losses} if self.is_last else {}))
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros((), device=self.device)
        dist.all_reduce(loss)
        return loss / (self.mesh["dp"].size() * self.mesh["tp"].size())  # the number of ranks that have a loss

    def clip(self, max_norm: float) -> None:
        """Clips by the norm of the gradients of all stages."""
        parameters = list(self.model.parameters())
        norm = nn.utils.get_total_norm([each.grad for each in parameters])
        squared = (norm.full_tensor() if isinstance(norm, DTensor) else norm).square()
        dist.all_reduce(squared, group=self.mesh.get_group("pp"))
        scale = torch.clamp(max_norm / (squared.sqrt() + 1e-6), max=1.0)
        for each in parameters:
            (each.grad.to_local() if isinstance(each.grad, DTensor) else each.grad).mul_(scale)


class Counting:
    """Sequences that count upwards in random strides. Ranks with the same dp position get the same sequences."""

    def __init__(self, args: argparse.Namespace, dp_rank: int) -> None:
        self.args, self.dp_rank, self.position = args, dp_rank, 0

    def __next__(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.position)
        self.position += 1
        start, stride = torch.randint(1, self.args.vocabulary, (2, self.args.batch, 1), generator=generator)
        whole = (start + stride * torch.arange(self.args.context + 1)) % self.args.vocabulary
        own = whole.chunk(self.args.dp)[self.dp_rank]
        return own[:, :-1].contiguous(), own[:, 1:].contiguous()

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pp", type=int, default=1, help="pipeline ranks")
    parser.add_argument("--dp", type=int, default=1, help="ranks that FSDP2 shards over")
    parser.add_argument("--tp", type=int, default=1, help="tensor and sequence parallel ranks")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b", "interleaved"), default="1f1b")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8, help="sequences per step, of all ranks together")
    parser.add_argument("--micro-batches", type=int, default=4, help="micro-batches per step in a pipeline")
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    device = torch.device("cpu")
    if args.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend)
    shape = (args.pp, args.dp, args.tp)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
    training = Training(args, mesh, device)
    optimizer = torch.optim.AdamW(training.model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    data = Counting(args, mesh["dp"].get_local_rank())
    job = deadpool.protect(model=training.model, optimizer=optimizer, scheduler=scheduler, data=data)

    for step in job.steps(args.steps):
        with step:
            tokens, targets = (each.to(device) for each in next(data))
            loss = training.forward_backward(tokens, targets)
            training.clip(1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0 and not step.dry:
                print(f"step {step.number} loss {loss.item():.9g}", flush=True)
    print(f"rank {dist.get_rank()} ends with state {job.digest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
