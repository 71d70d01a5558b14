"""What is minimised, and from which seeds.

What is minimised. The contract is `loss`, a scalar of `model`, `x` and `y`.

`write_seeds`: Seeds of all generators, and the numbers that are drawn from them in every step.
"""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, Write, block, lacks


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
