"""Buffers that are assigned, shared, expanded, resized or sparse."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_OWN_MODEL = frozenset({"own_model"})


def _model_of(builder: ScriptBuilder, first: str) -> None:
    builder.model.append(f"model = nn.Sequential({first}, nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))")


def _previous_and_current(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Trend(nn.Module):
            \"\"\"Adds how the means of the last two batches differ. From the forward pass to the end of a step both
            buffers are one tensor.\"\"\"

            def __init__(self):
                super().__init__()
                self.register_buffer("previous", torch.zeros(WIDTH))
                self.register_buffer("current", torch.zeros(WIDTH))

            def forward(self, x):
                trend = self.current - self.previous
                if self.training:
                    self.previous = self.current
                return x + trend
    """)
    _model_of(builder, "Trend()")
    builder.finish.append("model[0].current = x.mean(0)")


def _slice_of_data(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Recall(nn.Module):
            \"\"\"Adds the batch before, as it lies in the data set.\"\"\"

            def __init__(self):
                super().__init__()
                self.register_buffer("last", torch.zeros(BATCH, WIDTH))

            def forward(self, x):
                seen = x + 0.1 * self.last
                if self.training:
                    self.last = x
                return seen
    """)
    _model_of(builder, "Recall()")
    builder.data.append("rows = torch.randn(5 * BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))")
    builder.fetch.append(
        block("""
        first = step.number % 5 * BATCH
        x, y = rows[first : first + BATCH], rows[first : first + BATCH].flip(1)
        """)
    )


def _expanded(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("scale", torch.full((1,), 0.5).expand(BATCH, WIDTH))

            def forward(self, x):
                return x * self.scale
    """)
    _model_of(builder, "Scale()")


def _resized(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Scratch(nn.Module):
            \"\"\"Room for the batch and some rows of zeros, more in some steps than in others.\"\"\"

            def __init__(self):
                super().__init__()
                self.register_buffer("room", torch.zeros(1, WIDTH))
                self.register_buffer("calls", torch.zeros((), dtype=torch.long))

            def forward(self, x):
                if self.training:
                    self.calls += 1
                    self.room.resize_(len(x) + int(self.calls) % 3, WIDTH).zero_()
                    self.room[: len(x)] = x.detach()
                return x + self.room.mean(0)
    """)
    _model_of(builder, "Scratch()")


def _quantized(builder: ScriptBuilder) -> None:
    builder.need("from torch.ao.quantization import get_default_qat_qconfig, prepare_qat")
    builder.model.append(
        block("""
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        model.qconfig = get_default_qat_qconfig("fbgemm")
        model = prepare_qat(model.train())
        """)
    )


def _sparse(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Mix(nn.Module):
            \"\"\"Each row of a batch gets some of its neighbour, more in every step.\"\"\"

            def __init__(self):
                super().__init__()
                rows = torch.arange(BATCH)
                places = torch.stack([rows.repeat(2), torch.cat([rows, (rows + 1) % BATCH])])
                weights = torch.cat([torch.ones(BATCH), torch.full((BATCH,), 0.1)])
                self.register_buffer("neighbours", torch.sparse_coo_tensor(places, weights, (BATCH, BATCH)))

            def forward(self, x):
                if self.training:
                    self.neighbours = (self.neighbours * 1.1).coalesce()
                return torch.sparse.mm(self.neighbours, x)
    """)
    _model_of(builder, "Mix()")
    whole = builder.digested.index("model.state_dict()")
    builder.digested[whole] = "{name: value.to_dense() for name, value in model.state_dict().items()}"


ASSIGNED_BUFFERS = [
    Kind(name="prevcur", about="buffers previous = current = new", write=_previous_and_current, brings=_OWN_MODEL),
    Kind(
        name="databuffer",
        about="a buffer that is a slice of the data set",
        write=_slice_of_data,
        brings=_OWN_MODEL | {"own_data"},
    ),
    Kind(name="expanded", about="an expanded buffer", write=_expanded, brings=_OWN_MODEL),
    Kind(name="resizebuf", about="a buffer that is resized by resize_", write=_resized, brings=_OWN_MODEL),
    Kind(name="qat", about="quantisation-aware training by prepare_qat", write=_quantized, brings=_OWN_MODEL),
    Kind(name="sparsebuf", about="a sparse COO buffer", write=_sparse, brings=_OWN_MODEL),
]
