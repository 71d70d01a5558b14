"""State that a script keeps beside the step: in attributes of torch's modules, of modules and optimizers that it has
made, and in what it does before a step's boundary or carries over it: batches, gradients, handles."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_OWN_MODEL = frozenset({"own_model"})

_OWN_DATA = frozenset({"own_data"})


def _dropout_rate(builder: ScriptBuilder) -> None:
    builder.model.append(
        "model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Dropout(0.3), nn.Linear(2 * WIDTH, WIDTH))"
    )
    builder.begin.append("if step.number == 3:\n    model[2].p = 0.0")


def _norm_momentum(builder: ScriptBuilder) -> None:
    builder.model.append(
        "model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))"
    )
    builder.begin.append("if step.number == 3:\n    model[1].momentum = 0.01")


def _optimizer_state(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Warmed(torch.optim.Optimizer):
            \"\"\"Counts its steps itself, and takes longer ones at first.\"\"\"

            def __init__(self, parameters):
                super().__init__(parameters, {"lr": 0.1})
                self.count = 0

            @torch.no_grad()
            def step(self, closure=None):
                self.count += 1
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.sub_(parameter.grad, alpha=group["lr"] / self.count)

            def state_dict(self):
                return {**super().state_dict(), "count": self.count}

            def load_state_dict(self, state):
                self.count = state["count"]
                super().load_state_dict({name: value for name, value in state.items() if name != "count"})
    """)
    builder.optimizers.append("optimizer = Warmed(model.parameters())")
    builder.protect(optimizer="optimizer")
    builder.update = ["optimizer.step()"]
    builder.zero = ["optimizer.zero_grad()"]


def _module_state(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Fading(nn.Module):
            \"\"\"Its count is in its state_dict, but no buffer.\"\"\"

            def __init__(self):
                super().__init__()
                self.count = 0

            def forward(self, x):
                if self.training:
                    self.count += 1
                return x * (1 + 1 / (1 + self.count))

            def _save_to_state_dict(self, destination, prefix, keep_vars):
                super()._save_to_state_dict(destination, prefix, keep_vars)
                destination[prefix + "count"] = torch.tensor(self.count)

            def _load_from_state_dict(self, state_dict, prefix, *rest):
                self.count = int(state_dict.pop(prefix + "count"))
                super()._load_from_state_dict(state_dict, prefix, *rest)
    """)
    builder.model.append("model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Fading(), nn.Tanh(), nn.Linear(WIDTH, WIDTH))")


def _environment(builder: ScriptBuilder) -> None:
    """Adds an environment whose generators and memory are the script's own objects, and which says what they hold."""
    builder.need("from collections import deque")
    builder.helper("""
        class Corridor:
            \"\"\"An environment with a memory of what was seen.\"\"\"

            def __init__(self, seed):
                self.noise, self.choice = np.random.Generator(np.random.PCG64(seed)), random.Random(seed)
                self.place, self.seen = 0.0, deque(maxlen=12)

            def play(self):
                for _ in range(BATCH):
                    self.place = 0.9 * self.place + self.noise.standard_normal()
                    self.seen.append((self.place, self.choice.random()))
                rows = [self.choice.choice(self.seen) for _ in range(BATCH)]
                x = torch.tensor([[place * (1 + column) for column in range(WIDTH)] for place, _ in rows]).sin()
                return x, torch.tensor([[reward] * WIDTH for _, reward in rows])

            def state_dict(self):
                generators = {"noise": self.noise.bit_generator.state, "choice": self.choice.getstate()}
                return {**generators, "place": self.place, "seen": list(self.seen)}

            def load_state_dict(self, state):
                self.noise.bit_generator.state = state["noise"]
                self.choice.setstate(state["choice"])
                self.place, self.seen = state["place"], deque(state["seen"], maxlen=12)
    """)
    builder.data.append("corridor = Corridor(90 + rank)")
    builder.protect(corridor="corridor")
    builder.fetch.append("x, y = corridor.play()")


def _in_backward(builder: ScriptBuilder) -> None:
    builder.optimizers.append(
        block("""
        optimizers = {parameter: torch.optim.AdamW([parameter], lr=0.01) for parameter in model.parameters()}


        def update(parameter):
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()


        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        """)
    )
    builder.spread = '{f"optimizer_{index}": each for index, each in enumerate(optimizers.values())}'
    builder.digested.append("[each.state_dict() for each in optimizers.values()]")


ATTRIBUTES = [
    Kind(name="dropoutp", about="dropout.p changed in step 3", write=_dropout_rate, brings=_OWN_MODEL),
    Kind(name="bnmomentum", about="BatchNorm's momentum changed in step 3", write=_norm_momentum, brings=_OWN_MODEL),
    Kind(
        name="optattr",
        about="an own Optimizer with a count in its state_dict",
        write=_optimizer_state,
        brings=frozenset({"own_optimizer"}),
    ),
    Kind(
        name="modstate",
        about="a module that saves an attribute by _save_to_state_dict",
        write=_module_state,
        brings=_OWN_MODEL,
    ),
    Kind(
        name="rl",
        about="an environment with numpy's PCG64, random.Random and a deque",
        stops=True,
        write=_environment,
        brings=frozenset({"own_data"}),
    ),
    Kind(
        name="inbackward",
        about="an optimizer for each parameter, stepped in the backward pass",
        stops=True,
        write=_in_backward,
        brings=frozenset({"own_reduce", "own_optimizer"}),
    ),
]


def _rows(builder: ScriptBuilder, loader: str, length: str) -> None:
    builder.need(f"from torch.utils.data import {'DataLoader, ' * (loader == 'DataLoader')}Dataset, DistributedSampler")
    if loader != "DataLoader":
        builder.need("from torchdata.stateful_dataloader import StatefulDataLoader")
        builder.protected["loader"] = "loader"
    builder.helper("""
        class Noise(Dataset):
            def __init__(self, length):
                self.length = length

            def __len__(self):
                return self.length

            def __getitem__(self, index):
                x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
                return x, x.cos()
    """)
    builder.data.append(
        block(f"""
        noise = Noise({length})
        sampler = DistributedSampler(noise, world_size, rank, seed=5, drop_last=True)
        loader = {loader}(noise, batch_size=BATCH, sampler=sampler, drop_last=True)
        """)
    )


def _zip_loader_first(builder: ScriptBuilder) -> None:
    _rows(builder, "StatefulDataLoader", "2 * STEPS * BATCH * world_size")
    builder.loop = "for (x, y), step in zip(loader, job.steps(STEPS)):"


def _zip_steps_first(builder: ScriptBuilder) -> None:
    _rows(builder, "StatefulDataLoader", "2 * STEPS * BATCH * world_size")
    builder.loop = "for step, (x, y) in zip(job.steps(STEPS), loader):"


def _next_step(builder: ScriptBuilder) -> None:
    _rows(builder, "StatefulDataLoader", "5 * BATCH * world_size")
    builder.loop = block("""
        steps, step = job.steps(STEPS), None
        for epoch in range(STEPS // 5 + 1):
            sampler.set_epoch(epoch)
            for x, y in loader:
    """)
    builder.loop_head.append("step = next(steps, None)\nif step is None:\n    break")


def _plain_loader(builder: ScriptBuilder) -> None:
    _rows(builder, "DataLoader", "5 * BATCH * world_size")
    builder.before_loop.append("epoch, batches = 0, iter(loader)")
    builder.fetch.append(
        block("""
        try:
            x, y = next(batches)
        except StopIteration:
            epoch += 1
            sampler.set_epoch(epoch)
            batches = iter(loader)
            x, y = next(batches)
        """)
    )


def _every_third_step(builder: ScriptBuilder) -> None:
    lines = "\n".join([*builder.reduce, *builder.clip, *builder.update, "optimizer.zero_grad()"])
    due = "\n".join(f"    {line}" for line in lines.splitlines())
    builder.reduce, builder.clip, builder.zero = [], [], []
    builder.update = [f"if step.number % 3 == 2:\n{due}"]


def _handle(builder: ScriptBuilder) -> None:
    builder.before_loop.append("pending, mean = None, torch.zeros(())")
    builder.begin.append(
        block("""
        if pending is not None:  # of the step before
            pending.wait()
        known = float(mean) / world_size
        """)
    )
    builder.loss = "nn.functional.mse_loss(model(x), y) * (1 + known)"
    builder.finish.append("mean = loss.clone()\npending = dist.all_reduce(mean, async_op=True)")
    builder.draws.append("known")
    builder.after.append("pending.wait()")


EARLY_DATA = [
    Kind(
        name="zip1",
        about="zip(loader, job.steps(n)): the batch is drawn before the step begins",
        write=_zip_loader_first,
        rules=("batch_before_step",),
        brings=_OWN_DATA,
    ),
    Kind(
        name="nextsteps",
        about="for batch in loader: step = next(steps)",
        write=_next_step,
        rules=("batch_before_step",),
        brings=_OWN_DATA | {"alone"},
    ),
    Kind(name="zip2", about="zip(job.steps(n), loader)", write=_zip_steps_first, brings=_OWN_DATA),
    Kind(
        name="plainloader",
        about="a plain DataLoader's iterator in a variable",
        write=_plain_loader,
        rules=("unprotected_loader",),
        brings=_OWN_DATA,
    ),
    Kind(
        name="accum3",
        about="an optimizer that steps every third step",
        write=_every_third_step,
        rules=("kept_gradients",),
    ),
    Kind(
        name="asynchandle",
        about="a handle of an all-reduce, waited for in the next step",
        write=_handle,
        rules=("pending_handles",),
    ),
]
