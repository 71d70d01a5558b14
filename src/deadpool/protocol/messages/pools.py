"""What a pool of spare machines and the machines in it say to each other.

A pool decides where trainers are parked; which job gets a machine is decided on the machine itself."""

from __future__ import annotations

from deadpool.protocol.structs import Message, Value


class PoolJob(Value, frozen=True, kw_only=True):
    """A job that a pool serves. It names a file with the job's secret; the pool itself never reads that file."""

    name: str
    coordinators: str  # HOST:PORT of all, separated by commas
    secret_file: str
    script: tuple[str, ...]
    folder: str  # in which the script runs
    priority: int = 0
    memory_bytes: int = 0  # that its parked trainers take on a machine
    parked_most: int = 0  # machines that keep trainers parked for it; 0: all
    leased_most: int = 0  # machines that it may have at once; 0: all
    tls: str = "off"
    options: tuple[str, ...] = ()  # further flags of its agents


class HostState(Message, frozen=True, kw_only=True):
    """A machine of the pool says what it is doing, when it joins and whenever that has changed."""

    host: str
    memory_bytes: int
    parked: tuple[str, ...]  # jobs that its agents are in
    ready: tuple[str, ...]  # those of them whose trainers are rehearsed
    leased_to: str = ""  # empty: it is free
    work: str = ""  # what its command of --while-parked is doing
    machine: str = ""  # which one it is, for people and to tell two of one name apart


class Assignment(Message, frozen=True, kw_only=True):
    """The jobs that a machine is to keep trainers parked for, the most important first."""

    jobs: tuple[PoolJob, ...]


class PoolNotice(Message, frozen=True, kw_only=True):
    """What whoever looks after a machine should know."""

    text: str
