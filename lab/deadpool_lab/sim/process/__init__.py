"""A trainer process: the real TrainerCore and RecoveryWalk, and around them a training loop in virtual time.

It does what trainer/ does with threads: a monitor that receives messages at any moment, a script that builds, steps and
carries out the walk from rest to Go, and a capture that runs beside the next step. Process owns one of each other part,
and lends them its clock, its link and its memory. Among themselves, parts call only those below them:

    trainer_process   Process: its life and death, what it is told, what it says
    seating           Seating: the script's way to its loop, from its first line, from a rehearsal or from a halt
    steps             Steps: the training loop
    audited_step      AuditedStep: what the process tells of a step that is computed twice
    captures          Captures: snapshots, and the slots that they wait for
    recordings        Recordings: what collectives gave ranks before their loops, for processes that rehearse them
"""

from deadpool_lab.sim.process.trainer_process import Process

__all__ = ["Process"]
