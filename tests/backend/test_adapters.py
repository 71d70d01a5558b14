"""Adapters without a recovery: who holds the same values, and that a new reducer keeps what was registered."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from backend_child import Job, Scenario
from backend_fleet import run_in_children
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.tensor import DTensor

from deadpool.backend.groups import Groups
from deadpool.errors import ConfigError, StateError
from deadpool.trainer.adapters import fsdp2
from deadpool.trainer.adapters.ddp_state import DdpState, _PowerSgd

pytestmark = pytest.mark.e2e

_opened: list[Groups] = []


def rehearsed_job(framework: str, rank: int) -> Job:
    groups = Groups(timeout_s=5)
    groups.install()
    _opened.append(groups)
    groups.init(backend="gloo", store=dist.HashStore(), rank=rank, world_size=4, detached=True)
    return Job(Scenario(framework=framework, directory="/nowhere"), rank)


def replicas(rank: int, port: int) -> list[Any]:
    found: list[Any] = []
    for framework in ("plain", "ddp", "fsdp2", "hsdp"):
        groups = Groups(timeout_s=5)
        groups.install()
        groups.init(backend="gloo", store=dist.HashStore(), rank=1, world_size=4, detached=True)
        job = Job(Scenario(framework=framework, directory="/nowhere"), 1)
        merged: dict[int, tuple[int, ...]] = {}
        for adapter in job.adapters:
            merged |= adapter.replicas()
        found.append([merged.get(id(parameter)) for parameter in job.model.parameters()])
        dist.destroy_process_group()
        groups.uninstall()
    return found


def test_who_holds_the_same_values() -> None:
    [[plain, ddp, fsdp, hsdp]] = run_in_children(replicas)
    assert set(plain) == {None}
    assert set(ddp) == {(0, 1, 2, 3)}
    assert set(fsdp) == {None}
    assert set(hsdp) == {(1, 3)}


def seat_with_hook(rank: int, port: int) -> tuple[int, int]:
    job, calls = rehearsed_job("ddp", 1), [0]

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch reads the annotations
        calls[0] += 1
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    job.model.register_comm_hook(None, hook)
    job.train_one()
    first = calls[0]
    job.train_one()
    job.reset()
    job.seated(0)
    calls[0] = 0
    job.train_one()
    return first, calls[0]


def test_new_reducer_keeps_the_communication_hook() -> None:
    assert run_in_children(seat_with_hook) == [(1, 1)]


def rehearse_in_vain(rank: int, port: int) -> list[str]:
    job = rehearsed_job("ddp", 1)
    [ddp] = [adapter for adapter in job.adapters if adapter.name == "ddp"]
    said = []
    for backward in (False, True):
        with contextlib.suppress(ArithmeticError), ddp.rehearsing():
            if backward:
                job.train_one()
            raise ArithmeticError("the script, of its loss")
        ddp.reset()
        try:
            ddp.seated(3)
            said.append("seated")
        except StateError as error:
            said.append(str(error))
    return said


def test_dry_step_that_failed_before_its_backward_is_no_rehearsal() -> None:
    [[in_vain, rehearsed]] = run_in_children(rehearse_in_vain)
    assert "dry_step_failed" in in_vain
    assert rehearsed == "seated"


def wait_in_rehearsal(rank: int, port: int) -> str:
    rehearsed_job("plain", 1)
    dist.monitored_barrier()
    return "passed"


def test_rehearsal_passes_a_monitored_barrier() -> None:
    """The backend of a rehearsal does not have this operation."""
    assert run_in_children(wait_in_rehearsal) == ["passed"]


class Secretive:
    """What a hook remembers, and nobody can ask it for."""

    def __init__(self) -> None:
        self.seen = 0


def refuse_hooks(rank: int, port: int) -> list[str]:
    found = []
    for make, keywords in (
        (Secretive, {}),
        (lambda: None, {}),
        (lambda: powerSGD_hook.PowerSGDState(None), {}),
        (Secretive, {"known": True}),
    ):
        job, state = rehearsed_job("ddp", 1), make()
        job.model.register_comm_hook(state, _hook)
        try:
            DdpState(job.model, [state] if keywords else [])
            found.append("taken")
        except ConfigError as error:
            found.append(str(error))
        dist.destroy_process_group()
        Groups.uninstall(_opened.pop())
    return found


def _hook(state, bucket):  # type: ignore[no-untyped-def]  # torch reads the annotations
    return state


def test_hook_whose_state_cannot_be_captured_is_refused() -> None:
    [[secretive, nothing, powersgd, known]] = run_in_children(refuse_hooks)
    assert secretive.startswith("the communication hook _hook keeps its state in a Secretive")
    assert [nothing, powersgd, known] == ["taken"] * 3


def hook_registered_in_a_step(rank: int, port: int) -> list[str]:
    """By a survivor, which comes back to before it; and by a rank whose newcomer does not have it."""
    job = rehearsed_job("ddp", 1)
    state = DdpState(job.model, [])
    before = state.state_dict()
    job.model.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
    after, found = state.state_dict(), []
    for at, stands in ((before, state), (after, DdpState(job.model, [])), (after, DdpState(_bare(), []))):
        try:
            stands.load_state_dict(at)
            found.append("taken")
        except StateError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def _bare() -> Any:
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))


def test_hook_that_was_registered_in_a_step() -> None:
    [[survivor, same, newcomer]] = run_in_children(hook_registered_in_a_step)
    assert survivor.startswith("NotInPlace: communication hook powerSGD_hook was registered after the step boundary")
    assert same == "taken"
    assert newcomer.startswith(
        "StateError: communication hook powerSGD_hook was registered in a step that this process"
    )


def test_state_of_a_hook_goes_to_the_device_of_the_module() -> None:
    """Whatever number that device had where the record was taken, and whichever is the current one here."""
    owner = powerSGD_hook.PowerSGDState(None)
    owner.p_memory_dict = {0: torch.ones(2)}
    kept = {**_PowerSgd(owner, torch.device("cpu")).state_dict(), "devices": {0: "cuda:3"}}
    _PowerSgd(owner, torch.device("meta")).load_state_dict(kept)
    assert owner.p_memory_dict[0].device.type == "meta"


def flags_of_a_step_that_was_cut_off(rank: int, port: int) -> list[bool]:
    job = rehearsed_job("ddp", 1)
    state = DdpState(job.model, [])
    job.rehearse()
    kept = state.state_dict()
    with job.model.no_sync():
        job.model(torch.ones(2, 16), True)
    job.model.require_backward_grad_sync = False  # as scripts set it by hand
    found = [job.model.require_forward_param_sync]
    job.reset()
    found.append(job.model.require_forward_param_sync and job.model.require_backward_grad_sync)
    job.model.require_forward_param_sync = False
    state.load_state_dict(kept)
    return [*found, job.model.require_forward_param_sync]


def test_step_that_was_cut_off_leaves_no_flag() -> None:
    assert run_in_children(flags_of_a_step_that_was_cut_off) == [[False, True, True]]


def reset_by_hand(rank: int, port: int) -> bool:
    job = rehearsed_job("fsdp2", 1)
    job.rehearse()
    loss = job.model(torch.ones(2, 16), True).sum()  # and no backward: parameters stay as the forward left them
    del loss
    fsdp2.reset_iteration_by_hand(job.model._get_fsdp_state())
    job.reset()
    job.train_one()
    return all(isinstance(parameter, DTensor) and parameter.grad is None for parameter in job.model.parameters())


def test_reset_for_torch_without_reset_iter_state() -> None:
    assert run_in_children(reset_by_hand) == [True]
