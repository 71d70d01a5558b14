"""Batches from torchdata's StatefulDataLoader: map-style and iterable datasets, workers, several ways to go round."""

from __future__ import annotations

from deadpool_lab.strangers.draft import Draft, block
from deadpool_lab.strangers.feature import Feature

_LOADER = "from torchdata.stateful_dataloader import StatefulDataLoader"
_SAMPLER = "from torch.utils.data import Dataset, DistributedSampler"


def _rows(draft: Draft) -> None:
    draft.need(_LOADER, _SAMPLER)
    draft.helper("""
        class Rows(Dataset):
            def __len__(self):
                return 96

            def __getitem__(self, index):
                source = torch.Generator().manual_seed(index)
                row = torch.randn(2, WIDTH, generator=source)
                return row[0], row[1]
    """)
    workers = draft.rng.choices([0, 1, 2], [3, 1, 1])[0]
    draft.tag(f"{workers} loader workers")
    draft.data.append(
        block(f"""
        rows = Rows()
        sampler = DistributedSampler(rows, world_size, rank, shuffle=True, seed=3, drop_last=True)
        loader = StatefulDataLoader(rows, batch_size=BATCH, sampler=sampler, num_workers={workers}, drop_last=True)
        """)
    )
    draft.protected["loader"] = "loader"


def _held_iterator(draft: Draft) -> None:
    _rows(draft)
    draft.before_loop.append("iterator = iter(loader)")
    draft.fetch.append(
        block("""
        try:
            x, y = next(iterator)
        except StopIteration:
            sampler.set_epoch(sampler.epoch + 1)
            iterator = iter(loader)
            x, y = next(iterator)
        """)
    )


def _cycle(draft: Draft) -> None:
    _rows(draft)
    draft.helper("""
        def cycle(loader):
            \"\"\"Epoch after epoch, each in an order of its own.\"\"\"
            while True:
                yield from loader
                loader.sampler.set_epoch(loader.sampler.epoch + 1)
    """)
    draft.before_loop.append("batches = cycle(loader)")
    draft.fetch.append("x, y = next(batches)")


def _begun_late(draft: Draft) -> None:
    """The iterator is made in the first step."""
    _rows(draft)
    draft.before_loop.append("iterator = None")
    draft.fetch.append(
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


def _shuffled(draft: Draft) -> None:
    """No sampler: each rank shuffles for itself, with a generator of the loader's."""
    draft.need(_LOADER, "from torch.utils.data import TensorDataset")
    workers = draft.rng.choices([0, 1], [2, 1])[0]
    draft.data.append(
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
    draft.protected["loader"] = "loader"
    draft.helper("""
        def cycle(loader):
            while True:
                yield from loader
    """)
    draft.before_loop.append("batches = cycle(loader)")
    draft.fetch.append("x, y = next(batches)")


def _iterable(draft: Draft) -> None:
    draft.need(_LOADER, "from torch.utils.data import IterableDataset, get_worker_info")
    draft.helper("""
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
    workers = draft.rng.choices([0, 1, 2], [2, 1, 1])[0]
    draft.tag(f"{workers} loader workers")
    draft.data.append(f"loader = StatefulDataLoader(Endless(rank), batch_size=BATCH, num_workers={workers})")
    draft.protected["loader"] = "loader"
    draft.before_loop.append("batches = iter(loader)")
    draft.fetch.append("x, y = next(batches)")


LOADERS = [
    Feature("a loader's iterator, held", _held_iterator, 1.5),
    Feature("cycle(loader)", _cycle, 1.5),
    Feature("a loader begun in step 0", _begun_late),
    Feature("a shuffling loader", _shuffled),
    Feature("an iterable dataset", _iterable, 1.5),
]
