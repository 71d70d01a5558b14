"""Protects the engine of another library through an adapter that was written from docs/howto/adapter.md.

    deadpool run --nodes 2 --spares 1 examples/adapter_of_a_library.py
    torchrun --nproc-per-node 2 examples/adapter_of_a_library.py         # unprotected

The first part stands for the library: it knows nothing of DeadPool. The second part is all that protects it.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import deadpool

# --- the library ------------------------------------------------------------------------------------------------------


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, transposed: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ transposed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.flatten(0, -2).t() @ x.flatten(0, -2), None


class FastLinear(nn.Module):
    """A linear layer that multiplies by a transposed copy of its weight. The copy is made after each update."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.refresh()

    def refresh(self) -> None:
        self.transposed = self.weight.detach().t().contiguous()

    def forward(self, x: Tensor) -> Tensor:
        return _Multiply.apply(x, self.weight, self.transposed)


class Bucket:
    """One flat buffer for the gradients of some parameters, which are added up here over all micro-batches."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.flat = torch.zeros(sum(param.numel() for param in params))
        self.sent = self.flat.half()
        parts = self.flat.split([param.numel() for param in params])
        self.views = {param: part.view_as(param) for param, part in zip(params, parts, strict=True)}
        self.arrived = 0

    def clear(self) -> None:
        self.flat.zero_()
        self.arrived = 0


class Engine:
    """Trains a module with data parallelism: gradients are reduced in fp16, bucket by bucket, during backward."""

    def __init__(self, module: nn.Module, *, lr: float, micro_batches: int, bucket_elements: int = 6000) -> None:
        self.module, self.micro_batches = module, micro_batches
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=lr)
        self.averages = {name: param.detach().clone() for name, param in module.named_parameters()}
        self.updates, self.clean_steps, self.loss_scale = 0, 0, 2.0**19
        self.pending: list[tuple[Bucket, dist.Work]] = []
        self.buckets: list[Bucket] = []
        self._fill_buckets(bucket_elements)
        self._bucket_of = {param: bucket for bucket in self.buckets for param in bucket.views}
        for param in module.parameters():
            param.register_post_accumulate_grad_hook(self._arrived)

    def _fill_buckets(self, elements: int) -> None:
        """The last parameters come first, as their gradients do."""
        params: list[nn.Parameter] = []
        for param in reversed(list(self.module.parameters())):
            params.append(param)
            if sum(each.numel() for each in params) >= elements:
                self.buckets.append(Bucket(params))
                params = []
        if params:
            self.buckets.append(Bucket(params))

    def backward(self, loss: Tensor) -> None:
        (loss * self.loss_scale / self.micro_batches).backward()

    def _arrived(self, param: nn.Parameter) -> None:
        bucket = self._bucket_of[param]
        bucket.views[param].add_(param.grad)
        param.grad = None
        bucket.arrived += 1
        if bucket.arrived == len(bucket.views) * self.micro_batches:
            bucket.sent.copy_(bucket.flat / dist.get_world_size())
            self.pending.append((bucket, dist.all_reduce(bucket.sent, async_op=True)))

    def step(self) -> None:
        """Updates the parameters, unless a gradient was too large for fp16: then only the loss scale is halved."""
        for bucket, work in self.pending:
            work.wait()
            bucket.flat.copy_(bucket.sent)
        self.pending.clear()
        if all(bucket.flat.isfinite().all() for bucket in self.buckets):
            self._update()
        else:
            self.loss_scale, self.clean_steps = self.loss_scale / 2, 0
        for bucket in self.buckets:
            bucket.clear()

    def _update(self) -> None:
        for bucket in self.buckets:
            for param, view in bucket.views.items():
                param.grad = view / self.loss_scale
        self.optimizer.step()
        self.optimizer.zero_grad()
        for name, param in self.module.named_parameters():
            self.averages[name].lerp_(param.detach(), 0.1)
        self.refresh()
        self.updates, self.clean_steps = self.updates + 1, self.clean_steps + 1
        if self.clean_steps % 3 == 0:
            self.loss_scale *= 2

    def refresh(self) -> None:
        for layer in self.module.modules():
            if isinstance(layer, FastLinear):
                layer.refresh()


# --- its protection ---------------------------------------------------------------------------------------------------


class Counters:
    """State: the numbers of the engine that have to survive."""

    NAMES = ("updates", "clean_steps", "loss_scale")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def state_dict(self) -> dict[str, float]:
        return {name: getattr(self._engine, name) for name in self.NAMES}

    def load_state_dict(self, state: dict[str, float]) -> None:
        for name in self.NAMES:
            setattr(self._engine, name, state[name])


class EngineAdapter(deadpool.Adapter):
    """Leftovers: what the engine keeps while one of its steps runs, and what follows from its parameters."""

    name = "engine"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def reset(self) -> None:
        for _, work in self._engine.pending:
            with contextlib.suppress(RuntimeError):  # it was aborted, and writes into its bucket no more
                work.wait()
        self._engine.pending.clear()
        for bucket in self._engine.buckets:
            bucket.clear()

    def seated(self, resume_step: int) -> None:
        self._engine.refresh()

    def replicas(self) -> dict[int, tuple[int, ...]]:
        everyone = tuple(range(dist.get_world_size()))
        return {id(param): everyone for param in self._engine.module.parameters()}


# --- the training -----------------------------------------------------------------------------------------------------

VOCABULARY, LENGTH, MICRO_BATCHES = 64, 16, 2


def counting(step: int, micro_batch: int, rank: int) -> Tensor:
    """Sequences that count upwards in random strides."""
    generator = torch.Generator().manual_seed((1_000_003 * step + micro_batch) * 1009 + rank)
    start, stride = torch.randint(1, VOCABULARY, (2, 8, 1), generator=generator)
    return (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    width = args.width
    module = nn.Sequential(
        nn.Embedding(VOCABULARY, width),
        FastLinear(width, 2 * width),
        nn.GELU(),
        nn.Dropout(0.1),
        FastLinear(2 * width, VOCABULARY),
    )
    engine = Engine(module, lr=1e-2, micro_batches=MICRO_BATCHES)
    torch.manual_seed(1 + dist.get_rank())  # dropout
    job = deadpool.protect(
        model=engine.module,
        optimizer=engine.optimizer,
        averages=engine.averages,
        counters=Counters(engine),
        adapters=[EngineAdapter(engine)],
    )
    for step in job.steps(args.steps):
        with step:
            for micro_batch in range(MICRO_BATCHES):
                tokens = counting(step.number, micro_batch, dist.get_rank())
                loss = F.cross_entropy(module(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
                engine.backward(loss)
            engine.step()
            if not step.dry:
                text = f"loss {loss.item():.9g} updates {engine.updates} scale {engine.loss_scale:g}"
                print(f"rank {dist.get_rank()} step {step.number} {text}", flush=True)
    print(f"rank {dist.get_rank()} ends with state {job.digest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
