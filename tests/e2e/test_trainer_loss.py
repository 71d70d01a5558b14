"""One trainer dies, its node lives: the state is in the node's own arena, nothing moves to another node."""

from __future__ import annotations

import os
import signal

import psutil
import pytest


def test_fresh_process_takes_the_rank(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:1", spares=0)
    run_and_compare(gated, lambda: gated.kill_trainer_at_gate(4))
    assert gated.seats() == ["n0", "n1"]


def test_standby_takes_the_rank(make_gated_job, run_and_compare):
    gated = make_gated_job(acts="wait@4:0", spares=0, spare_trainers=1)
    parked: dict[int, str] = {}

    def during():
        gated.trial.await_event("rehearsed", count=2)
        parked.update({event["rank"]: event["trainer"] for event in gated.events("rehearsed")})
        gated.kill_trainer_at_gate(4)

    run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n1"]
    assert gated.trainers()[0] == parked[0] != "n0.0", "no process had to be started"


@pytest.mark.thorough
def test_fork_server_killed_and_all_its_trainers_with_it(make_gated_job, run_and_compare):
    gated = make_gated_job("plain", acts="wait@4:1", spares=0)

    def during():
        trainer = psutil.Process(gated.await_gate(4))
        os.kill(trainer.ppid(), signal.SIGKILL)
        gated.trial.await_event("fault")
        assert not trainer.is_running() or trainer.status() == psutil.STATUS_ZOMBIE
        gated.open_gate(4)

    run_and_compare(gated, during)
    assert gated.seats() == ["n0", "n1"]
