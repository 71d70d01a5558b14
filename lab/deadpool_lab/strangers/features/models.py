"""Models and what is minimised. All models take (BATCH, WIDTH) and give as much, in one piece; layouts put them on
ranks. The contract of losses is `loss`, a scalar of `model`, `x` and `y`. `write_seeds` writes the seeds of all
generators, and the numbers that are drawn from them in every step."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, Write, block, lacks


def _whole(builder: ScriptBuilder) -> bool:
    return "whole_model" in builder.traits


def _plain_whole(builder: ScriptBuilder) -> bool:
    """Tells whether the model is neither sharded, nor averaged under the eyes of DDP."""
    return _whole(builder) and not builder.traits & {"sharded", "ddp"}


def _mlp(builder: ScriptBuilder) -> None:
    depth = builder.rng.choice([1, 2, 3])
    activation = builder.rng.choice(["GELU", "ReLU", "SiLU", "Tanh"])
    layers = ", ".join([f"nn.Linear(WIDTH, WIDTH), nn.{activation}()"] * depth)
    builder.model.append(f"model = nn.Sequential({layers}, nn.Linear(WIDTH, WIDTH))")


def _dropout(builder: ScriptBuilder) -> None:
    builder.model.append(
        "model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * WIDTH, WIDTH))"
    )


def _batch_norm(builder: ScriptBuilder) -> None:
    builder.traits.add("batch_norm")
    builder.model.append(
        "model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))"
    )


def _sync_batch_norm_like(builder: ScriptBuilder) -> None:
    """Statistics of all ranks, averaged in the forward pass."""
    builder.traits.add("batch_norm")
    builder.helper("""
        class Whiten(nn.Module):
            \"\"\"Running statistics that all ranks share: a collective in the middle of the forward pass.\"\"\"

            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(WIDTH))
                self.register_buffer("mean", torch.zeros(WIDTH))
                self.register_buffer("seen", torch.zeros((), dtype=torch.long))

            def forward(self, x):
                if self.training:
                    mean = x.detach().mean(0).to(self.mean.dtype)
                    dist.all_reduce(mean)
                    self.mean.lerp_(mean / dist.get_world_size(), 0.1)
                    self.seen += 1
                return (x - self.mean) * self.scale
    """)
    builder.model.append("model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Whiten(), nn.Tanh(), nn.Linear(WIDTH, WIDTH))")


def _tied(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Tied(nn.Module):
            \"\"\"The way out has the weights of the way in.\"\"\"

            def __init__(self):
                super().__init__()
                self.encode = nn.Linear(WIDTH, WIDTH)
                self.norm = nn.LayerNorm(WIDTH)
                self.decode = nn.Linear(WIDTH, WIDTH, bias=False)
                self.decode.weight = self.encode.weight

            def forward(self, x):
                return self.decode(self.norm(self.encode(x).relu()))
    """)
    builder.model.append("model = Tied()")


def _frozen(builder: ScriptBuilder) -> None:
    builder.model.append(
        "model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))\n"
        "model[0].requires_grad_(False)"
    )
    builder.traits.add("frozen")


def _lora(builder: ScriptBuilder) -> None:
    builder.traits |= {"frozen", "matrices_only"}
    builder.helper("""
        class LoRA(nn.Module):
            \"\"\"A frozen layer and a small addition that learns.\"\"\"

            def __init__(self, base, rank):
                super().__init__()
                self.base = base.requires_grad_(False)
                self.a = nn.Parameter(torch.randn(base.in_features, rank) / rank)
                self.b = nn.Parameter(torch.zeros(rank, base.out_features))

            def forward(self, x):
                return self.base(x) + x @ self.a @ self.b
    """)
    builder.model.append(
        "model = nn.Sequential(LoRA(nn.Linear(WIDTH, WIDTH), 2), nn.GELU(), LoRA(nn.Linear(WIDTH, WIDTH), 2))"
    )


def _checkpointed(builder: ScriptBuilder) -> None:
    builder.need("from torch.utils.checkpoint import checkpoint")
    builder.helper("""
        class Recomputed(nn.Module):
            \"\"\"Activations, and the dropout in them, are computed again in the backward pass.\"\"\"

            def __init__(self, *layers):
                super().__init__()
                self.layers = nn.Sequential(*layers)

            def forward(self, x):
                return checkpoint(self.layers, x, use_reentrant=False)
    """)
    builder.model.append(
        "block = Recomputed(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1))\n"
        "model = nn.Sequential(block, nn.Linear(WIDTH, WIDTH))"
    )


def _attention(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Attend(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(WIDTH)
                self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)

            def forward(self, x):
                seen = self.norm(x).unsqueeze(0)
                return x + self.attention(seen, seen, seen, need_weights=False)[0].squeeze(0)
    """)
    builder.model.append("model = nn.Sequential(Attend(), nn.Linear(WIDTH, WIDTH), Attend())")


def _embedding(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Tokens(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(17, WIDTH)
                self.mix = nn.GRU(WIDTH, WIDTH, batch_first=True)

            def forward(self, x):
                return self.mix(self.table((x.abs() * 7).long() % 17))[0][:, -1]
    """)
    builder.model.append("model = nn.Sequential(Tokens(), nn.Linear(WIDTH, WIDTH))")


def _convolution(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Convolve(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU())
                self.outer = nn.Linear(4 * WIDTH, WIDTH)

            def forward(self, x):
                return self.outer(self.inner(x.unsqueeze(1)).flatten(1))
    """)
    builder.traits.add("batch_norm")
    builder.model.append("model = Convolve()")


def _growing(builder: ScriptBuilder) -> None:
    builder.traits.add("growing_buffer")
    builder.helper("""
        class Remember(nn.Module):
            \"\"\"Keeps a line of every few batches, and adds their mean.\"\"\"

            def __init__(self):
                super().__init__()
                self.register_buffer("memory", torch.zeros(1, WIDTH))
                self.register_buffer("calls", torch.zeros((), dtype=torch.long))
                self.gain = nn.Parameter(torch.tensor(0.1))

            def forward(self, x):
                if self.training:
                    self.calls += 1
                    if self.calls % 3 == 0:
                        self.memory = torch.cat([self.memory, x.detach().float().mean(0, keepdim=True)])
                return x + self.gain * self.memory.mean(0)
    """)
    builder.model.append("model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Remember(), nn.Linear(WIDTH, WIDTH))")


def _lazy(builder: ScriptBuilder) -> None:
    builder.model.append(
        "model = nn.Sequential(nn.LazyLinear(WIDTH), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(WIDTH))\n"
        "model(torch.zeros(2, WIDTH))  # a dry forward makes the parameters"
    )
    builder.traits.add("batch_norm")


def _unused(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Branches(nn.Module):
            \"\"\"Each batch takes one of two ways.\"\"\"

            def __init__(self):
                super().__init__()
                self.ways = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
                self.register_buffer("turn", torch.zeros((), dtype=torch.long))

            def forward(self, x):
                self.turn += 1
                return self.ways[int(self.turn) % 2](x)
    """)
    builder.model.append("model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), Branches())")


def _compiled(builder: ScriptBuilder) -> None:
    backend = builder.rng.choice(["eager", "aot_eager"])
    builder.traits.add("compiled")
    builder.model.append(
        "model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))\n"
        f'model.compile(backend="{backend}")'
    )


def _spectral(builder: ScriptBuilder) -> None:
    """Buffers that every forward pass changes."""
    builder.need("from torch.nn.utils.parametrizations import spectral_norm, weight_norm")
    builder.traits.add("parametrized")
    builder.model.append(
        "model = nn.Sequential(spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), weight_norm(nn.Linear(WIDTH, WIDTH)))"
    )


def _unsaved(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Drift(nn.Module):
            \"\"\"A buffer that no state_dict shows, and a state of its own that one does.\"\"\"

            def __init__(self):
                super().__init__()
                self.register_buffer("drift", torch.zeros(WIDTH), persistent=False)
                self.calls = 0

            def forward(self, x):
                if self.training:
                    self.calls += 1
                    self.drift = self.drift * 0.9 + x.detach().mean(0).to(self.drift.dtype) / self.calls
                return x - self.drift

            def get_extra_state(self):
                return {"calls": self.calls}

            def set_extra_state(self, state):
                self.calls = state["calls"]
    """)
    builder.digested.append("[buffer for buffer in model.buffers()]")
    builder.model.append("model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Drift(), nn.ReLU(), nn.Linear(WIDTH, WIDTH))")


def _noisy(builder: ScriptBuilder) -> None:
    builder.model.append(
        "model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.RReLU(), nn.AlphaDropout(0.1), nn.Linear(WIDTH, WIDTH))"
    )


MODELS = [
    Feature("spectral and weight norm", _spectral, 1.0, _plain_whole),
    Feature("buffers that are not saved", _unsaved, 1.0, _plain_whole),
    Feature("RReLU and alpha dropout", _noisy, 0.7, _whole),
    Feature("MLP", _mlp, 2.0, _whole),
    Feature("dropout", _dropout, 1.5, _whole),
    Feature("batch norm", _batch_norm, 1.5, lambda builder: _whole(builder) and "low_precision" not in builder.traits),
    Feature("statistics of all ranks", _sync_batch_norm_like, 1.0, _plain_whole),
    Feature("tied weights", _tied, 1.0, lambda builder: _whole(builder) and "sharded" not in builder.traits),
    Feature("frozen layer", _frozen, 1.0, lambda builder: _whole(builder) and "zero" not in builder.traits),
    Feature("LoRA", _lora, 1.0, lambda builder: _plain_whole(builder) or "ddp" in builder.traits),
    Feature("activation checkpointing", _checkpointed, 1.5, _whole),
    Feature("attention", _attention, 1.0, _whole),
    Feature("embedding and GRU", _embedding, 1.0, lambda builder: _whole(builder) and "sharded" not in builder.traits),
    Feature(
        "convolution", _convolution, 1.0, lambda builder: _whole(builder) and "low_precision" not in builder.traits
    ),
    Feature("growing buffer", _growing, 1.5, lambda builder: _plain_whole(builder)),
    Feature("lazy modules", _lazy, 1.0, lambda builder: _whole(builder) and "low_precision" not in builder.traits),
    Feature(
        "unused parameters",
        _unused,
        1.0,
        lambda builder: "unused_parameters" in builder.traits or _plain_whole(builder),
    ),
    Feature("torch.compile", _compiled, 0.5, lambda builder: _whole(builder) and "one_backward" not in builder.traits),
]


def _of_torch(expression: str) -> Write:
    def write(builder: ScriptBuilder) -> None:
        builder.loss = expression

    return write


def _penalty(builder: ScriptBuilder) -> None:
    builder.helper("""
        def penalised(model, x, y):
            \"\"\"The error, and how steep it is: a backward pass through a backward pass.\"\"\"
            x = x.detach().requires_grad_()
            error = nn.functional.mse_loss(model(x), y)
            (slope,) = torch.autograd.grad(error, x, create_graph=True)
            return error + 0.1 * slope.square().sum()
    """)
    builder.loss = "penalised(model, x, y)"


def _twice(builder: ScriptBuilder) -> None:
    builder.loss = "nn.functional.mse_loss(model(x), y) + 0.5 * nn.functional.mse_loss(model(x.flip(0)), y.flip(0))"


_FORBIDDING = ("own_loss", "ddp", "sharded", "compiled", "apart", "one_backward", "integers")

LOSSES = [
    Feature("mean square", lambda builder: None, 3.0),
    Feature("Huber", _of_torch("nn.functional.huber_loss(model(x).to(y.dtype), y, delta=0.5)"), 1.0, lacks("own_loss")),
    Feature(
        "cross entropy",
        _of_torch("nn.functional.cross_entropy(model(x), y.argmax(-1), label_smoothing=0.1)"),
        1.0,
        lacks("own_loss"),
    ),
    Feature("gradient penalty", _penalty, 1.0, lacks(*_FORBIDDING)),
    Feature("two forward passes", _twice, 1.0, lacks(*_FORBIDDING)),
]


def write_seeds(builder: ScriptBuilder) -> None:
    """All ranks make the same model; later random numbers differ by rank."""
    builder.groups.insert(0, "torch.manual_seed(args.seed)")
    builder.wrap.append(
        block("""
        random.seed(args.seed + rank)
        np.random.seed(args.seed + rank)
        torch.manual_seed(1000 * args.seed + rank)
        """)
    )
    builder.protected = {"model": "model", **builder.protected}
    builder.digested.insert(0, "model.state_dict()")
    builder.draws += ["random.random()", "float(np.random.random())", "float(torch.rand(()))"]
