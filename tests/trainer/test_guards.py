"""Guards, each with the calls that a loop makes. Whole jobs are in tests/lab/strangers/test_inexact_scripts.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from deadpool.snapshot.state.cures import VARIABLE
from deadpool.snapshot.state.loaders import with_position
from deadpool.trainer.guards.carried_gradients import CarriedGradients
from deadpool.trainer.guards.distributed_objects import PendingHandles, ServedStores
from deadpool.trainer.guards.guard import Guard, Rule, is_due
from deadpool.trainer.guards.loaders import DrawnBatches, UnknownLoaders, stop_watching


class Reports:
    """As Findings, without a session."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.steps: list[int | None] = []

    def report(self, rule: Rule, found: str, *, step: int | None = None, **_: Any) -> None:
        assert found.endswith(".") and rule.remedy.endswith(".")
        self.rules.append(rule)
        self.steps.append(step)


@pytest.fixture
def reports() -> Reports:
    return Reports()


def loop(
    guard: Guard, block: Callable[[int], object], behind: Callable[[int], object] = lambda _: None, steps: int = 10
) -> None:
    for number in range(steps):
        guard.enter_step(number)
        block(number)
        guard.leave_step(number)
        behind(number)
        guard.at_boundary(number)


def test_every_rule_has_a_remedy():
    assert all(rule.remedy.endswith(".") for rule in Rule)


def test_first_steps_and_powers_of_two_are_due():
    assert [number for number in range(70) if is_due(number)] == [0, 1, 2, 3, 4, 8, 16, 32, 64]


# --- batches before steps ---------------------------------------------------------------------------------------------


def loader_of(workers: int = 0) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(
        list(range(100)), batch_size=2, num_workers=workers
    )


class Stream:
    """A script's own stream of batches."""

    def __init__(self) -> None:
        self.place = 0

    def __next__(self) -> int:
        self.place += 1
        return self.place

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def test_batch_that_is_drawn_behind_a_block_is_named(reports):
    loader = loader_of()
    guard = DrawnBatches(reports, {"data": with_position("data", loader)})
    batches = iter(loader)
    loop(guard, lambda _: None, lambda _: next(batches))
    assert (reports.rules, reports.steps) == ([Rule.BATCH_BEFORE_STEP], [1])


def test_stream_that_moves_behind_a_block_is_named(reports):
    stream = Stream()
    loop(DrawnBatches(reports, {"data": stream}), lambda _: None, lambda _: next(stream))
    assert reports.rules == [Rule.BATCH_BEFORE_STEP]


@pytest.mark.parametrize("workers", [0, 1])
def test_batch_that_is_drawn_inside_is_not_named(reports, workers):
    """Workers that prepare the next batches move nothing."""
    loader, stream = loader_of(workers), Stream()
    batches = iter(loader)
    guard = DrawnBatches(reports, {"data": with_position("data", loader), "stream": stream})
    loop(guard, lambda _: (next(batches), next(stream)))
    assert reports.rules == []


def test_evaluation_between_steps_is_not_named(reports):
    """Read to its end behind each block; or in part, behind a block now and then."""
    whole, part = loader_of(), loader_of()
    guard = DrawnBatches(reports, {name: with_position(name, each) for name, each in [("a", whole), ("b", part)]})
    loop(guard, lambda _: None, lambda number: (list(whole), number % 3 == 0 and list(itertools.islice(part, 2))))
    assert reports.rules == []


def test_guard_can_be_switched_off_for_mutation_tests(reports, monkeypatch):
    monkeypatch.setenv(VARIABLE, "D9")
    stream = Stream()
    loop(DrawnBatches(reports, {"data": stream}), lambda _: None, lambda _: next(stream))
    assert reports.rules == []


# --- loaders that protect() does not know -----------------------------------------------------------------------------


@pytest.fixture
def plain() -> DataLoader[int]:
    return DataLoader(list(range(100)), batch_size=2)


def test_iterator_that_lives_through_several_steps_is_named(reports, plain):
    batches = iter(plain)
    loop(UnknownLoaders(reports, {}), lambda _: next(batches))
    assert (set(reports.rules), reports.steps[0]) == ({Rule.UNPROTECTED_LOADER}, 1)


def test_evaluation_in_each_step_is_not_named(reports, plain):
    loop(UnknownLoaders(reports, {}), lambda _: list(plain), lambda _: list(itertools.islice(plain, 3)))
    assert reports.rules == []


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_that_protected_objects_lead_to_are_not_named(reports, plain, workers):
    class Owner(Stream):
        def __init__(self) -> None:
            self.loader, self.stages = plain, [{"first": loader_of()}]

    owner, passed = Owner(), loader_of(workers)
    protected = {"data": owner, "passed": with_position("passed", passed)}
    left, taken = iter(passed), iter(passed)
    iterators = [left, taken, iter(plain), iter(owner.stages[0]["first"])]
    loop(UnknownLoaders(reports, protected), lambda _: [next(each) for each in iterators])
    assert reports.rules == []


@pytest.mark.parametrize("late", [1, 6, 40])
def test_stateful_loader_that_a_later_step_has_made_is_named_in_the_next_one(reports, late):
    passed = loader_of()
    batches = [iter(passed)]

    def block(number: int) -> None:
        if number == late:
            batches[0] = iter(loader_of())
        next(batches[0])

    loop(UnknownLoaders(reports, {"passed": with_position("passed", passed)}), block, steps=48)
    assert reports.rules == [Rule.UNPROTECTED_LOADER] and reports.steps == [late + 1]


def test_loader_in_a_variable_of_the_loop_is_named_when_the_step_that_made_it_ends(reports):
    passed = loader_of()
    guard = UnknownLoaders(reports, {"passed": with_position("passed", passed)})
    batches = iter(passed)
    for number in range(10):
        guard.enter_step(number)
        if number == 7:
            batches = iter(loader_of())
        next(batches)
        guard.leave_step(number)
        guard.at_boundary(number)
    assert (reports.rules, reports.steps) == ([Rule.UNPROTECTED_LOADER], [7])


def test_evaluation_now_and_then_is_not_named(reports, plain):
    """With a new iterator, also one that stays in a variable, or with the iterator that persistent workers keep."""
    guard = UnknownLoaders(reports, {})
    kept = DataLoader(list(range(8)), batch_size=2, num_workers=1, persistent_workers=True)
    for number in range(7):
        guard.enter_step(number)
        if number % 3 == 2:
            some = iter(plain)
            next(some), next(some)
            assert len(list(kept)) == 4 or number
        guard.leave_step(number)
        guard.at_boundary(number)
    assert reports.rules == []


def test_torchs_own_methods_can_be_put_back(reports, plain):
    kind = type(iter(plain)).__mro__[1]
    stop_watching()
    before = kind.__next__, kind._reset
    loop(UnknownLoaders(reports, {}), lambda _: None, steps=6)
    assert (kind.__next__, kind._reset) != before
    stop_watching()
    assert (kind.__next__, kind._reset) == before


# --- gradients over boundaries ----------------------------------------------------------------------------------------


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 4)).square().sum().backward()


@pytest.mark.parametrize("every", [2, 3, 9])
@pytest.mark.parametrize("to_none", [True, False])
def test_optimizer_that_steps_now_and_then_is_named(reports, model, every, to_none):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(number: int) -> None:
        backward(model)
        if number % every == every - 1:
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

    loop(CarriedGradients(reports, [optimizer]), train, steps=12)
    assert (reports.rules, reports.steps) == ([Rule.KEPT_GRADIENTS], [every - 1])


def test_gradients_of_the_step_before_are_named(reports, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(number: int) -> None:
        optimizer.step()
        optimizer.zero_grad()
        backward(model)

    loop(CarriedGradients(reports, [optimizer]), train)
    assert (reports.rules, reports.steps) == ([Rule.KEPT_GRADIENTS], [1])


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_accumulation_inside_of_one_step_is_not_named(reports, model, to_none, first):
    optimizer = torch.optim.Adam(model.parameters())

    def train(number: int) -> None:
        if first:
            optimizer.zero_grad(set_to_none=to_none)
        backward(model)
        backward(model)
        optimizer.step()
        if not first:
            optimizer.zero_grad(set_to_none=to_none)

    loop(CarriedGradients(reports, [optimizer]), train, steps=20)
    assert reports.rules == []


def test_gradients_that_a_generator_leaves_in_the_discriminator_are_not_named(reports, model):
    """Its optimizer drops them before its own turn, also if that comes in a later step only."""
    generator, discriminator = model
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (generator, discriminator)]

    def train(number: int) -> None:
        optimizers[0].zero_grad()
        backward(model)
        optimizers[0].step()
        if number % 3 == 2:
            optimizers[1].zero_grad()
            backward(discriminator)
            optimizers[1].step()

    loop(CarriedGradients(reports, optimizers), train, steps=20)
    assert reports.rules == []


def test_closures_empty_the_gradients_themselves(reports, model):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    loop(CarriedGradients(reports, [optimizer]), lambda _: optimizer.step(closure))
    assert reports.rules == []


def test_no_hook_is_left_after_a_step(reports, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop(CarriedGradients(reports, [optimizer]), lambda _: backward(model))
    assert not optimizer._optimizer_step_pre_hooks
    assert all(not param._backward_hooks for param in model.parameters())


# --- handles of collectives -------------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_handle_that_the_next_step_waits_for_is_named(reports, group):
    held: list[Any] = []

    def train(number: int) -> None:
        for handle in held:
            handle.wait()
        held[:] = [dist.all_reduce(torch.ones(1), async_op=True)]

    loop(PendingHandles(reports), train)
    assert (reports.rules[0], reports.steps[0]) == (Rule.PENDING_HANDLES, 1)


def test_handles_that_a_step_has_waited_for_are_not_named(reports, group):
    """Also if a variable still has them; one that nobody holds is no matter of the next step."""
    held: list[Any] = []

    def train(number: int) -> None:
        held[:] = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(2)]
        held[0].wait()
        held[1].get_future().wait()
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1), async_op=True)

    loop(PendingHandles(reports), train)
    assert reports.rules == []


def test_methods_of_works_and_groups_are_put_back(reports, group):
    before = dist.Work.wait, dist.ProcessGroup.allreduce
    loop(PendingHandles(reports), lambda _: None, steps=5)
    assert (dist.Work.wait, dist.ProcessGroup.allreduce) == before


# --- stores -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def _torchs_first_store() -> None:
    """With it torch makes pipes that it keeps."""
    serve()


@pytest.fixture
def served(reports, monkeypatch, _torchs_first_store) -> ServedStores:
    monkeypatch.setattr(dist.TCPStore, "__init__", dist.TCPStore.__init__)  # as it was, afterwards
    guard = ServedStores(reports)
    guard.begin()
    return guard


def serve(**how: Any) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, **how)


def test_store_that_a_rank_serves_is_named_when_the_loop_begins(served, reports):
    store = serve()
    assert reports.rules == []
    dist.TCPStore("127.0.0.1", store.port, None, False)
    served.enter_loop()
    assert reports.rules == [Rule.SERVED_STORE] and served.is_serving


def test_store_that_is_made_in_the_loop_is_named_at_once(served, reports):
    served.enter_loop()
    dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    assert reports.rules == [Rule.SERVED_STORE]


def test_store_of_one_process_or_one_that_was_dropped_is_nobody_elses_business(served, reports):
    alone = serve(world_size=1)
    serve()
    assert alone.port
    served.enter_loop()
    assert reports.rules == [] and not served.is_serving
