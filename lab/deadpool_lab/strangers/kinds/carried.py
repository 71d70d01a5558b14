"""State that steps hand on where protect() does not look: closures, iterators, lists, attributes, dictionaries."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_LOSS = "nn.functional.mse_loss(model(x), y)"
_LINEAR = "model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))"


def _statistics_in_closure(builder: ScriptBuilder) -> None:
    builder.need("import dataclasses")
    builder.helper("""
        @dataclasses.dataclass
        class Statistics:
            total: float = 0.0
            count: int = 0
            weight: float = 1.0


        def make_weigh():
            statistics = Statistics()

            def weigh(loss):
                \"\"\"By the mean of the losses so far, looked at in every fifth step.\"\"\"
                weighed = loss * statistics.weight
                statistics.total += float(loss.detach())
                statistics.count += 1
                if statistics.count % 5 == 0:
                    statistics.weight = 1 / (0.5 + statistics.total / statistics.count)
                return weighed

            return weigh
    """)
    builder.before_loop.append("weigh = make_weigh()")
    builder.loss = f"weigh({_LOSS})"


def _counters(builder: ScriptBuilder) -> None:
    builder.need("import itertools")
    builder.before_loop.append(
        block("""
        ticks, rates, bag = itertools.count(), itertools.cycle([0.5, 1.0, 2.0]), []
        bump = lambda: bag.append(1) or len(bag)
        rate = 1.0
        """)
    )
    builder.begin.append("if next(ticks) % 5 == 4:\n    rate = next(rates)")
    builder.loss = f"{_LOSS} * rate * (2.0 if bump() % 4 == 0 else 1.0)"


def _replay(builder: ScriptBuilder) -> None:
    builder.before_loop.append("memory = []")
    builder.fetch.append(
        block("""
        memory.append(x)
        if step.number > 8:
            x = 0.5 * (x + memory[len(memory) // 2])
        """)
    )


def _average(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Average:
            \"\"\"Follows in every fourth update. Its state has the tensors, and not how many updates there were.\"\"\"

            def __init__(self, model):
                self.model, self.updates = model, 0
                self.shadow = [parameter.detach().clone() for parameter in model.parameters()]

            @torch.no_grad()
            def update(self):
                self.updates += 1
                if self.updates % 4 == 0:
                    for mine, parameter in zip(self.shadow, self.model.parameters()):
                        mine.lerp_(parameter, 1 / (1 + self.updates))

            def state_dict(self):
                return {"shadow": self.shadow}

            def load_state_dict(self, state):
                self.shadow = [each.clone() for each in state["shadow"]]
    """)
    builder.extras.append("average = Average(model)")
    builder.protect(average="average")
    builder.finish.append("average.update()")


def _functional(builder: ScriptBuilder) -> None:
    builder.need("from torch.func import functional_call")
    builder.model.append(_LINEAR)
    builder.before_loop.append(
        "parameters = {name: each.detach().clone().requires_grad_() for name, each in model.named_parameters()}"
    )
    builder.loss = "nn.functional.mse_loss(functional_call(model, parameters, (x,)), y)"
    builder.backward = "gradients = torch.autograd.grad(loss, list(parameters.values()))"
    builder.reduce = ["for gradient in gradients:\n    dist.all_reduce(gradient)"]
    builder.update = [
        block("""
        parameters = {
            name: (each.detach() - 0.05 * gradient / world_size).requires_grad_()
            for (name, each), gradient in zip(parameters.items(), gradients)
        }
        """)
    ]
    builder.zero = []
    builder.digested.append("[each.detach() for each in parameters.values()]")


def _hidden(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Recurrent(nn.Module):
            \"\"\"The state of its cell is an attribute, and no buffer.\"\"\"

            def __init__(self):
                super().__init__()
                self.cell, self.last = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
                self.hidden = torch.zeros(1, WIDTH)

            def forward(self, x):
                hidden = self.cell(x, self.hidden.expand(len(x), WIDTH))
                if self.training:
                    self.hidden = hidden.mean(0, keepdim=True).detach()
                return self.last(hidden)
    """)
    builder.model.append("model = Recurrent()")


_NAMED = ("carried_variables",)

CARRIED = [
    Kind(
        name="closurestats",
        about="losses weighed by statistics in a closure",
        write=_statistics_in_closure,
        rules=_NAMED,
    ),
    Kind(name="itercounters", about="itertools and a lambda that count steps", write=_counters, rules=_NAMED),
    Kind(name="replaylist", about="batches from a list of those before", write=_replay, rules=_NAMED),
    Kind(name="avgcount", about="an average whose state lacks its counter", write=_average, rules=_NAMED),
    Kind(
        name="torchfunc",
        about="parameters in a dictionary, for torch.func",
        write=_functional,
        rules=_NAMED,
        brings=frozenset({"own_model", "own_reduce", "own_optimizer", "alone"}),
    ),
    Kind(
        name="hiddenattr",
        about="a recurrent state in an attribute of a module",
        write=_hidden,
        rules=(*_NAMED, "state_in_variables"),
        brings=frozenset({"own_model"}),
    ),
]
