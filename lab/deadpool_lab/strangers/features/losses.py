"""What is minimised. The contract is `loss`, a scalar of `model`, `x` and `y`."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder
from deadpool_lab.strangers.feature import Feature, Write, lacks


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
