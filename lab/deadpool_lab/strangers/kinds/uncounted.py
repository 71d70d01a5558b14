"""Parameters and gradients that scripts keep hold of: parameters that change without torch's counting, through .data,
numpy, dlpack, flat buffers, fused kernels; gradients whose tensors and memory stay the same from step to step."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, Write, block
from deadpool_lab.strangers.kind import Kind

_UPDATES = frozenset({"own_optimizer", "own_reduce"})

_AFTER_UPDATE = ("reduce",)
"""The moments after which survivors have updated their parameters, and redo the step."""

_GATHERED = block("""
    for parameter in model.parameters():
        shares = [torch.empty_like(parameter.grad) for _ in range(world_size)]
        dist.all_gather(shares, parameter.grad)
        parameter.grad.copy_(torch.stack(shares).mean(0))
""")

_OWN_REDUCE = frozenset({"own_reduce"})


def _update(builder: ScriptBuilder, lines: str) -> None:
    """Gradients are gathered, so the first reduction of a step comes after the update; a second one keeps survivors
    there."""
    builder.reduce, builder.update, builder.zero = [_GATHERED], [lines], ["model.zero_grad()"]
    builder.finish.append(
        block("""
        total, rows = loss * len(x), torch.tensor(float(len(x)))
        dist.all_reduce(total)
        dist.all_reduce(rows)
        """)
    )
    builder.draws.append("float(total / rows)")


def _each_parameter(line: str) -> Write:
    """No optimizer: the line moves one parameter."""

    def write(builder: ScriptBuilder) -> None:
        _update(builder, f"for parameter in model.parameters():\n    {line}")

    return write


def _dlpack(builder: ScriptBuilder) -> None:
    builder.need("from torch.utils import dlpack")
    _each_parameter("dlpack.from_dlpack(dlpack.to_dlpack(parameter.detach())).sub_(parameter.grad, alpha=0.05)")(
        builder
    )


def _vector_to_parameters(builder: ScriptBuilder) -> None:
    builder.need("from torch.nn.utils import parameters_to_vector, vector_to_parameters")
    lines = """
        with torch.no_grad():
            vector = parameters_to_vector(model.parameters())
            vector -= 0.05 * parameters_to_vector([parameter.grad for parameter in model.parameters()])
            vector_to_parameters(vector, model.parameters())
    """
    _update(builder, block(lines))


def _flat_parameters(builder: ScriptBuilder) -> None:
    builder.extras.append(
        block("""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        offset = 0
        for parameter in model.parameters():
            end = offset + parameter.numel()
            parameter.data = flat[offset:end].view_as(parameter)
            offset = end
        """)
    )
    _update(builder, "flat -= 0.05 * torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])")


def _fused_kernel(builder: ScriptBuilder) -> None:
    builder.helper("""
        class FusedAdamW:
            \"\"\"Calls torch's kernel itself.\"\"\"

            def __init__(self, parameters):
                self.parameters = list(parameters)
                self.means = [torch.zeros_like(parameter) for parameter in self.parameters]
                self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]
                self.counts = [torch.zeros(()) for _ in self.parameters]

            @torch.no_grad()
            def step(self):
                gradients = [parameter.grad for parameter in self.parameters]
                torch._foreach_add_(self.counts, 1)
                torch._fused_adamw_(
                    *(self.parameters, gradients, self.means, self.squares, [], self.counts),
                    **{"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "eps": 1e-8},
                    **{"amsgrad": False, "maximize": False},
                )

            def state_dict(self):
                return {"means": self.means, "squares": self.squares, "counts": self.counts}

            def load_state_dict(self, state):
                vars(self).update(state)
    """)
    builder.optimizers.append("optimizer = FusedAdamW(model.parameters())")
    builder.protect(optimizer="optimizer")
    _update(builder, "optimizer.step()")


def _momentum_encoder(builder: ScriptBuilder) -> None:
    """First in the step, long before the optimizer."""
    builder.need("import copy")
    builder.extras.append("key_model = copy.deepcopy(model).requires_grad_(False)")
    builder.protect(key_model="key_model")
    builder.begin.append(
        block("""
        for query, key in zip(model.parameters(), key_model.parameters()):
            key.data = key.data * 0.9 + query.data * 0.1
        """)
    )
    builder.loss = "nn.functional.mse_loss(model(x), y) + nn.functional.mse_loss(model(x), key_model(x))"


def _swapped_average(load: str) -> Write:
    """Gradients are gathered, so the first reduction of a step is the one in the evaluation, with the averages in; a
    second one keeps survivors there."""

    def write(builder: ScriptBuilder) -> None:
        builder.helper(f"""
            class Shadow:
                \"\"\"Averages of the parameters.\"\"\"

                def __init__(self, model):
                    self.tensors = [parameter.detach().clone() for parameter in model.parameters()]

                @torch.no_grad()
                def update(self, model):
                    for average, parameter in zip(self.tensors, model.parameters()):
                        average.mul_(0.8).add_(parameter, alpha=0.2)

                def state_dict(self):
                    return {{"tensors": self.tensors}}

                def load_state_dict(self, state):
                    {load}
        """)
        builder.extras.append("shadow = Shadow(model)")
        builder.protect(shadow="shadow")
        builder.reduce = [_GATHERED]
        builder.finish.append(_EVALUATED_WITH_AVERAGE)
        builder.draws.append("float(score / rows)")

    return write


_EVALUATED_WITH_AVERAGE = block("""
    shadow.update(model)
    trained = [parameter.data for parameter in model.parameters()]
    for parameter, average in zip(model.parameters(), shadow.tensors):
        parameter.data = average
    with torch.no_grad():
        score, rows = nn.functional.mse_loss(model.eval()(x), y, reduction="sum"), torch.tensor(float(len(x)))
        dist.all_reduce(score)
        dist.all_reduce(rows)
    for parameter, kept in zip(model.train().parameters(), trained):
        parameter.data = kept
""")

_COPIES = "for mine, kept in zip(self.tensors, state['tensors']):\n                        mine.copy_(kept)"
_SWAPS = frozenset({"own_reduce", "alone"})

UNCOUNTED = [
    Kind(
        name="dataassign",
        about="p.data = p.data - lr * gradient, no optimizer",
        write=_each_parameter("parameter.data = parameter.data - 0.05 * parameter.grad"),
        brings=_UPDATES,
        moments=_AFTER_UPDATE,
    ),
    Kind(
        name="datasub",
        about="p.data.sub_, no optimizer",
        write=_each_parameter("parameter.data.sub_(parameter.grad, alpha=0.05)"),
        brings=_UPDATES,
        moments=_AFTER_UPDATE,
    ),
    Kind(
        name="numpywrite",
        about="parameters written through numpy",
        write=_each_parameter("parameter.detach().numpy()[...] -= 0.05 * parameter.grad.numpy()"),
        brings=_UPDATES,
        moments=_AFTER_UPDATE,
    ),
    Kind(
        name="dlpackwrite",
        about="parameters written through dlpack",
        write=_dlpack,
        brings=_UPDATES,
        moments=_AFTER_UPDATE,
    ),
    Kind(
        name="v2p",
        about="vector_to_parameters as the update",
        write=_vector_to_parameters,
        brings=_UPDATES,
        moments=_AFTER_UPDATE,
    ),
    Kind(
        name="flatparam",
        about="a flat buffer of parameters, updated by hand",
        write=_flat_parameters,
        brings=_UPDATES,
        moments=_AFTER_UPDATE,
    ),
    Kind(
        name="fusedkernel",
        about="torch._fused_adamw_ called by hand",
        write=_fused_kernel,
        brings=_UPDATES,
        moments=_AFTER_UPDATE,
    ),
    Kind(
        name="moco", about="a momentum encoder that follows by p.data = ..., first in the step", write=_momentum_encoder
    ),
    Kind(
        name="emaswap_copy",
        about="evaluation with averages swapped in by p.data = ...; they load by copy_",
        write=_swapped_average(_COPIES),
        brings=_SWAPS,
        moments=("reduce",),
    ),
    Kind(
        name="emaswap_rebind",
        about="evaluation with averages swapped in by p.data = ...; they load by rebinding",
        write=_swapped_average("self.tensors = state['tensors']"),
        brings=_SWAPS,
        moments=("reduce",),
    ),
]


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
