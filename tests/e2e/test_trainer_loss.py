"""One trainer dies, its node lives: the state is in the node's own arena, nothing moves to another node."""

from __future__ import annotations

import os
import signal

import psutil
import pytest


def test_fresh_process_takes_the_rank(make_stage, play):
    stage = make_stage(scene="wait@4:1", spares=0)
    play(stage, lambda: stage.kill_trainer_at_gate(4))
    assert stage.seats() == ["n0", "n1"]


def test_standby_takes_the_rank(make_stage, play):
    stage = make_stage(scene="wait@4:0", spares=0, spare_trainers=1)
    parked: dict[int, str] = {}

    def during():
        stage.trial.await_event("rehearsed", count=2)
        parked.update({event["rank"]: event["trainer"] for event in stage.events("rehearsed")})
        stage.kill_trainer_at_gate(4)

    play(stage, during)
    assert stage.seats() == ["n0", "n1"]
    assert stage.trainers()[0] == parked[0] != "n0.0", "no process had to be started"


@pytest.mark.thorough
def test_fork_server_killed_and_all_its_trainers_with_it(make_stage, play):
    stage = make_stage("plain", scene="wait@4:1", spares=0)

    def during():
        trainer = psutil.Process(stage.await_gate(4))
        os.kill(trainer.ppid(), signal.SIGKILL)
        stage.trial.await_event("fault")
        assert not trainer.is_running() or trainer.status() == psutil.STATUS_ZOMBIE
        stage.open_gate(4)

    play(stage, during)
    assert stage.seats() == ["n0", "n1"]
