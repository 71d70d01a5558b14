"""DistributedDataParallel in its many settings, and ZeRO-1 on top of it."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.feature import Feature

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
