"""Layouts of torch: DDP, sharded, pipelines.

DistributedDataParallel in its many settings, and ZeRO-1 on top of it.

Parameters that are spread over ranks as DTensors: FSDP2, HSDP, tensor parallel, both together.

`write_pipeline` pipelines of torch.distributed.pipelining: a stage on each rank.
"""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, block

_DDP = "from torch.nn.parallel import DistributedDataParallel"


def _wrap(builder: ScriptBuilder, **settings: object) -> None:
    builder.traits |= {"ddp", "whole_model"}
    builder.need(_DDP)
    words = "".join(f", {name}={value!r}" for name, value in settings.items())
    builder.wrap.append(f"model = DistributedDataParallel(model{words})")


def _plain(builder: ScriptBuilder) -> None:
    _wrap(builder)


def _buckets(builder: ScriptBuilder) -> None:
    _wrap(builder, bucket_cap_mb=builder.rng.choice([0.001, 0.01]), gradient_as_bucket_view=True)
    builder.traits.add("bucket_view")


def _static_graph(builder: ScriptBuilder) -> None:
    _wrap(builder, static_graph=True)


def _unused(builder: ScriptBuilder) -> None:
    _wrap(builder, find_unused_parameters=True)
    builder.traits.add("unused_parameters")


def _no_sync(builder: ScriptBuilder) -> None:
    _wrap(builder)
    builder.need("import contextlib")
    builder.micro_batches = builder.rng.choice([2, 3])
    builder.sync = "model.no_sync() if micro + 1 < ACCUMULATE else contextlib.nullcontext()"


def _compressed(builder: ScriptBuilder) -> None:
    _wrap(builder)
    builder.need("from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook")
    builder.wrap.append("model.register_comm_hook(None, fp16_compress_hook)")


def _own_hook(builder: ScriptBuilder) -> None:
    _wrap(builder)
    builder.helper("""
        def halved(group, bucket):
            \"\"\"Gradients travel in bf16.\"\"\"
            small = bucket.buffer().to(torch.bfloat16) / dist.get_world_size()
            future = dist.all_reduce(small, async_op=True).get_future()
            return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))
    """)
    builder.wrap.append("model.register_comm_hook(None, halved)")


def _power_sgd(builder: ScriptBuilder) -> None:
    _wrap(builder)
    builder.need("from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook")
    builder.helper("""
        class Compression:
            \"\"\"What PowerSGD carries from step to step.\"\"\"

            names = ("iter", "error_dict", "p_memory_dict", "q_memory_dict")

            def __init__(self, state):
                self.state = state

            def state_dict(self):
                kept = {name: getattr(self.state, name) for name in self.names}
                return {**kept, "rng": self.state.rng.get_state()}

            def load_state_dict(self, kept):
                for name in self.names:
                    setattr(self.state, name, kept[name])
                self.state.rng.set_state(kept["rng"])
    """)
    builder.wrap.append(
        block("""
        compression = Compression(
            powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        )
        model.register_comm_hook(compression.state, powerSGD_hook.powerSGD_hook)
        """)
    )
    builder.protected["compression"] = "compression"


def _uneven(builder: ScriptBuilder) -> None:
    _wrap(builder)
    builder.traits.add("uneven")
    builder.need("from torch.distributed.algorithms.join import Join")
    builder.around, builder.rounds = "Join([model])", "1 + (step.number + rank) % 3"
    builder.claims = {"model": "None", "optimizer": "None"}  # a rank with more batches steps its optimizer more often


def _zero(builder: ScriptBuilder) -> None:
    _wrap(builder)
    builder.traits |= {"zero"}
    builder.need("from torch.distributed.optim import ZeroRedundancyOptimizer")


DATA_PARALLEL = [
    Feature("DDP", _plain),
    Feature("DDP with small buckets", _buckets),
    Feature("DDP static_graph", _static_graph),
    Feature("DDP find_unused_parameters", _unused),
    Feature("DDP no_sync", _no_sync),
    Feature("DDP with a compressing hook", _compressed),
    Feature("DDP with a hook of its own", _own_hook, 0.7),
    Feature("DDP with PowerSGD", _power_sgd, 0.7),
    Feature("DDP and Join", _uneven, 0.7),
    Feature("ZeRO-1", _zero, 1.5),
]


_FSDP = "from torch.distributed.fsdp import fully_shard"
_MESH = "from torch.distributed.device_mesh import init_device_mesh"


def _even(builder: ScriptBuilder) -> bool:
    return builder.shape.world_size % 2 == 0 and builder.shape.world_size >= 4


def _shard(builder: ScriptBuilder, mesh: str, settings: str = "") -> None:
    builder.traits |= {"sharded", "whole_model"}
    builder.need(_FSDP, _MESH)
    builder.groups.append(mesh)
    builder.wrap.append(
        block(f"""
        for child in model.children():
            if any(True for _ in child.parameters()):
                fully_shard(child, mesh=mesh{settings})
        fully_shard(model, mesh=mesh{settings})
        """)
    )


def _fsdp2(builder: ScriptBuilder) -> None:
    settings = builder.rng.choice(["", ", reshard_after_forward=False"])
    _shard(builder, 'mesh = init_device_mesh("cpu", (world_size,))', settings)


def _mixed(builder: ScriptBuilder) -> None:
    builder.need("from torch.distributed.fsdp import MixedPrecisionPolicy")
    builder.traits.add("low_precision")
    policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    builder.constants["POLICY"] = policy
    _shard(builder, 'mesh = init_device_mesh("cpu", (world_size,))', ", mp_policy=POLICY")


def _hsdp(builder: ScriptBuilder) -> None:
    mesh = 'mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))'
    _shard(builder, mesh)


def _tensor_model(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Feed(nn.Module):
            def __init__(self):
                super().__init__()
                self.up = nn.Linear(WIDTH, 4 * WIDTH)
                self.down = nn.Linear(4 * WIDTH, WIDTH)
                self.norm = nn.LayerNorm(WIDTH)

            def forward(self, x):
                return self.norm(x + self.down(nn.functional.gelu(self.up(x))))
    """)
    builder.need(
        "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module", _MESH
    )
    builder.model.append("model = nn.Sequential(Feed(), Feed())")


def _tensor_parallel(builder: ScriptBuilder) -> None:
    builder.traits |= {"sharded", "own_model", "same_batches", "mixed_parameters"}
    builder.width = 4 * builder.shape.world_size
    _tensor_model(builder)
    builder.groups.append('mesh = init_device_mesh("cpu", (world_size,))')
    builder.wrap.append(
        block("""
        for feed in model:
            parallelize_module(feed, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        """)
    )


def _both(builder: ScriptBuilder) -> None:
    builder.traits |= {"sharded", "own_model", "pairs_share_batches", "mixed_parameters"}
    builder.width = 8
    _tensor_model(builder)
    builder.need(_FSDP)
    builder.groups.append('mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("data", "tensor"))')
    builder.wrap.append(
        block("""
        for feed in model:
            parallelize_module(feed, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(feed, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
        """)
    )


SHARDED = [
    Feature("FSDP2", _fsdp2, 1.5),
    Feature("FSDP2 in bf16", _mixed),
    Feature("HSDP", _hsdp, 1.5, _even),
    Feature("tensor parallel", _tensor_parallel, 1.5),
    Feature("FSDP2 x tensor parallel", _both, 1.5, _even),
]


def _pipeline(builder: ScriptBuilder) -> None:
    builder.traits |= {"apart", "own_model", "same_batches", "pipeline", "own_loss", "one_backward"}
    schedule = builder.rng.choice(["ScheduleGPipe", "Schedule1F1B"])
    builder.tag(schedule)
    builder.need(f"from torch.distributed.pipelining import PipelineStage, {schedule}")
    builder.batch = 2 * builder.shape.world_size
    builder.model.append(
        block(f"""
        torch.manual_seed(100 + rank)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
        schedule = {schedule}(stage, n_microbatches=world_size, loss_fn=nn.functional.mse_loss)
        """)
    )


def write_pipeline(builder: ScriptBuilder) -> None:
    """The lines of a step, once the others are known."""
    builder.train = [
        'seen = ""',
        *builder.fetch,
        "seen = digest(seen, x, y)",
        block("""
        losses = []
        if rank == 0:
            schedule.step(x)
        elif rank == world_size - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        """),
        *builder.clip,
        *builder.update,
        *builder.zero,
    ]


PIPELINES = [Feature("pipeline", _pipeline)]
