"""Parameters, optimizers and buffers that a script replaces or adds while it trains: buffers are also shared, expanded,
resized or sparse."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_OWN_MODEL = frozenset({"own_model"})


def _in_step_3(lines: str) -> str:
    return "if step.number == 3:\n" + "\n".join(f"    {line}" for line in block(lines).splitlines())


def _codebook(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Quantize(nn.Module):
            \"\"\"Vectors become entries of a codebook, which follows them: all ranks' vectors count.\"\"\"

            def __init__(self):
                super().__init__()
                self.codes = nn.Embedding(8, WIDTH).requires_grad_(False)
                self.register_buffer("counts", torch.ones(8))
                self.sums = nn.Parameter(self.codes.weight.detach().clone(), requires_grad=False)

            def forward(self, x):
                chosen = torch.cdist(x.detach(), self.codes.weight).argmin(1)
                near = self.codes(chosen)
                if self.training:
                    self.follow(x.detach(), nn.functional.one_hot(chosen, 8).to(x.dtype))
                return x + (near - x).detach()

            def follow(self, x, picks):
                counts, sums = picks.sum(0), picks.T @ x
                dist.all_reduce(counts)
                dist.all_reduce(sums)
                self.counts = 0.9 * self.counts + 0.1 * counts
                self.sums = nn.Parameter(0.9 * self.sums.data + 0.1 * sums, requires_grad=False)
                self.codes.weight = nn.Parameter(self.sums / (self.counts + 0.01).unsqueeze(1), requires_grad=False)
    """)
    builder.model.append(
        "model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), Quantize(), nn.Linear(WIDTH, WIDTH))"
    )


def _new_head(builder: ScriptBuilder) -> None:
    builder.begin.append(
        _in_step_3("""
        with torch.random.fork_rng():
            torch.manual_seed(17)
            model[-1] = nn.Linear(model[-1].in_features, WIDTH)
        learning = optimizer.param_groups[0]["params"]
        for old in learning[-2:]:
            optimizer.state.pop(old, None)
        learning[-2:] = model[-1].parameters()
        """)
    )


def _pruned(builder: ScriptBuilder) -> None:
    builder.need("from torch.nn.utils import prune")
    builder.begin.append(_in_step_3('prune.l1_unstructured(model[-1], "weight", amount=0.3)'))


def _new_optimizer(builder: ScriptBuilder) -> None:
    builder.begin.append(_in_step_3("optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"))


def _grown(builder: ScriptBuilder) -> None:
    builder.begin.append(
        _in_step_3("""
        with torch.random.fork_rng():
            torch.manual_seed(18)
            model.append(nn.Linear(WIDTH, WIDTH))
        optimizer.add_param_group({"params": model[-1].parameters()})
        """)
    )


def _unfrozen(builder: ScriptBuilder) -> None:
    builder.model.append("model[0].requires_grad_(False)")
    builder.begin.append(
        _in_step_3("""
        model[0].requires_grad_(True)
        optimizer.add_param_group({"params": model[0].parameters()})
        """)
    )


REPLACED = [
    Kind(
        name="vqema",
        about="a VQ-VAE's codebook, a new nn.Parameter in every forward pass",
        write=_codebook,
        brings=frozenset({"own_model", "frozen"}),
    ),
    Kind(name="headreset", about="a new head of the same shape in step 3", write=_new_head),
    Kind(name="prune", about="prune.l1_unstructured in step 3", write=_pruned, rules=("replaced_objects",)),
    Kind(name="newopt", about="a new optimizer in step 3", write=_new_optimizer, rules=("replaced_objects",)),
    Kind(name="grow", about="a layer added in step 3, with add_param_group", write=_grown, rules=("replaced_objects",)),
    Kind(
        name="unfreeze",
        about="a layer unfrozen in step 3, with add_param_group",
        write=_unfrozen,
        rules=("replaced_objects",),
        brings=frozenset({"frozen"}),
    ),
]


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
