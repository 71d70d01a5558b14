"""Parameters that are spread over ranks as DTensors: FSDP2, HSDP, tensor parallel, both together."""

from __future__ import annotations

from deadpool_lab.strangers.draft import Draft, block
from deadpool_lab.strangers.feature import Feature

_FSDP = "from torch.distributed.fsdp import fully_shard"
_MESH = "from torch.distributed.device_mesh import init_device_mesh"


def _even(draft: Draft) -> bool:
    return draft.shape.world_size % 2 == 0 and draft.shape.world_size >= 4


def _shard(draft: Draft, mesh: str, settings: str = "") -> None:
    draft.traits |= {"sharded", "whole_model"}
    draft.need(_FSDP, _MESH)
    draft.groups.append(mesh)
    draft.wrap.append(
        block(f"""
        for child in model.children():
            if any(True for _ in child.parameters()):
                fully_shard(child, mesh=mesh{settings})
        fully_shard(model, mesh=mesh{settings})
        """)
    )


def _fsdp2(draft: Draft) -> None:
    settings = draft.rng.choice(["", ", reshard_after_forward=False"])
    _shard(draft, 'mesh = init_device_mesh("cpu", (world_size,))', settings)


def _mixed(draft: Draft) -> None:
    draft.need("from torch.distributed.fsdp import MixedPrecisionPolicy")
    draft.traits.add("low_precision")
    policy = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"
    draft.constants["POLICY"] = policy
    _shard(draft, 'mesh = init_device_mesh("cpu", (world_size,))', ", mp_policy=POLICY")


def _hsdp(draft: Draft) -> None:
    mesh = 'mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))'
    _shard(draft, mesh)


def _tensor_model(draft: Draft) -> None:
    draft.helper("""
        class Feed(nn.Module):
            def __init__(self):
                super().__init__()
                self.up = nn.Linear(WIDTH, 4 * WIDTH)
                self.down = nn.Linear(4 * WIDTH, WIDTH)
                self.norm = nn.LayerNorm(WIDTH)

            def forward(self, x):
                return self.norm(x + self.down(nn.functional.gelu(self.up(x))))
    """)
    draft.need(
        "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module", _MESH
    )
    draft.model.append("model = nn.Sequential(Feed(), Feed())")


def _tensor_parallel(draft: Draft) -> None:
    draft.traits |= {"sharded", "own_model", "same_batches", "mixed_parameters"}
    draft.width = 4 * draft.shape.world_size
    _tensor_model(draft)
    draft.groups.append('mesh = init_device_mesh("cpu", (world_size,))')
    draft.wrap.append(
        block("""
        for feed in model:
            parallelize_module(feed, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        """)
    )


def _both(draft: Draft) -> None:
    draft.traits |= {"sharded", "own_model", "pairs_share_batches", "mixed_parameters"}
    draft.width = 8
    _tensor_model(draft)
    draft.need(_FSDP)
    draft.groups.append('mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("data", "tensor"))')
    draft.wrap.append(
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
