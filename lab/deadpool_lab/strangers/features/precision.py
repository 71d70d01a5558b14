"""Number formats, loss scales, averages of weights."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, block, lacks


def _autocast(builder: ScriptBuilder) -> None:
    builder.contexts.append('torch.autocast("cpu", dtype=torch.bfloat16)')


def _double(builder: ScriptBuilder) -> None:
    builder.opening.append("torch.set_default_dtype(torch.float64)")


def _grad_scaler(builder: ScriptBuilder) -> None:
    builder.extras.append('scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)')
    builder.protect(scaler="scaler")
    builder.backward = "scaler.scale(loss).backward()"
    builder.clip.insert(0, "scaler.unscale_(optimizer)")
    builder.update = ["scaler.step(optimizer)", "scaler.update()"]


def _own_scale(builder: ScriptBuilder) -> None:
    builder.helper("""
        class LossScale:
            \"\"\"Doubles after three good steps, halves after a bad one: numbers of plain Python.\"\"\"

            def __init__(self):
                self.value, self.good = 256.0, 0

            def update(self, good):
                self.good = self.good + 1 if good else 0
                self.value = self.value * (2 if self.good % 3 == 2 else 1) if good else self.value / 2

            def state_dict(self):
                return dict(vars(self))

            def load_state_dict(self, state):
                vars(self).update(state)
    """)
    builder.extras.append("scale = LossScale()")
    builder.protect(scale="scale")
    builder.backward = "(loss * scale.value).backward()"
    builder.clip.insert(
        0,
        block("""
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= scale.value
        scale.update(step.number % 5 != 4)
        """),
    )


def _one_optimizer(builder: ScriptBuilder) -> bool:
    return not builder.traits & {
        "sharded",
        "closure",
        "two_optimizers",
        "zero",
        "uneven",
        "skips",
        "pipeline",
        "no_optimizer",
    }


PRECISION = [
    Feature("float32", lambda builder: None, 3.0),
    Feature("autocast to bf16", _autocast, 1.0, lacks("closure", "low_precision", "sharded", "pipeline")),
    Feature("float64", _double, 1.0, lacks("low_precision")),
    Feature("GradScaler", _grad_scaler, 1.0, _one_optimizer),
    Feature("a loss scale by hand", _own_scale, 1.0, lacks("closure", "uneven", "pipeline")),
]


# --- averages of weights ----------------------------------------------------------------------------------------------


def _inner(builder: ScriptBuilder) -> str:
    return "model.module" if "ddp" in builder.traits else "model"


def _ema_holder(builder: ScriptBuilder) -> None:
    builder.helper("""
        def local(tensor):
            return tensor.to_local() if hasattr(tensor, "to_local") else tensor


        class Ema:
            \"\"\"Averages of this rank's parameters, as a list of tensors.\"\"\"

            def __init__(self, model, decay):
                self.decay = decay
                self.averages = [local(parameter.detach()).clone() for parameter in model.parameters()]

            @torch.no_grad()
            def update(self, model):
                for average, parameter in zip(self.averages, model.parameters()):
                    average.lerp_(local(parameter), 1 - self.decay)

            def state_dict(self):
                return {"averages": self.averages}

            def load_state_dict(self, state):
                self.averages = state["averages"]
    """)
    builder.extras.append("ema = Ema(model, 0.9)")
    builder.protect(ema="ema")
    builder.finish.append("ema.update(model)")


def _ema_model(builder: ScriptBuilder) -> None:
    builder.need("import copy")
    builder.extras.append(f"shadow = copy.deepcopy({_inner(builder)}).requires_grad_(False)")
    builder.protect(shadow="shadow")
    builder.finish.append(
        block(f"""
        with torch.no_grad():
            for average, parameter in zip(shadow.parameters(), {_inner(builder)}.parameters()):
                average.lerp_(parameter, 0.2)
        """)
    )


def _swa(builder: ScriptBuilder) -> None:
    builder.need("from torch.optim.swa_utils import AveragedModel")
    builder.extras.append(f"averaged = AveragedModel({_inner(builder)})")
    builder.protect(averaged="averaged")
    builder.finish.append(
        block(f"""
        if step.number >= 3:
            averaged.update_parameters({_inner(builder)})
        """)
    )


def _teacher(builder: ScriptBuilder) -> None:
    """Before the optimizer steps, and while the last version is copied."""
    builder.need("import copy")
    builder.extras.append(f"teacher = copy.deepcopy({_inner(builder)})")
    builder.protect(teacher="teacher")
    builder.begin.append(
        block(f"""
        with torch.no_grad():
            for slow, quick in zip(teacher.parameters(), {_inner(builder)}.parameters()):
                slow.lerp_(quick, 0.3)
        """)
    )


def _copies(builder: ScriptBuilder) -> bool:
    return not builder.traits & {"sharded", "compiled", "one_backward", "parametrized", "pipeline", "growing_buffer"}


AVERAGES = [
    Feature("no average", lambda builder: None, 3.0),
    Feature("EMA in a list", _ema_holder, 1.0),
    Feature("EMA as a model", _ema_model, 1.0, _copies),
    Feature("SWA", _swa, 1.0, _copies),
    Feature("a teacher that follows first", _teacher, 1.0, _copies),
]
