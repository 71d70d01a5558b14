"""Where batches come from: each feature writes lines that make `x` and `y`. Some are without torchdata, others use its
StatefulDataLoader: map-style and iterable datasets, workers, several ways to go round."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, block

_LOADER = "from torchdata.stateful_dataloader import StatefulDataLoader"
_SAMPLER = "from torch.utils.data import Dataset, DistributedSampler"


def _torch_draws(builder: ScriptBuilder) -> None:
    builder.fetch.append("x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)")


def _numpy_draws(builder: ScriptBuilder) -> None:
    builder.fetch.append(
        block("""
        x = torch.as_tensor(np.random.standard_normal((BATCH, WIDTH)), dtype=torch.get_default_dtype())
        y = x.roll(1, dims=1) * np.random.random()
        """)
    )


def _python_draws(builder: ScriptBuilder) -> None:
    builder.fetch.append(
        block("""
        x = torch.tensor([[random.gauss(0, 1) for _ in range(WIDTH)] for _ in range(BATCH)])
        y = x.flip(0) * random.choice([0.5, 1.0, 2.0])
        """)
    )


def _by_step(builder: ScriptBuilder) -> None:
    builder.fetch.append(
        block("""
        source = torch.Generator().manual_seed(7919 * step.number + rank)
        x = torch.randn(BATCH, WIDTH, generator=source)
        y = x.cumsum(1).tanh()
        """)
    )


def _stream(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Stream:
            \"\"\"An endless source with a position of its own.\"\"\"

            def __init__(self, rank):
                self.rank, self.position = rank, 0

            def __next__(self):
                source = torch.Generator().manual_seed(31 * self.position + self.rank)
                self.position += 1
                x = torch.randn(BATCH, WIDTH, generator=source)
                return x, x.abs().sqrt()

            def state_dict(self):
                return {"position": self.position}

            def load_state_dict(self, state):
                self.position = state["position"]
    """)
    builder.data.append("stream = Stream(rank)")
    builder.protect(data="stream")
    builder.fetch.append("x, y = next(stream)")


def _generator_object(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Dice:
            \"\"\"A generator of the script's own, with a state that can be kept.\"\"\"

            def __init__(self, seed):
                self.generator = torch.Generator().manual_seed(seed)

            def state_dict(self):
                return {"generator": self.generator.get_state()}

            def load_state_dict(self, state):
                self.generator.set_state(state["generator"])
    """)
    builder.data.append("dice = Dice(50 + rank)")
    builder.protect(dice="dice")
    builder.fetch.append(
        block("""
        x = torch.randn(BATCH, WIDTH, generator=dice.generator)
        y = torch.rand(BATCH, WIDTH, generator=dice.generator)
        """)
    )


def _numpy_generator(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Source:
            \"\"\"numpy's new generators, and python's: each with a state that can be kept.\"\"\"

            def __init__(self, seed):
                self.numpy, self.python = np.random.default_rng(seed), random.Random(seed)

            def state_dict(self):
                return {"numpy": self.numpy.bit_generator.state, "python": self.python.getstate()}

            def load_state_dict(self, state):
                self.numpy.bit_generator.state = state["numpy"]
                self.python.setstate(state["python"])
    """)
    builder.data.append("source = Source(70 + rank)")
    builder.protect(source="source")
    builder.fetch.append(
        block("""
        x = torch.as_tensor(source.numpy.standard_normal((BATCH, WIDTH)), dtype=torch.get_default_dtype())
        y = x * source.python.uniform(-1, 1)
        """)
    )


def _prefetch_thread(builder: ScriptBuilder) -> None:
    builder.need("import queue", "import threading")
    builder.helper("""
        class Prefetcher:
            \"\"\"A thread makes the next batch meanwhile. What it makes hangs on the step alone.\"\"\"

            def __init__(self, rank):
                self.rank, self.wanted, self.made = rank, queue.Queue(), queue.Queue()
                threading.Thread(target=self.work, daemon=True).start()
                self.ordered = None

            def work(self):
                while True:
                    number = self.wanted.get()
                    source = torch.Generator().manual_seed(104729 * number + self.rank)
                    self.made.put((number, torch.randn(2, BATCH, WIDTH, generator=source)))

            def get(self, number):
                if self.ordered != number:
                    self.wanted.put(number)
                self.wanted.put(number + 1)
                self.ordered = number + 1
                while True:
                    made, batch = self.made.get(timeout=20)
                    if made == number:
                        return batch[0], batch[1]
    """)
    builder.data.append("prefetcher = Prefetcher(rank)")
    builder.traits.add("one_fetch_per_step")
    builder.fetch.append("x, y = prefetcher.get(step.number)")


def _relative_file(builder: ScriptBuilder) -> None:
    numbers = [round(builder.rng.uniform(-1, 1), 4) for _ in range(64)]
    builder.files["numbers.txt"] = "\n".join(map(str, numbers)) + "\n"
    builder.opening.append("os.chdir(os.path.dirname(os.path.abspath(__file__)))")
    builder.data.append('numbers = torch.tensor([float(line) for line in open("numbers.txt")])')
    builder.fetch.append(
        block("""
        offsets = torch.randint(len(numbers) - WIDTH, (BATCH,))
        x = torch.stack([numbers[offset : offset + WIDTH] for offset in offsets])
        y = torch.stack([numbers[offset + 1 : offset + 1 + WIDTH] for offset in offsets])
        """)
    )


def _processes(builder: ScriptBuilder) -> None:
    builder.need("import multiprocessing")
    builder.helper("""
        def make_batch(number):
            \"\"\"In a process of its own.\"\"\"
            return [[((number * 31 + row * 7 + column) % 13) / 13 for column in range(WIDTH)] for row in range(BATCH)]
    """)
    builder.data.append('workers = multiprocessing.get_context("fork").Pool(1)')
    builder.fetch.append(
        block("""
        x = torch.tensor(workers.apply(make_batch, (step.number + 100 * rank,)))
        y = x.flip(1)
        """)
    )
    builder.after.append("workers.terminate()")


def _fresh_loader(builder: ScriptBuilder) -> None:
    """torch's own loader, made anew for each batch: it draws a seed from torch's generator each time."""
    builder.need("from torch.utils.data import DataLoader, Subset, TensorDataset")
    builder.data.append("table = TensorDataset(torch.randn(64, WIDTH), torch.randn(64, WIDTH))")
    builder.fetch.append(
        block("""
        chosen = Subset(table, [(step.number * BATCH + index * 5 + rank) % 64 for index in range(2 * BATCH)])
        x, y = next(iter(DataLoader(chosen, batch_size=BATCH, shuffle=True)))
        """)
    )


DATA = [
    Feature("a fresh DataLoader for each batch", _fresh_loader),
    Feature("batches from torch's RNG", _torch_draws, 1.5),
    Feature("batches from numpy's RNG", _numpy_draws),
    Feature("batches from python's RNG", _python_draws),
    Feature("batches by step number", _by_step),
    Feature("a stream with a position", _stream),
    Feature("a torch.Generator of its own", _generator_object, 1.5),
    Feature("numpy's and python's generators", _numpy_generator),
    Feature("a prefetch thread", _prefetch_thread),
    Feature("a relative file and chdir", _relative_file),
    Feature("multiprocessing", _processes, 0.7),
]


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
