"""init_process_group after join(): what is asked for and is not there is refused. And the device that it names."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from deadpool.backend.groups import Groups
from deadpool.errors import ConfigError
from deadpool.trainer.process.environment import require_current_device, use_device
from deadpool.trainer.process.init_process_group import DefaultGroup


@pytest.fixture
def joined():
    """A rehearsal of rank 0, so that nobody else is needed."""
    groups = Groups(timeout_s=5)
    layout = SimpleNamespace(world_size=2)
    session: Any = SimpleNamespace(rank=0, groups=groups, playing=None, settings=SimpleNamespace(layout=layout))
    default_group, original = DefaultGroup(session), dist.init_process_group
    default_group.install()
    groups.install()
    default_group.join("gloo")
    yield
    dist.destroy_process_group()
    groups.uninstall()
    default_group.uninstall()
    assert dist.init_process_group is original


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"backend": "nccl"}, "backend='nccl'"),
        ({"backend": "gloo", "timeout": timedelta(seconds=7)}, "timeout=0:00:07"),
        ({"pg_options": object()}, "pg_options"),
    ],
    ids=["backend", "timeout", "options"],
)
def test_another_group_than_the_one_that_join_made_is_refused(joined, asked, said):
    with pytest.raises(ConfigError, match=rf"init_process_group\({said}.* cannot be used: join\(\) has made"):
        dist.init_process_group(**asked)


@pytest.mark.parametrize(
    ("name", "value"),
    [("enable_reconfigure", True), ("_ranks", [0, 1]), ("topology", "ring"), ("costs", torch.zeros(2))],
)
def test_what_is_not_known_is_refused_and_not_ignored(joined, name, value):
    with pytest.raises(ConfigError, match=rf"{name}=.* cannot be used: DeadPool would not know"):
        dist.init_process_group(**{name: value})
    dist.init_process_group(**{name: None})


@pytest.mark.parametrize("value", [[], (), "", {}, False])
def test_what_is_not_known_and_empty_is_nothing(joined, value):
    """torchtitan passes _ranks=[]."""
    dist.init_process_group(_ranks=value)


@pytest.mark.parametrize("asked", [{}, {"backend": "gloo"}, {"backend": "GLOO", "timeout": timedelta(seconds=5)}])
def test_what_join_made_may_be_asked_for_once(joined, asked):
    dist.init_process_group(**asked)
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group(**asked)


@pytest.mark.parametrize(
    ("given", "used"), [(3, [3]), (torch.device("cuda", 1), [1]), (torch.device("cpu"), []), (torch.device("cuda"), [])]
)
def test_device_that_is_named_is_used(monkeypatch, given, used):
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    use_device(given)
    assert chosen == used


def test_parameters_on_another_device_than_the_current_one_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    cpu, first, second = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
    for fine in ([], [cpu], [first], [cpu, first], [first, second]):
        require_current_device(fine)
    with pytest.raises(ConfigError, match=r"torch\.cuda\.set_device\(1\)"):
        require_current_device([cpu, second])
