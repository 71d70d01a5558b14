"""Trains a causal language model of Hugging Face transformers with FSDP2, built from a config without a download.

deadpool run --nodes 2 --spares 1 examples/train_hf.py --model llama
torchrun --nproc-per-node 2 examples/train_hf.py --model gpt2      # unprotected
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, get_cosine_schedule_with_warmup

import deadpool

VOCABULARY = 512


def build(kind: str, layers: int, width: int, context: int) -> tuple[nn.Module, list[nn.Module]]:
    """Returns the model, and the parts of it that FSDP gathers one by one."""
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    if kind == "gpt2":
        config = GPT2Config(vocab_size=VOCABULARY, n_positions=context, n_embd=width, n_layer=layers, n_head=4, **ends)
        model = AutoModelForCausalLM.from_config(config)
        return model, list(model.transformer.h)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=context,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=0.1,
        **ends,
    )
    model = AutoModelForCausalLM.from_config(config)
    return model, list(model.model.layers)


class Counting:
    """Sequences that count upwards from random numbers in random strides, so that there is something to learn."""

    def __init__(self, *, batch: int, context: int, rank: int) -> None:
        self.batch, self.context, self.rank, self.position = batch, context, rank, 0

    def __next__(self) -> Tensor:
        generator = torch.Generator().manual_seed(1_000_003 * self.position + self.rank)
        self.position += 1
        start, stride = torch.randint(1, VOCABULARY, (2, self.batch, 1), generator=generator)
        return (start + stride * torch.arange(self.context)) % VOCABULARY

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("llama", "gpt2"), default="llama")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank")
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    device = torch.device("cpu")
    if args.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend)

    torch.manual_seed(0)
    model, parts = build(args.model, args.layers, args.width, args.context)
    model.to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in parts:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=5, num_training_steps=args.steps)
    data = Counting(batch=args.batch, context=args.context, rank=dist.get_rank())
    torch.manual_seed(1 + dist.get_rank())  # dropout
    job = deadpool.protect(model=model, optimizer=optimizer, scheduler=scheduler, data=data)

    for step in job.steps(args.steps):
        with step:
            tokens = next(data).to(device)
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if dist.get_rank() == 0 and not step.dry:
                print(f"step {step.number} loss {loss.item():.9g}", flush=True)
    print(f"rank {dist.get_rank()} ends with state {job.digest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
