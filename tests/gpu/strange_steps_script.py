"""Steps on a device that no layout of the workload has.

cp      2 x 2: FSDP2 over all ranks, attention over sequences that two ranks share (context parallel), bf16
scaler  DDP, torch.compile, fp16 by autocast with a GradScaler, activation checkpointing
graph   a CUDA graph of forward, backward and the reduction over ranks: collectives in a graph
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import deadpool

sys.path.insert(0, str(Path(__file__).parents[1] / "e2e"))
from acts import act
from small_job import STEPS, WIDTH, Block, make_model, make_parser, note_step

HEADS, LENGTH = 4, 64


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def batch_of(step: int, replica: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(1_000_003 * step + replica)
    return torch.randn(*shape, generator=generator).cuda()


Step = Callable[[int], Tensor]


def make_cp() -> tuple[nn.Module, torch.optim.Optimizer, Step, dict[str, object]]:
    from torch.distributed.tensor.experimental import context_parallel

    mesh: DeviceMesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "cp"))
    torch.manual_seed(0)
    width = 32 * HEADS
    model = nn.Sequential(Attention(width), Attention(width)).to("cuda", torch.bfloat16)
    for layer in model:
        fully_shard(layer, mesh=mesh["dp", "cp"]._flatten("all"))
    fully_shard(model, mesh=mesh["all"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def run(number: int) -> Tensor:
        x = batch_of(number, mesh["dp"].get_local_rank(), 2, LENGTH, width).bfloat16()
        with context_parallel(mesh["cp"], buffers=[x], buffer_seq_dims=[1], no_restore_buffers={x}):
            loss = model(x).float().square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return model, optimizer, run, {}


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def make_scaler() -> tuple[nn.Module, torch.optim.Optimizer, Step, dict[str, object]]:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Checkpointed().cuda(), device_ids=[torch.cuda.current_device()])
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=2)  # its first steps overflow

    def run(number: int) -> Tensor:
        for part in range(2):
            with torch.autocast("cuda", torch.float16):
                loss = compiled(batch_of(2 * number + part, dist.get_rank(), 6, WIDTH)).float().square().mean() / 2
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    return model, optimizer, run, {"scaler": scaler}


def make_graph() -> tuple[nn.Module, torch.optim.Optimizer, Step, dict[str, object]]:
    model = make_model().cuda().eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    batch = torch.zeros(6, WIDTH, device="cuda")

    def compute() -> Tensor:
        loss = model(batch).square().mean()
        loss.backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)
        return loss

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            compute()
    torch.cuda.current_stream().wait_stream(aside)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = compute()

    def run(number: int) -> Tensor:
        batch.copy_(batch_of(number, dist.get_rank(), 6, WIDTH))
        graph.replay()
        optimizer.step()
        return loss

    return model, optimizer, run, {}


KINDS = {"cp": make_cp, "scaler": make_scaler, "graph": make_graph}

parser = make_parser()
parser.add_argument("--kind", choices=list(KINDS), required=True)
args = parser.parse_args()
torch.use_deterministic_algorithms(True, warn_only=True)
pool = deadpool.join(backend="nccl")
torch.cuda.set_device(0)
model, optimizer, run, more = KINDS[args.kind]()
torch.manual_seed(1 + pool.rank)
job = pool.protect(model=model, optimizer=optimizer, **more)
args.out.mkdir(parents=True, exist_ok=True)
with (args.out / f"rank{pool.rank}.jsonl").open("a") as file:
    for step in job.steps(STEPS):
        with step:
            if not step.dry:
                act(step.number)
            loss = run(step.number)
            if not step.dry:
                act(100 + step.number)
            dist.all_reduce(torch.ones(1, device="cuda"))  # so that survivors are cut off behind their optimizers
            if not step.dry:
                note_step(file, step.number, loss)
    print(json.dumps({"digest": job.digest()}), file=file)
dist.destroy_process_group()
