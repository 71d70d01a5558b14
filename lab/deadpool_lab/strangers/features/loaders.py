"""Batches from torchdata's StatefulDataLoader: map-style and iterable datasets, workers, several ways to go round."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, block

_LOADER = "from torchdata.stateful_dataloader import StatefulDataLoader"
_SAMPLER = "from torch.utils.data import Dataset, DistributedSampler"


def _rows(builder: ScriptBuilder) -> None:
    builder.need(_LOADER, _SAMPLER)
    builder.helper("""
        class Rows(Dataset):
            def __len__(self):
                return 96

            def __getitem__(self, index):
                source = torch.Generator().manual_seed(index)
                row = torch.randn(2, WIDTH, generator=source)
                return row[0], row[1]
    """)
    workers = builder.rng.choices([0, 1, 2], [3, 1, 1])[0]
    builder.tag(f"{workers} loader workers")
    builder.data.append(
        block(f"""
        rows = Rows()
        sampler = DistributedSampler(rows, world_size, rank, shuffle=True, seed=3, drop_last=True)
        loader = StatefulDataLoader(rows, batch_size=BATCH, sampler=sampler, num_workers={workers}, drop_last=True)
        """)
    )
    builder.protected["loader"] = "loader"


def _held_iterator(builder: ScriptBuilder) -> None:
    _rows(builder)
    builder.before_loop.append("iterator = iter(loader)")
    builder.fetch.append(
        block("""
        try:
            x, y = next(iterator)
        except StopIteration:
            sampler.set_epoch(sampler.epoch + 1)
            iterator = iter(loader)
            x, y = next(iterator)
        """)
    )


def _cycle(builder: ScriptBuilder) -> None:
    _rows(builder)
    builder.helper("""
        def cycle(loader):
            \"\"\"Epoch after epoch, each in an order of its own.\"\"\"
            while True:
                yield from loader
                loader.sampler.set_epoch(loader.sampler.epoch + 1)
    """)
    builder.before_loop.append("batches = cycle(loader)")
    builder.fetch.append("x, y = next(batches)")


def _begun_late(builder: ScriptBuilder) -> None:
    """The iterator is made in the first step."""
    _rows(builder)
    builder.before_loop.append("iterator = None")
    builder.fetch.append(
        block("""
        if iterator is None:
            iterator = iter(loader)
        x, y = next(iterator, (None, None))
        if x is None:
            sampler.set_epoch(sampler.epoch + 1)
            iterator = iter(loader)
            x, y = next(iterator)
        """)
    )


def _shuffled(builder: ScriptBuilder) -> None:
    """No sampler: each rank shuffles for itself, with a generator of the loader's."""
    builder.need(_LOADER, "from torch.utils.data import TensorDataset")
    workers = builder.rng.choices([0, 1], [2, 1])[0]
    builder.data.append(
        block(f"""
        table = torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(rank))
        loader = StatefulDataLoader(
            TensorDataset(table, table.roll(1, dims=0)),
            batch_size=BATCH,
            shuffle=True,
            generator=torch.Generator().manual_seed(90 + rank),
            num_workers={workers},
        )
        """)
    )
    builder.protected["loader"] = "loader"
    builder.helper("""
        def cycle(loader):
            while True:
                yield from loader
    """)
    builder.before_loop.append("batches = cycle(loader)")
    builder.fetch.append("x, y = next(batches)")


def _iterable(builder: ScriptBuilder) -> None:
    builder.need(_LOADER, "from torch.utils.data import IterableDataset, get_worker_info")
    builder.helper("""
        class Endless(IterableDataset):
            \"\"\"Each worker of each rank has a stream of its own, and says where it stands.\"\"\"

            def __init__(self, rank):
                self.rank, self.position = rank, 0

            def __iter__(self):
                worker = get_worker_info()
                lane = 100 * self.rank + (worker.id if worker else 0)
                while True:
                    source = torch.Generator().manual_seed(1009 * lane + self.position)
                    self.position += 1
                    row = torch.randn(2, WIDTH, generator=source)
                    yield row[0], row[1]

            def state_dict(self):
                return {"position": self.position}

            def load_state_dict(self, state):
                self.position = state["position"]
    """)
    workers = builder.rng.choices([0, 1, 2], [2, 1, 1])[0]
    builder.tag(f"{workers} loader workers")
    builder.data.append(f"loader = StatefulDataLoader(Endless(rank), batch_size=BATCH, num_workers={workers})")
    builder.protected["loader"] = "loader"
    builder.before_loop.append("batches = iter(loader)")
    builder.fetch.append("x, y = next(batches)")


LOADERS = [
    Feature("a loader's iterator, held", _held_iterator, 1.5),
    Feature("cycle(loader)", _cycle, 1.5),
    Feature("a loader begun in step 0", _begun_late),
    Feature("a shuffling loader", _shuffled),
    Feature("an iterable dataset", _iterable, 1.5),
]
