"""Nodes with different torches: nobody computes beside the others in another way, and it is said before a fault."""

from __future__ import annotations

import itertools

import pytest
from gated_job import EVERY_STEP, GatedJob

from deadpool.config.job_config import JobConfig
from deadpool.errors import JobFailed

SENTENCE = "all nodes of a job need the same torch"


@pytest.mark.parametrize("strange", ["spare", pytest.param("job", marks=pytest.mark.thorough)])
def test_spare_with_another_torch_says_so_and_rehearses_nothing(
    tmp_path, fork_server, strange_fork_server, run_and_compare, strange
):
    servers = {"job": fork_server, "spare": fork_server, strange: strange_fork_server}
    gated = GatedJob(JobConfig(nodes=2, spares=0, **EVERY_STEP).checked(), "ddp", "wait@4:0", tmp_path, servers["job"])

    def lost():
        return [event["reason"] for event in gated.events("trainer_lost")]

    def during():
        gated.await_gate(4)
        job = gated.trial.job
        job.fork_server = servers["spare"]
        job.add_node("n2", spare=True)
        gated.trial.await_event("trainer_lost")
        gated.trial.await_event("spare_lost")  # nobody counts on it
        gated.open_gate(4)

    run_and_compare(gated, during)
    assert lost() and all(SENTENCE in reason for reason in lost())
    assert not gated.events("rehearsed")


class Alternating:
    """A fork server that gives every other node another torch."""

    def __init__(self, *servers):
        self._servers = itertools.cycle(servers)
        self._first = servers[0]

    def fork_node_server(self, *arguments):
        next(self._servers).fork_node_server(*arguments)

    def __getattr__(self, name):
        return getattr(self._first, name)


@pytest.mark.thorough
def test_ranks_with_different_torches_do_not_begin(tmp_path, fork_server, strange_fork_server):
    mixed = Alternating(fork_server, strange_fork_server)
    gated = GatedJob(JobConfig(nodes=2, spares=0, **EVERY_STEP).checked(), "ddp", "", tmp_path, mixed)
    with pytest.raises(JobFailed, match=SENTENCE):
        gated.trial.run()
    assert gated.trial.results().losses == {}, "no rank has done a step"
