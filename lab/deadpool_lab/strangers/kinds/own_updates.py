"""Optimizers as people write them: around others, with passes of their own, with counts, without gradients; and two
models that take turns."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_NAMED = ("carried_variables", "state_in_variables")
_OWN_OPTIMIZER = frozenset({"own_optimizer"})


def _use(builder: ScriptBuilder, text: str) -> None:
    builder.optimizers.append(f"optimizer = {text}")
    builder.protect(optimizer="optimizer")
    builder.update = ["optimizer.step()"]
    builder.zero = ["optimizer.zero_grad()"]


def _lookahead(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Lookahead(torch.optim.Optimizer):
            \"\"\"Its state_dict() is that of the optimizer inside: slow weights and count are in none.\"\"\"

            def __init__(self, params, every=5):
                super().__init__(params, {})
                self.optimizer = torch.optim.AdamW(self.param_groups, lr=0.01)
                self.param_groups = self.optimizer.param_groups
                self.every, self.count = every, 0
                self.slow = [each.detach().clone() for each in self.weights()]

            def weights(self):
                return [each for group in self.param_groups for each in group["params"]]

            @torch.no_grad()
            def step(self, closure=None):
                self.optimizer.step()
                self.count += 1
                if self.count % self.every == 0:
                    for slow, fast in zip(self.slow, self.weights()):
                        slow.lerp_(fast, 0.5)
                        fast.copy_(slow)

            def state_dict(self):
                return self.optimizer.state_dict()

            def load_state_dict(self, state):
                self.optimizer.load_state_dict(state)
    """)
    _use(builder, "Lookahead(model.parameters())")


def _count(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Warmed(torch.optim.Optimizer):
            \"\"\"Its count is an attribute that no state_dict() has.\"\"\"

            def __init__(self, parameters):
                super().__init__(parameters, {"lr": 0.1})
                self.count = 0

            @torch.no_grad()
            def step(self, closure=None):
                self.count += 1
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.sub_(parameter.grad, alpha=group["lr"] / (1 + self.count // 5))
    """)
    _use(builder, "Warmed(model.parameters())")


def _by_name(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Measured(torch.optim.Optimizer):
            \"\"\"Its state has entries under names, beside those of parameters.\"\"\"

            def __init__(self, params):
                super().__init__(params, {"lr": 0.1})
                self.state["all"] = {"count": 0, "norms": []}

            @torch.no_grad()
            def step(self, closure=None):
                known = self.state["all"]
                known["count"] += 1
                known["norms"].append(float(self.param_groups[0]["params"][0].grad.norm()))
                for group in self.param_groups:
                    for each in group["params"]:
                        rate = group["lr"] / known["count"] / (1 + sum(known["norms"][-3:]))
                        each.sub_(each.grad, alpha=rate)
    """)
    _use(builder, "Measured(model.parameters())")


_AVERAGE = """
    def average(model, world_size):
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
"""


def _two_passes(builder: ScriptBuilder) -> None:
    builder.helper(_AVERAGE)
    builder.helper("""
        class SAM(torch.optim.Optimizer):
            \"\"\"Moves the weights uphill, computes gradients there, and puts the old weights back.\"\"\"

            def __init__(self, params, rho=0.05, **settings):
                super().__init__(params, {"rho": rho, **settings})
                self.base_optimizer = torch.optim.SGD(self.param_groups, **settings)
                self.param_groups = self.base_optimizer.param_groups

            def weights(self):
                return [(group, each) for group in self.param_groups for each in group["params"]]

            @torch.no_grad()
            def step(self, closure):
                norm = torch.stack([each.grad.norm() for _, each in self.weights()]).norm()
                for group, each in self.weights():
                    self.state[each]["old"] = each.data.clone()
                    each.add_(each.grad, alpha=float(group["rho"] / (norm + 1e-12)))
                self.zero_grad()
                with torch.enable_grad():
                    closure()
                for _, each in self.weights():
                    each.data = self.state[each]["old"]
                self.base_optimizer.step()
    """)
    _use(builder, "SAM(model.parameters(), lr=0.05, momentum=0.9)")
    builder.reduce = ["average(model, world_size)"]
    builder.update = [
        block("""
        def again():
            nn.functional.mse_loss(model(x), y).backward()
            average(model, world_size)

        optimizer.step(again)
        """)
    ]


def _two_models(builder: ScriptBuilder) -> None:
    builder.helper(_AVERAGE)
    builder.model.append(
        block("""
        shared = nn.Linear(WIDTH, WIDTH)
        model = nn.Sequential(shared, nn.Tanh(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH))
        critic = nn.Sequential(shared, nn.BatchNorm1d(WIDTH), nn.LeakyReLU(), nn.Linear(WIDTH, 1))
        """)
    )
    builder.protect(critic="critic")
    builder.optimizers.append(
        block("""
        maker = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.5, 0.9))
        judge = torch.optim.RMSprop(critic.parameters(), lr=0.005)
        """)
    )
    builder.protect(maker="maker", judge="judge")
    builder.loss = "nn.functional.softplus(critic(y)).mean() - critic(model(x).detach()).mean()"
    builder.reduce = ["average(critic, world_size)"]
    builder.update = [
        block("""
        judge.step()
        maker.zero_grad()
        if step.number % 2:
            critic.requires_grad_(False)
            shared.requires_grad_(True)
            critic(model(torch.randn(BATCH, WIDTH))).mean().backward()
            average(model, world_size)
            maker.step()
            critic.requires_grad_(True)
        """)
    ]
    builder.zero = ["judge.zero_grad()\nmaker.zero_grad()"]


def _tensor_rate(builder: ScriptBuilder) -> None:
    builder.optimizers.append(
        block("""
        rate = torch.tensor(0.05)
        groups = [{"params": [each]} for each in model.parameters()]
        optimizer = torch.optim.SGD(groups, lr=rate, momentum=0.9, foreach=False)
        """)
    )
    builder.protect(optimizer="optimizer")
    builder.update = ["optimizer.step()\nrate.mul_(0.95)"]
    builder.zero = ["optimizer.zero_grad()"]
    builder.draws.append("float(rate)")


def _evolution(builder: ScriptBuilder) -> None:
    builder.train = [
        'seen = ""',
        *builder.fetch,
        block("""
        seen = digest(seen, x, y)
        noise = torch.Generator().manual_seed(97 * step.number + rank)
        with torch.inference_mode():
            moves = [torch.randn(each.shape, generator=noise) for each in model.parameters()]
            for parameter, each in zip(model.parameters(), moves):
                parameter.add_(each, alpha=0.05)
            loss = nn.functional.mse_loss(model(x), y)
            for parameter, each in zip(model.parameters(), moves):
                parameter.sub_(each, alpha=0.05)
            for parameter, each in zip(model.parameters(), moves):
                push = each * loss
                dist.all_reduce(push)
                parameter.sub_(push, alpha=0.1 / world_size)
        """),
    ]


OWN_UPDATES = [
    Kind(
        name="lookahead",
        about="slow weights in an optimizer whose state_dict() lacks them",
        write=_lookahead,
        rules=_NAMED,
        brings=_OWN_OPTIMIZER,
    ),
    Kind(
        name="optcount",
        about="an own Optimizer with a count that no state_dict() has",
        write=_count,
        rules=_NAMED,
        brings=_OWN_OPTIMIZER,
    ),
    Kind(name="optbyname", about="an own Optimizer with state under names", write=_by_name, brings=_OWN_OPTIMIZER),
    Kind(
        name="sam",
        about="an optimizer with two passes, which puts weights back by .data",
        write=_two_passes,
        brings=frozenset({"own_optimizer", "own_reduce"}),
    ),
    Kind(
        name="gan",
        about="two models with a layer in common, whose optimizers take turns",
        write=_two_models,
        brings=frozenset({"own_model", "own_optimizer", "own_reduce"}),
    ),
    Kind(
        name="tensorlr",
        about="a learning rate in a tensor that groups and script share",
        write=_tensor_rate,
        brings=_OWN_OPTIMIZER,
    ),
    Kind(
        name="evolution",
        about="evolution strategies in inference mode, without gradients",
        write=_evolution,
        brings=frozenset({"own_optimizer", "own_reduce", "alone"}),
    ),
]
