"""What a look of the guards on values costs: milliseconds of one boundary, in steps that are looked at and in others.

`python benchmarks/guard_cost.py` looks at a model of 1,000 modules with AdamW, at a script with a list of 1,000,000
entries, at one with 4,000 places, and at one with more places than are compared, in ten seconds. No job is started. The
clock is that of the thread, so other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from deadpool.snapshot.state.state import ProtectedState
from deadpool.trainer.guards.carried_values import CarriedValues
from deadpool.trainer.guards.guard import is_due
from deadpool.trainer.guards.loaders import UnknownLoaders
from deadpool.trainer.guards.state_in_variables import StateInVariables

STEPS = 70
Look = Callable[[], None]


class Silent:
    """In the place of what tells a job's findings."""

    def tell_carried(self, names: list[str]) -> None: ...

    def tell_not_compared(self, names: list[str], most: int, most_of_all: int) -> None: ...

    def report(self, *args: Any, **fields: Any) -> None: ...


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.norm(self.inner(x + self.last)).detach()
        return self.last


def looks(objects: dict[str, Any]) -> Iterator[tuple[int, Look]]:
    """Each step, and what its boundary asks the guards."""
    state = ProtectedState(objects, replicas={}, rank=0, node_of=lambda rank: rank)
    values = CarriedValues(Silent(), state)  # type: ignore[arg-type]
    guards = (values, StateInVariables(Silent(), state, values.take_objects))  # type: ignore[arg-type]

    for number in range(STEPS):
        for guard in guards:
            guard.enter_step(number)

        def boundary(number: int = number) -> None:
            for guard in guards:
                guard.leave_step(number)
            for guard in guards:
                guard.at_boundary(number)

        yield number, boundary


def measure(name: str, objects: dict[str, Any], step: Callable[[int], object]) -> None:
    """`step` keeps the objects of the script."""
    held = step
    due, others = [], []
    for number, boundary in looks(objects):
        held(number)
        began = time.thread_time()
        boundary()
        (due if is_due(number) else others).append(1000 * (time.thread_time() - began))
    print(
        f"{name:28} looked at: median {statistics.median(due):7.2f} ms, longest {max(due):7.2f} ms; "
        f"other steps: median {statistics.median(others):7.3f} ms"
    )


def model_of_1000_modules() -> None:
    model = nn.Sequential(*[Block() for _ in range(333)])
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    measure("model of 1,000 modules", {"model": model, "optimizer": optimizer}, lambda number: model(torch.ones(2, 8)))


def script_with(name: str, held: Any) -> None:
    def step(number: int) -> None:
        held[-1] = number

    measure(name, {"model": nn.Linear(2, 2)}, step)


class Keeper:
    """An object that is protected, and whose state leads to a list."""

    def __init__(self, rows: list[int]) -> None:
        self.rows, self.count = rows, 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def protected_list() -> None:
    keeper, ticks = Keeper(list(range(1_000_000))), [0]

    def step(number: int) -> None:
        keeper.count, ticks[0] = number, number  # something moves, so that what protected objects lead to is looked at

    measure("protected list of 1,000,000", {"model": nn.Linear(2, 2), "keeper": keeper}, step)


def batches() -> None:
    """What the watch on iterators of loaders adds to a batch."""

    def draw_all() -> float:
        began = time.thread_time()
        for _ in loader:
            pass
        return 1e6 * (time.thread_time() - began) / len(loader)

    loader = DataLoader(list(range(20_000)), batch_size=2)
    without = min(draw_all() for _ in range(5))
    guard = UnknownLoaders(Silent(), {})  # type: ignore[arg-type]
    guard.enter_step(0)
    watched = min(draw_all() for _ in range(5))
    print(f"{'a batch of a DataLoader':28} {without:.1f} us, watched {watched:.1f} us")


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    torch.set_num_threads(1)
    model_of_1000_modules()
    script_with("list of 1,000,000 numbers", list(range(1_000_000)))
    script_with("list of 1,000,000 lists", [[number] for number in range(1_000_000)])
    script_with("4,000 places", [[{"value": each} for each in range(30)] for _ in range(60)])
    script_with("more places than compared", [[[[each] for each in range(60)] for _ in range(60)] for _ in range(60)])
    protected_list()
    batches()


if __name__ == "__main__":
    main()
