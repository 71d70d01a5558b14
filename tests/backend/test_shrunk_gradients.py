"""Two processes that carry two further ranks train as four do: plain SGD, which shows every wrong factor."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from backend_child import GROUP_TIMEOUT_S, Model, connect
from backend_fleet import run_in_children
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from deadpool.backend.groups import Groups
from deadpool.errors import ConfigError
from deadpool.trainer.adapters.fsdp2 import param_groups
from deadpool.trainer.shares.gradient_sync import GradientSync
from deadpool.trainer.shares.layout import present_members

pytestmark = pytest.mark.e2e

WORLD, STEPS, MICRO = 4, 3, 2
CARRIED = {2: 0, 3: 1}
LAYOUTS = ("ddp", "ddp-view", "ddp-unused", "ddp-hook", "hsdp", "hsdp-root-only", "hsdp-parts", "hsdp-sums")

_alive: list[nn.Module] = []
"""Until the process is ended: a reducer freed after its groups may wait for their threads, which wait for it."""


def make_model(layout: str) -> nn.Module:
    torch.manual_seed(7)
    model = Model()
    if layout.startswith("ddp"):
        return _replicated(model, layout)
    mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("replicate", "shard"))
    inner = () if layout == "hsdp-root-only" else model.layers if layout != "hsdp-parts" else (*model.layers, model.odd)
    for layer in inner:
        fully_shard(layer, mesh=mesh)
    if layout == "hsdp-sums":
        model.layers[0].set_force_sum_reduction_for_comms(True)
    return model if layout == "hsdp-parts" else fully_shard(model, mesh=mesh)


def _replicated(model: nn.Module, layout: str) -> nn.Module:
    unused, view = layout == "ddp-unused", layout == "ddp-view"
    found = DistributedDataParallel(
        model, bucket_cap_mb=0.003, gradient_as_bucket_view=view, find_unused_parameters=unused
    )
    if layout == "ddp-hook":
        found.register_comm_hook(None, default_hooks.allreduce_hook)
    return found


def switch(model: nn.Module, wanted: bool) -> None:
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = wanted
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(wanted)


@contextmanager
def joined(rank: int, port: int, carried: dict[int, int], layout: str) -> Iterator[tuple[nn.Module, GradientSync]]:
    """The model as a process has it that took its place in a job in which some ranks have no process."""
    groups = Groups(timeout_s=GROUP_TIMEOUT_S)
    groups.install()
    groups.init(backend="gloo", store=dist.HashStore(), rank=rank, world_size=WORLD, detached=True)
    model = make_model(layout)
    _alive.append(model)
    sync = GradientSync([model], rank)
    members = functools.partial(present_members, carried=carried)
    groups.rebuild(connect(port), "groups", after_abort=groups.abort_count, members=members)
    sync.count_all_ranks(bool(carried))
    try:
        yield model, sync
    finally:
        dist.destroy_process_group()
        groups.uninstall()


def work(model: nn.Module, rank: int, step: int, micro: int, layout: str) -> None:
    generator = torch.Generator().manual_seed(100 * step + 10 * micro + rank)
    with_odd = layout != "ddp-unused" or (step + rank) % 2 == 0  # some ranks use a parameter that others do not
    model(torch.randn(8, 16, generator=generator), with_odd).square().sum().backward()


def do_share(model: nn.Module, rank: int, step: int, layout: str, way: str, *, is_own: bool, micro: int) -> None:
    if way == "around":  # the loop over micro-batches is outside
        work(model, rank, step, micro, layout)
        return
    for micro in range(1 if way == "no accumulation" else MICRO):
        last = way == "no accumulation" or micro == MICRO - 1
        if way == "flag":
            switch(model, is_own and last)
        with model.no_sync() if way == "no_sync" and not last else nullcontext():  # type: ignore[operator]
            work(model, rank, step, micro, layout)


def train(carried: dict[int, int], layout: str, way: str, rank: int, port: int) -> list[Any]:
    """Gradients of each step and the parameters at the end, of this rank's shards."""
    found = []
    with joined(rank, port, carried, layout) as (model, sync):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        for step in range(STEPS):
            sync.repeated.enter_step()
            for micro in range(MICRO if way == "around" else 1):
                if way == "around":
                    switch(model, micro == MICRO - 1)
                for other in (each for each, carrier in carried.items() if carrier == rank):
                    sync.hold_back(other)
                    do_share(model, other, step, layout, way, is_own=False, micro=micro)
                    sync.release(other, failed=False)
                do_share(model, rank, step, layout, way, is_own=True, micro=micro)
            found.append([_values(each.grad) for each in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
        found.append([_values(each.detach()) for each in model.parameters()])
    return found


def _values(tensor: Any) -> Any:
    return None if tensor is None else (tensor.to_local() if hasattr(tensor, "to_local") else tensor).tolist()


def both(layout: str, way: str) -> tuple[list[Any], list[Any]]:
    whole = run_in_children(functools.partial(train, {}, layout, way), WORLD)
    return whole[: WORLD - len(CARRIED)], run_in_children(functools.partial(train, CARRIED, layout, way), 2)


def assert_close(found: Any, expected: Any) -> None:
    for mine, other in zip(found, expected, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-6)


CASES = [
    *((layout, "no accumulation") for layout in LAYOUTS),
    *((layout, way) for layout in ("ddp", "hsdp") for way in ("flag", "around")),
    *((layout, "no_sync") for layout in ("ddp", "ddp-view", "ddp-unused")),
]
QUICK = (("ddp", "no accumulation"), ("hsdp", "flag"))


@pytest.mark.parametrize(
    ("layout", "way"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.thorough) for case in CASES],
)
def test_gradients_of_two_processes_are_those_of_four_ranks(layout, way):
    whole, shrunk = both(layout, way)
    for rank in (0, 1):
        assert_close(shrunk[rank], whole[rank])


# --- scripts that synchronise too often -------------------------------------------------------------------------------


def error_of_switching(layout: str, moment: str, rank: int, port: int) -> str:
    """The script accumulates as it would without shares: it switches synchronisation on for the last backward."""
    with joined(rank, port, CARRIED, layout) as (model, sync):
        sync.hold_back(rank + 2)
        try:
            if moment == "before forward":
                switch(model, True)
                work(model, rank + 2, 0, 0, layout)
            else:
                work(model, rank + 2, 0, 0, layout)
                switch(model, True)
            sync.release(rank + 2, failed=False)
        except ConfigError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("layout", ["ddp", "hsdp"])
@pytest.mark.parametrize("moment", ["before forward", "after backward"])
def test_synchronisation_cannot_be_switched_on_in_the_share_of_a_carried_rank(layout, moment):
    for rank, error in enumerate(run_in_children(functools.partial(error_of_switching, layout, moment), 2)):
        assert f"in the share of rank {rank + 2}, which rank {rank} carries" in error
        assert "share.is_own" in error and "no_sync()" in error


def flags_after(rank: int, port: int) -> list[list[bool]]:
    """As they were before the share of a carried rank, also if that was all off and if an exception ended it."""
    found = []
    for layout in ("ddp", "hsdp"):
        model = make_model(layout)
        _alive.append(model)
        sync = GradientSync([model], rank)
        for wanted in (True, False):
            switch(model, wanted)
            sync.hold_back(2)
            found.append(_flags(model))
            _set_behind_its_back(model)
            sync.release(2, failed=True)
            found.append([each == wanted for each in _flags(model)])
        switch(model, True)
        found.append(_flags(model))
    return found


def _set_behind_its_back(model: nn.Module) -> None:
    if isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = True


def _flags(model: nn.Module) -> list[bool]:
    if isinstance(model, DistributedDataParallel):
        return [bool(model.require_backward_grad_sync)]
    return [each.reduce_grads and each.all_reduce_grads for each in _param_groups(model)]


def _param_groups(model: nn.Module) -> list[Any]:
    states = [each._get_fsdp_state() for each in model.modules() if isinstance(each, FSDPModule)]
    return [group for state in states for group in param_groups(state)]


def in_detached_groups(function: Any, rank: int, port: int) -> Any:
    groups = Groups(timeout_s=GROUP_TIMEOUT_S)
    groups.install()
    groups.init(backend="gloo", store=dist.HashStore(), rank=rank, world_size=WORLD, detached=True)
    try:
        return function(rank, port)
    finally:
        dist.destroy_process_group()
        groups.uninstall()


def test_flags_are_put_back_after_the_share_of_a_carried_rank():
    (found,) = run_in_children(functools.partial(in_detached_groups, flags_after))
    for held, after, held_again, after_again, on in (found[:5], found[5:]):
        assert not any(held) and not any(held_again)
        assert all(after) and all(after_again) and all(on)


def sums(rank: int, port: int) -> list[list[bool]]:
    model = make_model("hsdp-sums")
    sync, found = GradientSync([model], rank), []
    for shrunk in (False, True, True, False):
        sync.count_all_ranks(shrunk)
        found.append([each.force_sum_reduction_for_comms for each in _param_groups(model)])
    return found


def test_what_the_script_has_chosen_for_a_layer_is_kept():
    (found,) = run_in_children(functools.partial(in_detached_groups, sums))
    as_chosen = [False, True, *[False] * (len(found[0]) - 2)]
    assert found == [as_chosen, [True] * len(as_chosen), [True] * len(as_chosen), as_chosen]


def repeated(clears: str, carried: dict[int, int], rank: int, port: int) -> tuple[bool, str]:
    """Two synchronised backwards in a step: with all ranks harmless, and wrong with fewer processes."""
    with joined(rank, port, carried, "ddp") as (model, sync):
        if not carried:
            sync.watch_first_step()
        sync.repeated.enter_step()
        try:
            for _ in range(2):
                loss = model(torch.ones(8, 16), True).sum()
                if clears == "before backward":
                    model.zero_grad()
                loss.backward()
                if clears in ("to None", "to zeros"):
                    model.zero_grad(set_to_none=clears == "to None")
        except ConfigError as error:
            return sync.repeated.found, str(error)
        return sync.repeated.found, ""


@pytest.mark.parametrize(
    "clears",
    ["never", "to None", *(pytest.param(when, marks=pytest.mark.thorough) for when in ("to zeros", "before backward"))],
)
def test_gradients_that_ddp_would_average_twice_are_found(clears):
    twice = clears == "never"
    for found, error in run_in_children(functools.partial(repeated, clears, CARRIED), 2):
        assert found == twice
        assert ("synchronised the same gradients twice" in error) == twice
    for found, error in run_in_children(functools.partial(repeated, clears, {}), WORLD):
        assert found == twice, "such a job is told to wait instead of shrinking"
        assert not error


# --- collectives of the script's own ----------------------------------------------------------------------------------


def per_rank_values(rank: int, port: int) -> tuple[list[float], str, list[float], float]:
    """docs/howto/shrink.md says what a script sees."""
    with joined(rank, port, CARRIED, "ddp"):
        values = torch.zeros(WORLD)
        for share in (rank, rank + 2):
            values[share] = share + 1.0
        dist.all_reduce(values)
        error = ""
        try:
            dist.all_gather([torch.zeros(1) for _ in range(WORLD)], torch.ones(1))
        except RuntimeError as raised:
            error = str(raised)
        exchanged, mean = torch.zeros(WORLD), torch.tensor(float(rank))
        dist.all_to_all_single(exchanged, torch.full((WORLD,), float(rank)))
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        return values.tolist(), error, exchanged.tolist(), mean.item()


def test_what_a_script_sees_that_gathers_by_itself():
    for values, error, exchanged, mean in run_in_children(per_rank_values, 2):
        assert values == [1.0, 2.0, 3.0, 4.0]
        assert "expected length 2, got 4" in error
        assert exchanged == [0.0, 0.0, 1.0, 1.0]
        assert mean == 0.5
