"""What a script does before a step's boundary or carries over it: batches, gradients, handles."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_OWN_DATA = frozenset({"own_data"})


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
