"""Optimizers, schedules of their learning rates, clipping."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, Write, block, indented, lacks


def _trainable(builder: ScriptBuilder) -> str:
    if "frozen" in builder.traits:
        return "[parameter for parameter in model.parameters() if parameter.requires_grad]"
    return "model.parameters()"


def _finish(builder: ScriptBuilder) -> None:
    builder.protect(optimizer="optimizer")
    builder.update.append("optimizer.step()")
    zero = builder.rng.choice(["optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"])
    builder.zero.append(zero)
    ranks = builder.shape.world_size
    if "bucket_view" in builder.traits and "False" in zero and ranks & (ranks - 1):
        builder.refused = "no power of two"


def _of_torch(name: str, settings: str) -> Write:
    def write(builder: ScriptBuilder) -> None:
        builder.optimizers.append(f"optimizer = torch.optim.{name}({_trainable(builder)}, {settings})")
        _finish(builder)

    return write


def _sharded_state(builder: ScriptBuilder) -> None:
    """ZeRO-1, around one of torch's."""
    inner = builder.rng.choice(["Adam, lr=0.01", "AdamW, lr=0.01", "SGD, lr=0.1, momentum=0.9", "RMSprop, lr=0.01"])
    overlap = builder.rng.choice(["", ", parameters_as_bucket_view=True"])
    builder.optimizers.append(
        f"optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.{inner}{overlap})"
    )
    builder.protected["optimizer"] = "optimizer"
    builder.digested.append("optimizer.optim.state_dict()")
    builder.update.append("optimizer.step()")
    builder.zero.append("optimizer.zero_grad()")


def _groups(builder: ScriptBuilder) -> None:
    builder.optimizers.append(
        block("""
        decayed = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim > 1]
        others = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim <= 1]
        optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 0.002}], lr=0.01
        )
        """)
    )
    _finish(builder)


def _several(builder: ScriptBuilder) -> None:
    builder.optimizers.append(
        block("""
        matrices = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim > 1]
        vectors = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.ndim <= 1]
        optimizer = torch.optim.SGD(matrices, lr=0.05, momentum=0.9)
        vector_optimizer = torch.optim.Adam(vectors, lr=0.01)
        """)
    )
    builder.traits.add("two_optimizers")
    _finish(builder)
    builder.protect(vector_optimizer="vector_optimizer")
    builder.update.append("vector_optimizer.step()")
    builder.zero.append("vector_optimizer.zero_grad()")


def _muon(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Muon(torch.optim.Optimizer):
            \"\"\"Momentum, made orthogonal by Newton and Schulz; vectors take plain steps.\"\"\"

            def __init__(self, parameters, lr=0.02, momentum=0.9):
                super().__init__(parameters, {"lr": lr, "momentum": momentum})

            @torch.no_grad()
            def step(self, closure=None):
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is None:
                            continue
                        state = self.state[parameter]
                        if not state:
                            state["momentum"] = torch.zeros_like(parameter)
                        state["momentum"].mul_(group["momentum"]).add_(parameter.grad)
                        update = state["momentum"]
                        if parameter.ndim == 2:
                            update = orthogonal(update)
                        parameter.add_(update, alpha=-group["lr"])


        def orthogonal(matrix):
            x = matrix / (matrix.norm() + 1e-7)
            for _ in range(3):
                a = x @ x.T
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            return x
    """)
    builder.optimizers.append(f"optimizer = Muon({_trainable(builder)})")
    _finish(builder)


def _by_itself(builder: ScriptBuilder) -> None:
    """No optimizer of torch: only the script knows when parameters change."""
    builder.traits.add("no_optimizer")
    builder.claims.pop("optimizer", None)  # nobody would take it for a replica
    builder.helper("""
        class Momentum:
            \"\"\"Parameters and momentum, moved by hand.\"\"\"

            def __init__(self, parameters):
                self.parameters = list(parameters)
                self.momentum = [torch.zeros_like(parameter) for parameter in self.parameters]

            @torch.no_grad()
            def step(self):
                for parameter, momentum in zip(self.parameters, self.momentum):
                    if parameter.grad is not None:
                        momentum.mul_(0.9).add_(parameter.grad)
                        parameter.sub_(0.05 * momentum)

            def zero_grad(self, set_to_none=True):
                for parameter in self.parameters:
                    parameter.grad = None

            def state_dict(self):
                return {"momentum": self.momentum}

            def load_state_dict(self, state):
                self.momentum = state["momentum"]
    """)
    builder.optimizers.append(f"optimizer = Momentum({_trainable(builder)})")
    _finish(builder)


def _lbfgs(builder: ScriptBuilder) -> None:
    """Adds LBFGS, whose closure runs forward and backward inside step()."""
    builder.traits.add("closure")
    builder.optimizers.append(
        f"optimizer = torch.optim.LBFGS({_trainable(builder)}, lr=0.1, max_iter=3, history_size=4)"
    )
    builder.protect(optimizer="optimizer")


def write_closure(builder: ScriptBuilder) -> None:
    """The lines of a step for LBFGS, once the others are known."""
    mean = ["mean = loss.detach().clone()", "dist.all_reduce(mean)", "return mean / world_size"]  # all stop together
    lines = ["optimizer.zero_grad()", f"loss = {builder.loss}", "loss.backward()", *builder.reduce, *mean]
    closure = "\n".join(["def closure():", *indented(lines)])
    batch = ['seen = ""', *builder.fetch, "seen = digest(seen, x, y)"]
    builder.train = [*batch, closure, "loss = optimizer.step(closure).detach()"]


def _apart_from_zero(builder: ScriptBuilder) -> bool:
    return "zero" not in builder.traits


def _simple(builder: ScriptBuilder) -> bool:
    return not builder.traits & {"zero", "sharded"}


def _may_close(builder: ScriptBuilder) -> bool:
    return "by_hand" in builder.traits and not builder.traits & {"one_backward", "compiled", "growing_buffer"}


OPTIMIZERS = [
    Feature("ZeroRedundancyOptimizer", _sharded_state, 1.0, lambda builder: "zero" in builder.traits),
    Feature("SGD", _of_torch("SGD", "lr=0.05"), 0.7, _apart_from_zero),
    Feature("SGD nesterov", _of_torch("SGD", "lr=0.05, momentum=0.9, nesterov=True"), 1.0, _apart_from_zero),
    Feature("Adam", _of_torch("Adam", "lr=0.01, amsgrad=True"), 1.0, _apart_from_zero),
    Feature("AdamW foreach", _of_torch("AdamW", "lr=0.01, foreach=True"), 1.0, lacks("zero", "mixed_parameters")),
    Feature("AdamW fused", _of_torch("AdamW", "lr=0.01, fused=True"), 1.0, lacks("zero", "mixed_parameters")),
    Feature("Adamax", _of_torch("Adamax", "lr=0.01"), 0.7, _simple),
    Feature("NAdam", _of_torch("NAdam", "lr=0.01"), 0.7, _simple),
    Feature("RAdam", _of_torch("RAdam", "lr=0.01"), 0.7, _simple),
    Feature("RMSprop", _of_torch("RMSprop", "lr=0.01, centered=True, momentum=0.5"), 0.7, _simple),
    Feature("Adagrad", _of_torch("Adagrad", "lr=0.05"), 0.7, _simple),
    Feature("Adadelta", _of_torch("Adadelta", "lr=0.5"), 0.5, _simple),
    Feature("Rprop", _of_torch("Rprop", "lr=0.01"), 0.5, _simple),
    Feature("ASGD", _of_torch("ASGD", "lr=0.05, t0=3"), 0.5, _simple),
    Feature("Adafactor", _of_torch("Adafactor", "lr=0.02"), 0.7, _simple),
    Feature("parameter groups", _groups, 1.0, _apart_from_zero),
    Feature("two optimizers", _several, 1.0, lacks("zero", "uneven", "matrices_only")),
    Feature("Muon", _muon, 1.0, _simple),
    Feature("an optimizer by hand", _by_itself, 1.0, _simple),
    Feature("LBFGS", _lbfgs, 1.0, _may_close),
]


# --- schedules --------------------------------------------------------------------------------------------------------


def _schedule(expression: str) -> Write:
    def write(builder: ScriptBuilder) -> None:
        builder.extras.append(f"scheduler = torch.optim.lr_scheduler.{expression}")
        builder.protect(scheduler="scheduler")
        builder.finish.append("scheduler.step()")

    return write


def _sequential(builder: ScriptBuilder) -> None:
    builder.extras.append(
        block("""
        schedules = torch.optim.lr_scheduler
        warmup = schedules.LinearLR(optimizer, start_factor=0.1, total_iters=3)
        decay = schedules.CosineAnnealingLR(optimizer, T_max=STEPS - 3)
        scheduler = schedules.SequentialLR(optimizer, [warmup, decay], milestones=[3])
        """)
    )
    builder.protect(scheduler="scheduler")
    builder.finish.append("scheduler.step()")


def _plateau(builder: ScriptBuilder) -> None:
    builder.extras.append(
        "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)"
    )
    builder.protect(scheduler="scheduler")
    builder.finish.append(
        block("""
        mean = loss.clone()
        dist.all_reduce(mean)
        scheduler.step(float(mean) / world_size)
        """)
    )


def _by_hand(builder: ScriptBuilder) -> None:
    builder.begin.append(
        block("""
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(1.0, (step.number + 1) / 4) * 0.95**step.number
        """)
    )


_has_groups = lacks("no_optimizer")

SCHEDULES = [
    Feature("no schedule", lambda builder: None, 3.0),
    Feature("LambdaLR", _schedule("LambdaLR(optimizer, lambda n: 1 / (1 + n))"), 1.0, _has_groups),
    Feature(
        "OneCycleLR",
        _schedule("OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS + 1, cycle_momentum=False)"),
        1.0,
        lacks("zero", "no_optimizer"),
    ),
    Feature("CosineAnnealingLR", _schedule("CosineAnnealingLR(optimizer, T_max=5)"), 1.0, _has_groups),
    Feature("CyclicLR", _schedule("CyclicLR(optimizer, 0.001, 0.02, 3, cycle_momentum=False)"), 0.5, _has_groups),
    Feature("SequentialLR", _sequential, 1.0, _has_groups),
    Feature("ReduceLROnPlateau", _plateau, 1.0, lacks("zero", "uneven", "no_optimizer")),
    Feature("a schedule by hand", _by_hand, 1.0, _has_groups),
]


# --- clipping ---------------------------------------------------------------------------------------------------------


def _clip_norm(builder: ScriptBuilder) -> None:
    builder.traits.add("clips")
    builder.clip.append("nn.utils.clip_grad_norm_(model.parameters(), 0.5)")


def _clip_value(builder: ScriptBuilder) -> None:
    builder.clip.append("nn.utils.clip_grad_value_(model.parameters(), 0.05)")


CLIPPING = [
    Feature("clipped by norm", _clip_norm, 0.4, lacks("closure", "mixed_parameters", "pipeline")),
    Feature("clipped by value", _clip_value, 0.15, lacks("closure", "sharded")),
]
