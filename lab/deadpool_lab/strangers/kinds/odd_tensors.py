"""Tensors that few models have: odd formats, sparse gradients, parametrizations, very many parameters."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_OWN_MODEL = frozenset({"own_model"})


def _odd(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Odd(nn.Module):
            \"\"\"Parameters and buffers of many formats, all of which count.\"\"\"

            def __init__(self):
                super().__init__()
                self.phase = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))
                self.gain = nn.Parameter(torch.tensor(0.5))
                self.nothing = nn.Parameter(torch.empty(0, WIDTH))
                self.turned = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH).t()[:WIDTH])
                self.register_buffer("small", torch.zeros(WIDTH, dtype=torch.float8_e4m3fn))
                self.register_buffer("bytes", torch.zeros(WIDTH, dtype=torch.int8))
                self.register_buffer("words", torch.zeros(3, dtype=torch.uint16))
                self.register_buffer("flags", torch.zeros(WIDTH, dtype=torch.bool))
                self.register_buffer("image", torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last))
                self.register_buffer("mirrored", torch.randn(WIDTH, dtype=torch.complex64).conj())

            def forward(self, x):
                if self.training:
                    self.follow(x.detach())
                odd = x * (self.phase * self.mirrored).abs() + x @ self.turned * self.gain
                odd = odd + self.small.float() + self.bytes / 100 + self.flags * 0.1
                return odd + float(self.words.int().sum()) / 100 + self.image.mean() + self.nothing.sum()

            def follow(self, x):
                self.small.copy_(x.mean(0))
                self.bytes.add_((x.mean(0) > 0).to(torch.int8))
                self.words.copy_(self.words.int() + torch.arange(3))
                self.flags.logical_xor_(x[0] > 0)
                self.image.add_(x.mean())
                self.mirrored.mul_(0.9)
    """)
    builder.model.append("model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Odd(), nn.Linear(WIDTH, WIDTH))")
    builder.optimizers.append("optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)")
    builder.protect(optimizer="optimizer")
    builder.update, builder.zero = ["optimizer.step()"], ["optimizer.zero_grad()"]
    builder.reduce = [
        block("""
        for parameter in model.parameters():
            if parameter.numel():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
        """)
    ]
    whole = builder.digested.index("model.state_dict()")
    builder.digested[whole] = "{name: value.resolve_conj() for name, value in model.state_dict().items()}"


def _embedding_bag(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Bags(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.EmbeddingBag(23, WIDTH, mode="mean", sparse=True)

            def forward(self, x):
                return self.table((x.abs() * 9).long() % 23)
    """)
    builder.model.append("model = nn.Sequential(Bags(), nn.Linear(WIDTH, WIDTH))")
    builder.optimizers.append(
        block("""
        optimizer = torch.optim.SparseAdam(model[0].parameters(), lr=0.01)
        dense_optimizer = torch.optim.Adam(model[1].parameters(), lr=0.01)
        """)
    )
    builder.protect(optimizer="optimizer", dense_optimizer="dense_optimizer")
    builder.update = ["optimizer.step()\ndense_optimizer.step()"]
    builder.zero = ["model.zero_grad()"]
    builder.reduce = [
        block("""
        for parameter in model.parameters():
            gradient = parameter.grad.to_dense()
            dist.all_reduce(gradient)
            gradient /= world_size
            if parameter.grad.is_sparse:
                rows = gradient.abs().sum(1).nonzero()[:, 0]
                gradient = torch.sparse_coo_tensor(rows.unsqueeze(0), gradient[rows], parameter.shape)
            parameter.grad = gradient
        """)
    ]


def _orthogonal(builder: ScriptBuilder) -> None:
    builder.need(
        "from torch.nn.utils import parametrize",
        "from torch.nn.utils.parametrizations import orthogonal",
        "from torch.utils.checkpoint import checkpoint",
    )
    builder.helper("""
        class Turn(nn.Module):
            \"\"\"Layers that stay orthogonal; activations are computed again in the backward pass.\"\"\"

            def __init__(self):
                super().__init__()
                self.turns = nn.ModuleList(orthogonal(nn.Linear(WIDTH, WIDTH)) for _ in range(2))
                self.drop = nn.Dropout(0.1)

            def forward(self, x):
                for turn in self.turns:
                    x = checkpoint(lambda x, turn=turn: self.drop(turn(x)).tanh(), x, use_reentrant=False)
                return x
    """)
    builder.model.append("model = nn.Sequential(Turn(), nn.Linear(WIDTH, WIDTH))")
    builder.contexts.append("parametrize.cached()")


def _many(builder: ScriptBuilder) -> None:
    builder.constants["MANY"] = "1000"
    builder.helper("""
        class Many(nn.Module):
            \"\"\"A thousand small parameters.\"\"\"

            def __init__(self):
                super().__init__()
                self.scales = nn.ParameterList(torch.randn(WIDTH) / MANY for _ in range(MANY))

            def forward(self, x):
                for scale in self.scales:
                    x = x + scale * x
                return x
    """)
    builder.model.append("model = nn.Sequential(Many(), nn.Linear(WIDTH, WIDTH))")
    builder.reduce = [
        block("""
        gradients = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
        dist.all_reduce(gradients)
        for parameter, gradient in zip(
            model.parameters(), gradients.split([parameter.numel() for parameter in model.parameters()])
        ):
            parameter.grad.copy_(gradient.view_as(parameter) / world_size)
        """)
    ]


ODD_TENSORS = [
    Kind(
        name="odd",
        about="complex, float8, int8, uint16, bool, empty, 0-dim, transposed, channels_last and conjugated tensors",
        stops=True,
        write=_odd,
        brings=_OWN_MODEL | {"own_reduce", "own_optimizer"},
    ),
    Kind(
        name="embeddingbag",
        about="EmbeddingBag with sparse gradients, and SparseAdam",
        stops=True,
        write=_embedding_bag,
        brings=_OWN_MODEL | {"own_reduce", "own_optimizer"},
    ),
    Kind(
        name="orthogonal",
        about="orthogonal parametrizations, cached, with activation checkpointing",
        stops=True,
        write=_orthogonal,
        brings=_OWN_MODEL,
    ),
    Kind(name="many", about="1,000 parameters", stops=True, write=_many, brings=_OWN_MODEL | {"own_reduce"}),
]
