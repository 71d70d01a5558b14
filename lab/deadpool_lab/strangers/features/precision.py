"""Number formats, loss scales, averages of weights."""

from __future__ import annotations

from deadpool_lab.strangers.draft import Draft, block
from deadpool_lab.strangers.feature import Feature, lacks


def _autocast(draft: Draft) -> None:
    draft.contexts.append('torch.autocast("cpu", dtype=torch.bfloat16)')


def _double(draft: Draft) -> None:
    draft.opening.append("torch.set_default_dtype(torch.float64)")


def _grad_scaler(draft: Draft) -> None:
    draft.extras.append('scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)')
    draft.protect(scaler="scaler")
    draft.backward = "scaler.scale(loss).backward()"
    draft.clip.insert(0, "scaler.unscale_(optimizer)")
    draft.update = ["scaler.step(optimizer)", "scaler.update()"]


def _own_scale(draft: Draft) -> None:
    draft.helper("""
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
    draft.extras.append("scale = LossScale()")
    draft.protect(scale="scale")
    draft.backward = "(loss * scale.value).backward()"
    draft.clip.insert(
        0,
        block("""
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= scale.value
        scale.update(step.number % 5 != 4)
        """),
    )


def _one_optimizer(draft: Draft) -> bool:
    return not draft.traits & {
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
    Feature("float32", lambda draft: None, 3.0),
    Feature("autocast to bf16", _autocast, 1.0, lacks("closure", "low_precision", "sharded", "pipeline")),
    Feature("float64", _double, 1.0, lacks("low_precision")),
    Feature("GradScaler", _grad_scaler, 1.0, _one_optimizer),
    Feature("a loss scale by hand", _own_scale, 1.0, lacks("closure", "uneven", "pipeline")),
]


# --- averages of weights ----------------------------------------------------------------------------------------------


def _inner(draft: Draft) -> str:
    return "model.module" if "ddp" in draft.traits else "model"


def _ema_holder(draft: Draft) -> None:
    draft.helper("""
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
    draft.extras.append("ema = Ema(model, 0.9)")
    draft.protect(ema="ema")
    draft.finish.append("ema.update(model)")


def _ema_model(draft: Draft) -> None:
    draft.need("import copy")
    draft.extras.append(f"shadow = copy.deepcopy({_inner(draft)}).requires_grad_(False)")
    draft.protect(shadow="shadow")
    draft.finish.append(
        block(f"""
        with torch.no_grad():
            for average, parameter in zip(shadow.parameters(), {_inner(draft)}.parameters()):
                average.lerp_(parameter, 0.2)
        """)
    )


def _swa(draft: Draft) -> None:
    draft.need("from torch.optim.swa_utils import AveragedModel")
    draft.extras.append(f"averaged = AveragedModel({_inner(draft)})")
    draft.protect(averaged="averaged")
    draft.finish.append(
        block(f"""
        if step.number >= 3:
            averaged.update_parameters({_inner(draft)})
        """)
    )


def _teacher(draft: Draft) -> None:
    """Before the optimizer steps, and while the last version is copied."""
    draft.need("import copy")
    draft.extras.append(f"teacher = copy.deepcopy({_inner(draft)})")
    draft.protect(teacher="teacher")
    draft.begin.append(
        block(f"""
        with torch.no_grad():
            for slow, quick in zip(teacher.parameters(), {_inner(draft)}.parameters()):
                slow.lerp_(quick, 0.3)
        """)
    )


def _copies(draft: Draft) -> bool:
    return not draft.traits & {"sharded", "compiled", "one_backward", "parametrized", "pipeline", "growing_buffer"}


AVERAGES = [
    Feature("no average", lambda draft: None, 3.0),
    Feature("EMA in a list", _ema_holder, 1.0),
    Feature("EMA as a model", _ema_model, 1.0, _copies),
    Feature("SWA", _swa, 1.0, _copies),
    Feature("a teacher that follows first", _teacher, 1.0, _copies),
]
