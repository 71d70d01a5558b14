"""State in places that are no variables: attributes of parameters and of modules, hooks, keys that are objects, the
context and the environment of the process."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_LOSS = "nn.functional.mse_loss(model(x), y)"
_NAMED = ("carried_variables", "state_in_variables")
_OWN_MODEL = frozenset({"own_model"})
_OWN_OPTIMIZER = frozenset({"own_optimizer"})


def _of_parameters(builder: ScriptBuilder) -> None:
    builder.optimizers.append(
        "for parameter in model.parameters():\n    parameter.velocity = torch.zeros_like(parameter)"
    )
    builder.update = [
        block("""
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.velocity.mul_(0.9).add_(parameter.grad)
                parameter.sub_(parameter.velocity, alpha=0.03)
        """)
    ]
    builder.zero = ["model.zero_grad()"]
    builder.digested.append("[parameter.velocity for parameter in model.parameters()]")


def _by_parameter(builder: ScriptBuilder) -> None:
    builder.optimizers.append("momentum = {parameter: torch.zeros_like(parameter) for parameter in model.parameters()}")
    builder.update = [
        block("""
        with torch.no_grad():
            for parameter, mean in momentum.items():
                mean.mul_(0.9).add_(parameter.grad)
                parameter.sub_(mean, alpha=0.03)
        """)
    ]
    builder.zero = ["model.zero_grad()"]
    builder.digested.append("list(momentum.values())")


def _hook(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Fade:
            \"\"\"A hook that fades, and that nobody else holds.\"\"\"

            def __init__(self):
                self.calls = 0

            def __call__(self, module, inputs, output):
                if module.training:
                    self.calls += 1
                return output * (1 + 1 / (1 + self.calls))
    """)
    builder.wrap.append("model.register_forward_hook(Fade())")


def _gradient_hook(builder: ScriptBuilder) -> None:
    builder.helper("""
        def smooth(parameter):
            mean = torch.zeros_like(parameter)

            def hook(gradient):
                mean.mul_(0.9).add_(gradient, alpha=0.1)
                return mean.clone()

            parameter.register_hook(hook)
    """)
    builder.wrap.append("for parameter in model.parameters():\n    smooth(parameter)")


def _with_layer(builder: ScriptBuilder, name: str, text: str) -> None:
    builder.helper(text)
    builder.model.append(f"model = nn.Sequential({name}(), nn.Tanh(), nn.Linear(WIDTH, WIDTH))")


def _list(builder: ScriptBuilder) -> None:
    _with_layer(
        builder,
        "Remembering",
        """
        class Remembering(nn.Module):
            \"\"\"Its list decides nothing until it is long.\"\"\"

            def __init__(self):
                super().__init__()
                self.inner, self.norms = nn.Linear(WIDTH, WIDTH), []

            def forward(self, x):
                if self.training:
                    self.norms.append(float(x.norm()))
                scale = 1.0 if len(self.norms) < 9 else sum(self.norms[:-8]) / len(self.norms)
                return self.inner(x) / (1 + scale)
        """,
    )


def _queue(builder: ScriptBuilder) -> None:
    _with_layer(
        builder,
        "Queue",
        """
        class Queue(nn.Module):
            \"\"\"Its queue is a plain tensor, and no buffer.\"\"\"

            def __init__(self):
                super().__init__()
                self.inner, self.queue, self.at = nn.Linear(WIDTH, WIDTH), torch.zeros(20, WIDTH), 0

            def forward(self, x):
                if self.training:
                    self.queue[self.at] = x.detach().mean(0)
                    self.at = (self.at + 1) % 20
                return self.inner(x) + self.queue.mean(0)
        """,
    )


def _number_of_numpy(builder: ScriptBuilder) -> None:
    _with_layer(
        builder,
        "Annealed",
        """
        class Annealed(nn.Module):
            \"\"\"After its first step the temperature is a number of numpy's.\"\"\"

            def __init__(self):
                super().__init__()
                self.inner, self.temperature = nn.Linear(WIDTH, WIDTH), 1.0

            def forward(self, x):
                if self.training:
                    self.temperature = self.temperature * np.exp(-0.05)
                return self.inner(x) / float(self.temperature)
        """,
    )


def _context(builder: ScriptBuilder) -> None:
    builder.need("import contextvars")
    builder.helper('scale = contextvars.ContextVar("scale", default=1.0)')
    builder.loss = f"{_LOSS} * scale.get()"
    builder.finish.append("scale.set(scale.get() * 0.95)")


def _thread_local(builder: ScriptBuilder) -> None:
    builder.need("import threading")
    builder.helper("local = threading.local()\nlocal.scale = 1.0")
    builder.loss = f"{_LOSS} * local.scale"
    builder.finish.append("local.scale *= 0.95")


def _environment(builder: ScriptBuilder) -> None:
    builder.before_loop.append('os.environ["CURRICULUM"] = "1.0"')
    builder.loss = f'{_LOSS} * float(os.environ["CURRICULUM"])'
    builder.finish.append('os.environ["CURRICULUM"] = repr(float(os.environ["CURRICULUM"]) * 0.95)')


def _class_attribute(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Curriculum:
            level = 1.0

            @classmethod
            def advance(cls):
                cls.level *= 0.95
    """)
    builder.loss = f"{_LOSS} * Curriculum.level"
    builder.finish.append("Curriculum.advance()")


def _cached_rows(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Rows:
            \"\"\"Draws each row once.\"\"\"

            def __init__(self):
                self.cache = {}

            def __getitem__(self, index):
                if index not in self.cache:
                    self.cache[index] = torch.randn(WIDTH)
                return self.cache[index]
    """)
    builder.data.append("rows = Rows()")
    builder.fetch.append(
        block("""
        x = torch.stack([rows[(step.number * 2 + index) % 40] for index in range(BATCH)])
        y = x.cos() + torch.rand(())
        """)
    )


HIDDEN = [
    Kind(
        name="paramattr",
        about="velocities in attributes of parameters",
        write=_of_parameters,
        rules=_NAMED,
        brings=_OWN_OPTIMIZER,
    ),
    Kind(
        name="paramkeys",
        about="momenta in a dictionary by parameter",
        write=_by_parameter,
        rules=_NAMED,
        brings=_OWN_OPTIMIZER,
    ),
    Kind(name="hookstate", about="a forward hook that counts its calls", write=_hook, rules=_NAMED),
    Kind(name="gradhook", about="hooks of parameters that smooth gradients", write=_gradient_hook, rules=_NAMED),
    Kind(name="listattr", about="a list in a module, read late", write=_list, rules=_NAMED, brings=_OWN_MODEL),
    Kind(name="queueattr", about="a queue in a plain tensor", write=_queue, rules=_NAMED, brings=_OWN_MODEL),
    Kind(
        name="numpyattr",
        about="a temperature that numpy anneals, in an attribute",
        write=_number_of_numpy,
        brings=_OWN_MODEL,
    ),
    Kind(name="contextvar", about="a scale in a context variable", write=_context, rules=_NAMED),
    Kind(name="threadlocal", about="a scale in threading.local", write=_thread_local, rules=_NAMED),
    Kind(name="environ", about="a scale in os.environ", write=_environment, rules=_NAMED),
    Kind(name="classattr", about="a curriculum in an attribute of a class", write=_class_attribute, rules=_NAMED),
    Kind(
        name="lazyrows",
        about="rows that are drawn once and cached",
        write=_cached_rows,
        rules=_NAMED,
        brings=frozenset({"own_data"}),
    ),
]
