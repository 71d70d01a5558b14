"""What a script does before a step's boundary or carries over it: batches, gradients, handles."""

from __future__ import annotations

from deadpool_lab.strangers.draft import Draft, block
from deadpool_lab.strangers.kind import Kind

_OWN_DATA = frozenset({"own_data"})


def _rows(draft: Draft, loader: str, length: str) -> None:
    draft.need(f"from torch.utils.data import {'DataLoader, ' * (loader == 'DataLoader')}Dataset, DistributedSampler")
    if loader != "DataLoader":
        draft.need("from torchdata.stateful_dataloader import StatefulDataLoader")
        draft.protected["loader"] = "loader"
    draft.helper("""
        class Noise(Dataset):
            def __init__(self, length):
                self.length = length

            def __len__(self):
                return self.length

            def __getitem__(self, index):
                x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
                return x, x.cos()
    """)
    draft.data.append(
        block(f"""
        noise = Noise({length})
        sampler = DistributedSampler(noise, world_size, rank, seed=5, drop_last=True)
        loader = {loader}(noise, batch_size=BATCH, sampler=sampler, drop_last=True)
        """)
    )


def _zip_loader_first(draft: Draft) -> None:
    _rows(draft, "StatefulDataLoader", "2 * STEPS * BATCH * world_size")
    draft.loop = "for (x, y), step in zip(loader, job.steps(STEPS)):"


def _zip_steps_first(draft: Draft) -> None:
    _rows(draft, "StatefulDataLoader", "2 * STEPS * BATCH * world_size")
    draft.loop = "for step, (x, y) in zip(job.steps(STEPS), loader):"


def _next_step(draft: Draft) -> None:
    _rows(draft, "StatefulDataLoader", "5 * BATCH * world_size")
    draft.loop = block("""
        steps, step = job.steps(STEPS), None
        for epoch in range(STEPS // 5 + 1):
            sampler.set_epoch(epoch)
            for x, y in loader:
    """)
    draft.loop_head.append("step = next(steps, None)\nif step is None:\n    break")


def _plain_loader(draft: Draft) -> None:
    _rows(draft, "DataLoader", "5 * BATCH * world_size")
    draft.before_loop.append("epoch, batches = 0, iter(loader)")
    draft.fetch.append(
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


def _every_third_step(draft: Draft) -> None:
    lines = "\n".join([*draft.reduce, *draft.clip, *draft.update, "optimizer.zero_grad()"])
    due = "\n".join(f"    {line}" for line in lines.splitlines())
    draft.reduce, draft.clip, draft.zero = [], [], []
    draft.update = [f"if step.number % 3 == 2:\n{due}"]


def _handle(draft: Draft) -> None:
    draft.before_loop.append("pending, mean = None, torch.zeros(())")
    draft.begin.append(
        block("""
        if pending is not None:  # of the step before
            pending.wait()
        known = float(mean) / world_size
        """)
    )
    draft.loss = "nn.functional.mse_loss(model(x), y) * (1 + known)"
    draft.finish.append("mean = loss.clone()\npending = dist.all_reduce(mean, async_op=True)")
    draft.draws.append("known")
    draft.after.append("pending.wait()")


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
