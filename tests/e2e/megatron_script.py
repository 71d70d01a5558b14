"""A small GPT with Megatron-Core, in any layout: data, tensor, pipeline (also interleaved) and expert parallel.

Each rank notes what it knows of every step, and in the end a digest of all that has to be as in an undisturbed run.
Without a GPU, `--device cpu` puts Megatron on the CPU (examples/megatron_on_cpu.py).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[2] / "examples"))
VOCABULARY, LAYERS = 64, 4

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--device", default="cpu")
parser.add_argument("--backend", default="gloo")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--sequence", type=int, default=16)
parser.add_argument("--micro-batch", type=int, default=2)
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--pipeline", type=int, default=1)
parser.add_argument("--chunks", type=int, default=None, help="model chunks per pipeline rank")
parser.add_argument("--expert", type=int, default=1)
parser.add_argument("--experts", type=int, default=None)
parser.add_argument("--microbatches", type=int, default=2)
parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
parser.add_argument("--scale", type=int, default=17, help="of the loss in fp16 at the start, as a power of 2")
parser.add_argument("--distributed-optimizer", action="store_true")
parser.add_argument("--overlap", action="store_true", help="reduce gradients, and gather parameters, meanwhile")
parser.add_argument("--align", action="store_true", help="let the schedule begin what overlaps")
parser.add_argument("--sequence-parallel", action="store_true")
parser.add_argument("--recompute", choices=["full", "selective"], default=None)
parser.add_argument("--rampup", action="store_true", help="the batch grows, microbatch by microbatch")
parser.add_argument("--evaluate-every", type=int, default=0)
parser.add_argument("--late-hooks", action="store_true", help="gather in forward only from the second step on")
parser.add_argument("--no-zeroing", action="store_true", help="what cannot be protected")
parser.add_argument("--refused", default="", help="a field of the model's configuration that cannot be protected")
parser.add_argument("--refused-update", default="", help="one of the optimizer's")
parser.add_argument("--timing-level", type=int, default=2, help="from 1 on timers wait for the whole device")
parser.add_argument("--capture-turns", type=int, default=0, help="capture nothing in every other so many steps")
parser.add_argument("--reruns", action="store_true", help="let Megatron's own machine run steps again")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

if args.device == "cpu":
    from megatron_on_cpu import use_cpu

    use_cpu()
else:
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True, warn_only=True)

from megatron.core import parallel_state, tensor_parallel, timers  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.num_microbatches_calculator import (  # noqa: E402
    get_current_global_batch_size,
    get_num_microbatches,
    init_num_microbatches_calculator,
    update_num_microbatches,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine  # noqa: E402
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker  # noqa: E402
from megatron.core.transformer import TransformerConfig, transformer_block  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.moe.moe_utils import get_moe_layer_wise_logging_tracker, track_moe_metrics  # noqa: E402

from deadpool.integrations.megatron import protect  # noqa: E402

if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None  # without Transformer Engine 0.16.1 does not define it, and looks it up
DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
IS_HALF = args.precision != "fp32"


class Norm(torch.nn.LayerNorm):
    """Without apex and Transformer Engine, Megatron has none for sequence parallel regions."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__(hidden_size, eps, dtype=DTYPE)
        for param in self.parameters():
            param.sequence_parallel = config.sequence_parallel


def layer_spec() -> Any:
    spec = get_gpt_layer_local_spec(num_experts=args.experts)
    if args.sequence_parallel:
        transformer_block.LayerNormImpl = spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    return spec


class Tokens:
    """Batches of one data parallel rank, without end. Their position is its state."""

    def __init__(self, seed: int) -> None:
        self._seed, self.position = seed, 0

    def __next__(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * self._seed + self.position)
        self.position += 1
        start, stride = torch.randint(VOCABULARY, (2, args.micro_batch, 1), generator=generator)
        tokens = (start + stride * torch.arange(args.sequence + 1)) % VOCABULARY
        return tokens.to(args.device)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def model_config() -> TransformerConfig:
    moe: dict[str, Any] = {}
    if args.experts is not None:
        moe = {
            "num_moe_experts": args.experts,
            "moe_router_topk": 2,
            "moe_aux_loss_coeff": 0.01,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_enable_expert_bias": True,
            "moe_router_score_function": "sigmoid",
            "moe_ffn_hidden_size": 2 * args.width,
            "add_bias_linear": False,
        }
    recompute: dict[str, Any] = {"recompute_granularity": args.recompute}
    if args.recompute == "full":
        recompute |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=LAYERS,
        hidden_size=args.width,
        num_attention_heads=4,
        tensor_model_parallel_size=args.tensor,
        pipeline_model_parallel_size=args.pipeline,
        virtual_pipeline_model_parallel_size=args.chunks,
        expert_model_parallel_size=args.expert,
        sequence_parallel=args.sequence_parallel,
        pipeline_dtype=DTYPE,
        params_dtype=DTYPE,
        bf16=args.precision == "bf16",
        fp16=args.precision == "fp16",
        hidden_dropout=0.1,
        attention_dropout=0.1,
        deterministic_mode=False,
        gradient_accumulation_fusion=False,
        timers=timers.Timers(args.timing_level, "minmax"),
        **moe,
        **recompute,
    )


def make_chunk(config: TransformerConfig, index: int | None) -> DistributedDataParallel:
    stage = {"ignore_virtual": False, "vp_stage": index}
    model: Any = GPTModel(
        config,
        layer_spec(),
        VOCABULARY,
        args.sequence,
        pre_process=parallel_state.is_pipeline_first_stage(**stage),
        post_process=parallel_state.is_pipeline_last_stage(**stage),
        share_embeddings_and_output_weights=args.pipeline > 1,
        vp_stage=index,
    ).to(args.device)
    if IS_HALF:
        model = Float16Module(config, model)
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=args.distributed_optimizer,
        overlap_grad_reduce=args.overlap,
        overlap_param_gather=args.overlap and args.distributed_optimizer,
        align_param_gather=args.align,
        grad_reduce_in_fp32=IS_HALF,
        check_for_nan_in_grad=args.precision != "fp16",
        bucket_size=6000,
    )
    return DistributedDataParallel(config, ddp, model, disable_bucketing=bool(index))


def forward_step(batches: Tokens, model: Any) -> tuple[torch.Tensor, Any]:
    tokens = next(batches)
    positions = torch.arange(args.sequence, device=args.device).expand(args.micro_batch, -1)
    losses = model(tokens[:, :-1], positions, None, labels=tokens[:, 1:])
    return losses, loss_of


def loss_of(losses: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = losses.float().mean()
    return loss, {"loss": loss.detach().clone()}


def run_schedule(forward_only: bool = False) -> list[dict[str, torch.Tensor]]:
    run = get_forward_backward_func()
    return run(
        forward_step_func=forward_step,
        data_iterator=batches if len(chunks) > 1 else batches[0],
        model=chunks,
        num_microbatches=get_num_microbatches(),
        seq_length=args.sequence,
        micro_batch_size=args.micro_batch,
        forward_only=forward_only,
    )


def train_one(step: int) -> str:
    if args.late_hooks and step == 1 and not chunks[0].remove_forward_pre_hook_handles:
        for chunk in chunks:
            chunk.enable_forward_pre_hook()
    update_num_microbatches(counters.consumed_samples, consistency_check=False)
    while rerun.should_run_forward_backward(batches[0]):
        if not args.no_zeroing or step == 0:
            for chunk in chunks:
                chunk.zero_grad_buffer()
        optimizer.zero_grad()
        reduced = run_schedule()
    config.timers("optimizer", log_level=1).start()
    successful, norm, _ = optimizer.step()
    config.timers("optimizer").stop()
    counters.skipped += not successful
    batch = get_current_global_batch_size()
    scheduler.step(increment=batch)
    counters.consumed_samples += batch
    if args.experts is not None and step % 3 == 2:
        track_moe_metrics(1.0, step, num_layers=LAYERS, track_names=["load_balancing_loss"], total_loss_dict=metrics)
    figures = [each["loss"].item().hex() for each in reduced] + [float(norm).hex() if norm is not None else "none"]
    if args.evaluate_every and step % args.evaluate_every == args.evaluate_every - 1:
        figures += evaluate()
    figures += [str(counters.consumed_samples), str(counters.skipped), optimizer.param_groups[0]["lr"].hex()]
    return " ".join(figures)


def evaluate() -> list[str]:
    """As Megatron's training loop does it: parameters are gathered at once, and not in forward."""
    gathers = bool(chunks[0].remove_forward_pre_hook_handles)
    for chunk in chunks:
        if gathers:
            chunk.disable_forward_pre_hook()
        chunk.eval()
    with torch.no_grad():
        reduced = run_schedule(forward_only=True)
    for chunk in chunks:
        chunk.train()
        if gathers:
            chunk.enable_forward_pre_hook()
    return [each["loss"].item().hex() for each in reduced]


def digest() -> str:
    hasher = hashlib.sha256()

    def take(name: str, tensor: torch.Tensor) -> None:
        hasher.update(name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())

    for index, chunk in enumerate(chunks):
        gathers = args.overlap and args.distributed_optimizer
        if gathers:
            chunk.start_param_sync(force_sync=True)
        for name, tensor in chunk.state_dict().items():
            if isinstance(tensor, torch.Tensor):
                take(f"{index} {name}", tensor)
    for each in optimizer.chained_optimizers if hasattr(optimizer, "chained_optimizers") else [optimizer]:
        for group in each.optimizer.param_groups:
            for param in group["params"]:
                take("main", param)
                for name, value in each.optimizer.state[param].items():
                    take(name, value)
        take("scale", each.get_loss_scale())
    for name, state in get_cuda_rng_tracker().states_.items():
        take(name, state)
    for name, entry in get_moe_layer_wise_logging_tracker().items():
        take(name, entry["values"])
    take("default", torch.cuda.get_rng_state())
    numbers = [vars(counters), scheduler.num_steps, [each.position for each in batches], get_num_microbatches()]
    hasher.update(json.dumps(numbers).encode())
    return hasher.hexdigest()


def one_or_all(functions: list[Any]) -> Any:
    return functions if len(functions) > 1 else functions[0]


def note(**line: Any) -> None:
    with (args.out / f"rank{dist.get_rank()}.jsonl").open("a") as file:
        print(json.dumps(line), file=file, flush=True)


dist.init_process_group(args.backend)
parallel_state.initialize_model_parallel(
    args.tensor,
    args.pipeline,
    args.chunks,
    expert_model_parallel_size=args.expert,
    create_gloo_process_groups=False,
)
torch.manual_seed(7)
tensor_parallel.model_parallel_cuda_manual_seed(7)
data_parallel = parallel_state.get_data_parallel_world_size()
init_num_microbatches_calculator(
    dist.get_rank(),
    [2 * data_parallel, 2 * data_parallel, 4 * args.microbatches * data_parallel] if args.rampup else None,
    args.micro_batch * args.microbatches * data_parallel,
    args.micro_batch,
    data_parallel,
)
config = model_config()
chunks = [make_chunk(config, index) for index in (range(args.chunks) if args.chunks else [None])]
overlaps_params = args.overlap and args.distributed_optimizer
if args.late_hooks:
    for chunk in chunks:
        chunk.disable_forward_pre_hook(param_sync=False)
optimizer_config = OptimizerConfig(
    lr=1e-2,
    min_lr=1e-3,
    bf16=config.bf16,
    fp16=config.fp16,
    params_dtype=DTYPE,
    use_distributed_optimizer=args.distributed_optimizer,
    overlap_param_gather=overlaps_params,
    clip_grad=1.0,
    initial_loss_scale=2.0**args.scale,
    loss_scale_window=2,
    hysteresis=1,
    timers=config.timers,
)
optimizer = get_megatron_optimizer(optimizer_config, chunks, use_gloo_process_groups=False)
scheduler = OptimizerParamScheduler(optimizer, 0.0, 1e-2, 1e-3, 20, 200, "cosine", 0.01, 0.1, 200, "linear")
config.grad_scale_func = optimizer.scale_loss
config.finalize_model_grads_func = finalize_model_grads
if args.overlap:
    config.no_sync_func = one_or_all([chunk.no_sync for chunk in chunks])
if args.align:
    config.grad_sync_func = one_or_all([chunk.start_grad_sync for chunk in chunks])
    config.param_sync_func = one_or_all([chunk.start_param_sync for chunk in chunks])
batches = [Tokens(parallel_state.get_data_parallel_rank()) for _ in chunks]
counters = SimpleNamespace(consumed_samples=0, skipped=0)
metrics: dict[str, torch.Tensor] = {}
rerun = get_rerun_state_machine()
config.timers("interval", log_level=0).start()
if args.refused:  # set late: Megatron itself refuses some of them here
    setattr(config, args.refused, True)
if args.refused_update:
    setattr(optimizer_config, args.refused_update, True)
if args.reruns:
    rerun.set_mode(RerunMode.VALIDATE_RESULTS)

job = protect(chunks, optimizer=optimizer, scheduler=scheduler, data=batches, counters=counters)
for step in job.steps(args.steps):
    if args.capture_turns:
        job.enabled = step.number // args.capture_turns % 2 == 1
    with step:
        loss = train_one(step.number)
        if not step.dry:
            note(step=step.number, loss=loss, ended=time.time(), cpu_s=time.process_time())
config.timers("interval").stop()
note(digest=digest())
