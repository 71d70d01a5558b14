"""Parameters that are spread over ranks as DTensors: FSDP2, HSDP, tensor parallel, both together."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.feature import Feature

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
