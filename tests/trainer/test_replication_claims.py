"""What a user says about replication: over what was derived, and refused where it cannot be meant."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from deadpool.errors import ConfigError
from deadpool.snapshot.record.placement import choose_peers
from deadpool.trainer.shares.layout import apply_claims
from deadpool.trainer.unprotected import UnprotectedRank

RANK = 1


@pytest.fixture
def groups():
    """Of four ranks, of which this is number 1."""
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=4)
    yield {"all": dist.group.WORLD, "mine": dist.new_group([1, 3]), "other": dist.new_group([0, 2])}
    dist.destroy_process_group()


class Script:
    """A model and its average, two weights each."""

    def __init__(self) -> None:
        self.model, self.ema = nn.Linear(2, 2), nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.objects = {"model": self.model, "ema": self.ema, "optimizer": self.optimizer, "data": iter(())}
        self.derived = {id(param): (0, 1, 2, 3) for param in self.model.parameters()}

    def replicas(self, claims):
        """Ranks of the model's parameters, and of the average's."""
        found = apply_claims(self.derived, self.objects, claims, RANK)
        return [{found.get(id(param), ()) for param in module.parameters()} for module in (self.model, self.ema)]


def test_nothing_said_leaves_what_was_derived(groups):
    assert Script().replicas({}) == [{(0, 1, 2, 3)}, {()}]


def test_group_makes_an_object_replicated(groups):
    assert Script().replicas({"ema": groups["mine"]}) == [{(0, 1, 2, 3)}, {(1, 3)}]
    assert Script().replicas({"ema": groups["all"]}) == [{(0, 1, 2, 3)}, {(0, 1, 2, 3)}]


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_none_makes_an_object_unique_whatever_was_derived(groups, name):
    script = Script()
    assert script.replicas({name: None}) == [{()}, {()}]
    replicas = apply_claims(script.derived, script.objects, {name: None}, RANK)
    peers, members = choose_peers(script.model.parameters(), replicas, rank=RANK, node_of=lambda rank: rank)
    assert (peers, members) == ((), frozenset())


def test_of_two_claims_about_one_parameter_none_wins(groups):
    for claims in ({"model": groups["mine"], "optimizer": None}, {"optimizer": None, "model": groups["mine"]}):
        assert Script().replicas(claims) == [{()}, {()}]


@pytest.mark.parametrize(
    ("name", "group", "message"),
    [
        ("emma", "all", r"'emma': .* names no object of this call: model, ema, optimizer, data would be accepted"),
        ("data", "all", "whose state is always sent"),
        ("ema", "other", "rank 1 is not in"),
    ],
)
def test_claims_that_cannot_be_meant_are_refused(groups, name, group, message):
    with pytest.raises(ConfigError, match=message):
        Script().replicas({name: groups[group]})


def test_what_is_no_group_is_refused(groups):
    with pytest.raises(ConfigError, match=r"\[0, 1\].* cannot be used: give a process group, or None"):
        Script().replicas({"ema": [0, 1]})


def test_script_with_claims_runs_without_deadpool_too(groups):
    job = UnprotectedRank().protect(model=nn.Linear(2, 2), replicated={"model": groups["all"]})
    done = []
    for step in job.steps(2):
        with step:
            done.append(step.number)
    assert done == [0, 1]
