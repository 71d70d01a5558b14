"""What a script changes once, in a later step than its first: number formats, generators, groups, buffers, ties."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder
from deadpool_lab.strangers.kind import Kind

_LINEAR = "model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))"
_BARE = "model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh(), nn.Linear(WIDTH, WIDTH, bias=False))"
_REPLACED = ("replaced_objects",)
_CARRIED = ("carried_variables",)
_OWN_MODEL = frozenset({"own_model"})


def _double(builder: ScriptBuilder) -> None:
    builder.model.append(_LINEAR)
    builder.optimizers.append("optimizer = torch.optim.SGD(model.parameters(), lr=0.05)")
    builder.protect(optimizer="optimizer")
    builder.update, builder.zero = ["optimizer.step()"], ["optimizer.zero_grad()"]
    builder.begin.append("if step.number == 3:\n    model.double()")
    builder.fetch.append("x = torch.randn(BATCH, WIDTH).to(model[0].weight.dtype)\ny = x.sin()")


def _default_dtype(builder: ScriptBuilder) -> None:
    builder.model.append(_LINEAR)
    builder.begin.append("if step.number == 3:\n    torch.set_default_dtype(torch.float64)")
    builder.fetch.append("x = torch.randn(BATCH, WIDTH).float()\ny = x.sin()")


def _bit_generator(builder: ScriptBuilder) -> None:
    builder.begin.append("if step.number == 3:\n    np.random.set_bit_generator(np.random.PCG64(7 + rank))")


def _group(builder: ScriptBuilder) -> None:
    builder.before_loop.append("late = None")
    builder.begin.append("if step.number == 3:\n    late = dist.new_group()")
    builder.finish.append(
        "heard = torch.tensor([float(rank)])\nif late is not None:\n    dist.all_reduce(heard, group=late)"
    )
    builder.draws.append("float(heard)")


def _group_in_each_step(builder: ScriptBuilder) -> None:
    builder.finish.append(
        "heard, brief = torch.tensor([float(rank)]), dist.new_group()\n"
        "dist.all_reduce(heard, group=brief)\n"
        "dist.destroy_process_group(brief)"
    )
    builder.draws.append("float(heard)")


def _buffer(builder: ScriptBuilder) -> None:
    builder.model.append(_LINEAR)
    builder.begin.append('if step.number == 3:\n    model.register_buffer("scale", torch.ones(()))')
    builder.loss = 'nn.functional.mse_loss(model(x), y) * getattr(model, "scale", 1.0)'
    builder.finish.append("if step.number >= 3:\n    model.scale.mul_(0.95)")


def _untied(builder: ScriptBuilder) -> None:
    builder.model.append(_BARE + "\nmodel[2].weight = model[0].weight")
    builder.begin.append(
        "if step.number == 3:\n"
        "    model[2].weight = nn.Parameter(model[0].weight.detach().clone())\n"
        '    optimizer.param_groups[0]["params"].append(model[2].weight)'
    )


def _tied(builder: ScriptBuilder) -> None:
    builder.model.append(_BARE)
    builder.begin.append("if step.number == 3:\n    model[2].weight = model[0].weight")


def _directory(builder: ScriptBuilder) -> None:
    builder.need("import tempfile")
    builder.before_loop.append("place = tempfile.mkdtemp()")
    builder.begin.append("if step.number == 3:\n    os.chdir(place)")
    builder.draws.append("os.getcwd() == place")


def _inference_buffer(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Centred(nn.Module):
            \"\"\"Its buffer is made in inference mode, so that torch counts no writes into it.\"\"\"

            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(WIDTH, WIDTH)
                self.register_buffer("mean", torch.zeros(WIDTH))

            def forward(self, x):
                if self.training:
                    with torch.inference_mode():
                        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
                return self.inner(x - self.mean.clone())
    """)
    builder.model.append("model = nn.Sequential(Centred(), nn.Tanh(), nn.Linear(WIDTH, WIDTH))")


LATER = [
    Kind(
        name="todouble",
        about="the model becomes float64 in step 3",
        write=_double,
        rules=_REPLACED,
        brings=_OWN_MODEL | {"own_data", "own_optimizer"},
    ),
    Kind(
        name="defaultdtype",
        about="torch's default dtype changes in step 3",
        write=_default_dtype,
        rules=_CARRIED,
        brings=_OWN_MODEL | {"own_data", "alone"},
    ),
    Kind(name="numpybits", about="numpy's functions get another bit generator in step 3", write=_bit_generator),
    Kind(name="lategroup", about="a group made in step 3", write=_group, rules=("late_groups",)),
    Kind(name="briefgroup", about="a group made and destroyed in each step", write=_group_in_each_step),
    Kind(name="latebuffer", about="a buffer registered in step 3", write=_buffer, brings=_OWN_MODEL),
    Kind(name="untie", about="tied weights are untied in step 3", write=_untied, rules=_REPLACED, brings=_OWN_MODEL),
    Kind(name="tie", about="weights are tied in step 3", write=_tied, rules=_REPLACED, brings=_OWN_MODEL),
    Kind(name="chdirlate", about="the working directory changes in step 3", write=_directory, rules=_CARRIED),
    Kind(name="inferencebuf", about="a buffer that inference mode makes", write=_inference_buffer, brings=_OWN_MODEL),
]
