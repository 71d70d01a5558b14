"""Trains a small GPT on generated tokens with Megatron-Core, protected by four lines.

deadpool run --nodes 2 --spares 1 examples/train_megatron.py                     # on the CPU: data parallel
deadpool run --nodes 4 --spares 1 examples/train_megatron.py --tensor 2          # tensor x data parallel
torchrun --nproc-per-node 2 examples/train_megatron.py                           # unprotected
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

SEQUENCE, VOCABULARY, MICROBATCH = 64, 128, 4


class Tokens:
    """Sequences in which every token follows from the two before it. Where the next batch begins is its state."""

    def __init__(self, seed: int, device: str) -> None:
        self._seed, self._device, self.position = seed, device, 0

    def __next__(self) -> Tensor:
        generator = torch.Generator().manual_seed(1_000_000 * self._seed + self.position)
        self.position += 1
        tokens = torch.randint(VOCABULARY, (MICROBATCH, SEQUENCE + 1), generator=generator)
        for index in range(2, SEQUENCE + 1):
            tokens[:, index] = (tokens[:, index - 1] + tokens[:, index - 2]) % VOCABULARY
        return tokens.to(self._device)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def forward_step(device: str, batches: Tokens, model: Any) -> tuple[Tensor, Any]:
    tokens = next(batches)
    positions = torch.arange(SEQUENCE, device=device).expand(MICROBATCH, -1)
    losses = model(tokens[:, :-1], positions, None, labels=tokens[:, 1:])

    def loss_of(losses: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss = losses.float().mean()
        return loss, {"loss": loss.detach()}

    return losses, loss_of


def build(args: argparse.Namespace, device: str) -> tuple[Any, Any, Any]:
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.transformer import TransformerConfig

    parallel_state.initialize_model_parallel(args.tensor, args.pipeline, create_gloo_process_groups=False)
    torch.manual_seed(1)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=args.layers,
        hidden_size=args.width,
        num_attention_heads=4,
        tensor_model_parallel_size=args.tensor,
        pipeline_model_parallel_size=args.pipeline,
        pipeline_dtype=torch.float32,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        finalize_model_grads_func=finalize_model_grads,
    )
    gpt = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        VOCABULARY,
        SEQUENCE,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    ).to(device)
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True)
    model = DistributedDataParallel(config, ddp, gpt)
    settings = OptimizerConfig(lr=1e-3, min_lr=1e-4, use_distributed_optimizer=True, clip_grad=1.0)
    optimizer = get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)
    samples = args.steps * args.microbatches * MICROBATCH
    scheduler = OptimizerParamScheduler(
        optimizer, 0.0, 1e-3, 1e-4, samples // 10, samples, "cosine", 0.01, 0.01, samples, "constant"
    )
    return model, optimizer, scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    args = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    device = "cuda" if has_gpu else "cpu"
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        from megatron_on_cpu import use_cpu

        use_cpu()
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    from deadpool.integrations.megatron import protect

    dist.init_process_group("nccl" if has_gpu else "gloo")
    model, optimizer, scheduler = build(args, device)
    batches = Tokens(parallel_state.get_data_parallel_rank(), device)
    counters = SimpleNamespace(consumed_samples=0)
    times: list[float] = []

    job = protect(model, optimizer=optimizer, scheduler=scheduler, data=batches, counters=counters)
    for step in job.steps(args.steps):
        with step:
            began = time.perf_counter()
            model.zero_grad_buffer()
            optimizer.zero_grad()
            losses = get_forward_backward_func()(
                forward_step_func=partial(forward_step, device),
                data_iterator=batches,
                model=[model],
                num_microbatches=args.microbatches,
                seq_length=SEQUENCE,
                micro_batch_size=MICROBATCH,
                forward_only=False,
            )
            optimizer.step()
            samples = args.microbatches * MICROBATCH * parallel_state.get_data_parallel_world_size()
            scheduler.step(increment=samples)
            counters.consumed_samples += samples
            if losses and not step.dry and step.number % 10 == 9 and parallel_state.get_data_parallel_rank() == 0:
                loss = sum(each["loss"].item() for each in losses) / len(losses)
                print(f"step {step.number}: loss {loss:.6f}, {counters.consumed_samples} samples", flush=True)
            times.append(time.perf_counter() - began)
    if dist.get_rank() == 0 and len(times) > 10:
        print(f"median step {1e3 * statistics.median(times[5:]):.2f} ms", flush=True)


if __name__ == "__main__":
    main()
