"""Parameters and optimizers that a script replaces or adds while it trains."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind


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
