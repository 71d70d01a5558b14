"""Gradients that a script keeps hold of: their tensors and their memory stay the same from step to step."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_OWN_REDUCE = frozenset({"own_reduce"})


def _flat_gradients(builder: ScriptBuilder) -> None:
    builder.extras.append(
        block("""
        flat_gradient = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
        offset = 0
        for parameter in model.parameters():
            end = offset + parameter.numel()
            parameter.grad = flat_gradient[offset:end].view_as(parameter)
            offset = end
        """)
    )
    builder.reduce = ["dist.all_reduce(flat_gradient)\nflat_gradient /= world_size"]
    builder.zero = ["flat_gradient.zero_()"]


def _first_gradients(builder: ScriptBuilder) -> None:
    builder.before_loop.append("gradients = []")
    builder.reduce = [
        block("""
        if not gradients:  # from here on the same tensors in every step
            gradients += [parameter.grad for parameter in model.parameters()]
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= world_size
        """)
    ]
    builder.zero = ["optimizer.zero_grad(set_to_none=False)"]


def _by_address(builder: ScriptBuilder) -> None:
    """Storages instead of tensors, as a CUDA graph has addresses and a pool that keeps them alive."""
    builder.helper("""
        class Replay:
            \"\"\"Averages gradients where they lay when it was recorded.\"\"\"

            def __init__(self, parameters):
                self.memory = [parameter.grad.untyped_storage() for parameter in parameters]

            def run(self):
                for storage in self.memory:
                    gradient = torch.empty(0).set_(storage)
                    dist.all_reduce(gradient)
                    gradient /= dist.get_world_size()
    """)
    builder.before_loop.append("recorded = None")
    builder.reduce = [
        block("""
        if recorded is None:
            recorded = Replay(model.parameters())
        recorded.run()
        """)
    ]
    builder.zero = ["optimizer.zero_grad(set_to_none=False)"]


def _flat_optimizer(builder: ScriptBuilder) -> None:
    builder.optimizers.append(
        block("""
        flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]))
        flat.grad = torch.zeros_like(flat)
        offset = 0
        for parameter in model.parameters():
            end = offset + parameter.numel()
            parameter.data = flat.data[offset:end].view_as(parameter)
            parameter.grad = flat.grad[offset:end].view_as(parameter)
            offset = end
        optimizer = torch.optim.AdamW([flat], lr=0.01)
        """)
    )
    builder.protect(optimizer="optimizer")
    builder.reduce = ["dist.all_reduce(flat.grad)\nflat.grad /= world_size"]
    builder.update = ["optimizer.step()"]
    builder.zero = ["flat.grad.zero_()"]


GRADIENTS = [
    Kind(
        name="flatgrad",
        about="one flat buffer of gradients, each p.grad a view of it",
        write=_flat_gradients,
        brings=_OWN_REDUCE,
    ),
    Kind(
        name="held",
        about="a list of the first step's gradients, used for ever",
        write=_first_gradients,
        brings=_OWN_REDUCE,
    ),
    Kind(
        name="graphlike",
        about="gradients by their memory, as a CUDA graph has them",
        write=_by_address,
        brings=_OWN_REDUCE,
    ),
    Kind(
        name="flatopt",
        about="AdamW on one flat parameter, p.data and p.grad views of it",
        write=_flat_optimizer,
        brings=_OWN_REDUCE | {"own_optimizer"},
    ),
]
