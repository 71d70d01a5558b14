"""What a user can set: each setting is described once, here, and `resolution.py` reads what was given.

One timeout is set by the user, `node_timeout_s`; the others are derived from it unless they are given.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.config import timeouts
from deadpool.config.checks import AUTO, bounds_of_protection, check_values, require
from deadpool.config.orders import (
    HOOKS,
    ON_EVENT_HELP,
    ORDER_HELP,
    WEBHOOK,
    WEBHOOK_HELP,
    HookRule,
    parse_order,
    parse_rule,
)
from deadpool.config.values import (
    AGENT,
    COORDINATOR,
    JOB,
    RUN,
    Setting,
    coded_bound,
    read_racks,
    setting,
    settings_of,
)
from deadpool.errors import ConfigError
from deadpool.protocol.schemes import Scheme

_RUN, _COORDINATOR, _NODE, _ALL = (RUN,), (COORDINATOR,), (RUN, AGENT), (*JOB, AGENT)


def _derived(name: str) -> Any:
    """A timeout that follows from the node timeout, unless it is given."""
    rule = next(rule for rule in timeouts.RULES if rule.name == name)
    return setting(0.0, rule.what_for, default_text=f"{rule.times:g} node timeouts, at least {rule.at_least_s:g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    nodes: int = setting(1, "nodes that train")
    spares: int = setting(0, "spare nodes, which take the ranks of lost nodes", commands=_RUN)
    nproc_per_node: int = setting(1, "trainers per node, one rank each")
    holders: int = setting(1, "other nodes that keep a copy of each rank's snapshots")
    protect: str = setting(
        "",
        "how snapshots outlive their node: copies=N (whole, on N other nodes), or rs(K,M): up to K nodes and M more "
        "form a group that survives the loss of any M of them, with M/K of the memory of a copy; or auto: as many "
        "copies as --holders says, and one more for nodes that look ill",
        default_text="copies=1, or as many as --holders says",
    )
    slots: int = setting(
        0,
        "snapshots of each rank that its node and each holder keep: exactly so many",
        default_text="3, and up to 8 where commits take so long, in at most half of the node's memory",
    )
    spare_trainers: int = setting(
        0, "trainers parked on every training node, to take the rank of a trainer that dies there", commands=_NODE
    )
    rehearsals: int = setting(
        1,
        "trainers parked per seat of a spare node; each rehearses another rank, so that whichever rank is lost is more "
        "likely to be replaced fast",
        commands=_NODE,
    )
    while_parked: str = setting(
        "",
        "command that a spare runs while it has nothing to do; it is stopped within a second when the spare is needed, "
        "and started again when it is parked again",
        commands=_NODE,
    )
    parked_state: str = setting(
        "keep",
        "whether parked trainers keep the memory of parameters and optimizer state: keep, or free, so that the command "
        "of --while-parked has it; it is allocated again when the spare is needed",
        commands=_NODE,
    )
    capture_every: int = setting(1, "steps from one snapshot to the next, at least")
    overhead_budget: float = setting(
        0.005, "share of the step time that snapshots may cost, as measured; 0: no limit, every snapshot is taken"
    )
    set_aside_gb: float = setting(
        0.0,
        "GB of each rank's device memory into which a snapshot is cloned as far as it could not be copied before the "
        "optimizer; 0: none, the optimizer waits or the snapshot is given up",
    )
    node_timeout_s: float = setting(
        5.0, "seconds of silence after which a node is taken for dead; the other timeouts follow from it"
    )
    unwind_timeout_s: float = _derived("unwind_timeout_s")
    prepare_timeout_s: float = _derived("prepare_timeout_s")
    connect_timeout_s: float = _derived("connect_timeout_s")
    spare_wait_s: float = _derived("spare_wait_s")
    quarantine_after: int = setting(3, "faults of one node after which its ranks go to a spare; 0: never")
    quarantine_window_s: float = setting(3600.0, "seconds within which these faults count")
    hang_timeout_s: float = setting(
        0.0,
        "seconds without one completed step after which the job is taken to hang",
        default_text="5 slow steps, at least 5 s, if no rank does anything; else 10, at least 60 s",
    )
    bulk_nice: int = setting(
        5, "niceness of the agents' threads that hash and move copies: training goes first", commands=_NODE
    )
    bulk_cpus: str = setting(
        "",
        "CPUs that these threads keep to, as in 0-3,8",
        commands=_NODE,
        default_text="a quarter of the cores, or all if there are fewer than 8",
    )
    transport: str = setting(
        "auto",
        "how the bytes of copies travel: tcp, nixl (RDMA where there is a device; needs the package nixl, and cannot "
        "be encrypted), or auto: nixl between nodes that have an RDMA device and the package, in jobs without --tls",
        commands=_NODE,
    )
    in_place: str = setting(
        "auto",
        "whether survivors recover in their own processes: always, never (fresh processes take their ranks), or auto "
        "(in place where DeadPool knows this version of torch)",
    )
    rehearse_recovery: bool = setting(
        False,
        "play one recovery early in the job, without a loss, and compare what is computed again with what was: a "
        "script that is not exact is named before the first fault; on unless --no-rehearse-recovery is given",
    )
    on_inexact: str = setting(
        "warn",
        "what follows where the script is found to do what no recovery can make good (docs/exactness.md): warn, or "
        "stop (the job ends before its next step)",
    )
    on_corruption: str = setting(
        "stop",
        "what follows where replicas hold different state, computing again does not help, and no spare can take the "
        "place of the node at fault (docs/silent-corruption.md): stop, go-on (nothing is committed while they differ), "
        "or ignore (nothing is computed again, and nobody is named)",
    )
    audit_every: int = setting(
        0,
        "compute one step in so many a second time and compare it, rank by rank, gradients before they are reduced "
        "included: an error that all replicas share is found, and its rank named (docs/silent-corruption.md); 0: never",
    )
    audit_spares_every: int = setting(
        10,
        "in one audit in so many a spare computes the step for the ranks of one node, each in turn, and keeps them: a "
        "device that errs in the same way every time is found (docs/silent-corruption.md); 0: never",
    )
    topology: str = setting(
        "", 'TOML file that says which node is in which rack: [racks] with r0 = ["n0", "n1"]', commands=_RUN
    )
    host: str = setting("127.0.0.1", "address that other nodes reach this process at", commands=(COORDINATOR, AGENT))
    interface: str = setting("", "network interface whose address is used instead of --host, as in eth0", commands=_ALL)
    port: int = setting(0, "port to listen on; 0: any free one", commands=_COORDINATOR)
    coordinators: str = setting(
        "",
        "HOST:PORT of all coordinators of this job, separated by commas, this one among them; the first one begins, "
        "the others stand by",
        commands=_COORDINATOR,
    )
    standby_coordinators: int = setting(
        0,
        "coordinators that stand by to take over; without them a coordinator that dies is started again",
        commands=_RUN,
    )
    isolation_timeout_s: float = _derived("isolation_timeout_s")
    protect_at_most: str = setting(
        "",
        "how far the job may change its protection by itself, as in copies=2,memory=0.5,every=8,rs(4,1): holders of a "
        "rank of a node that looks ill, share of a node's memory for copies, steps between snapshots while all nodes "
        "look well, parity instead of copies where these take more memory than that",
        default_text="it stays as it is",
    )
    protect_dwell_s: float = setting(
        600.0, "seconds that a change of protection stays at least, and over which signs of illness are counted"
    )
    evict_ill: bool = setting(False, "drain a node that looks ill before it fails, where there is a spare")
    health_root: str = setting(
        "/",
        "folder with the /proc, /sys and /dev that an agent reads its node's health from; {node} stands for its name",
        commands=_NODE,
    )
    drills: bool = setting(
        False, "allow orders that change the state of this job, to try what follows (deadpool node flip)"
    )
    replace_stragglers: bool = setting(False, "drain a node that is slow all the time without being asked")
    without_spare: str = setting(
        "wait",
        "what follows when a node is lost and no spare is left: wait for one, or shrink (other nodes do the work of "
        "the lost one, if the script takes its work from step.shares(); not bit-identical)",
    )
    durable: str = setting(
        "", "directory or URL (s3://..., gs://...) for durable checkpoints, which outlive every machine of the job"
    )
    durable_every: str = setting("30m", "how often a durable checkpoint is written, as in 30m, 90s or 200 steps")
    durable_bandwidth: str = setting(
        "", "bytes per second that each node may write to it, as in 200MB", default_text="no limit"
    )
    durable_nice: int = setting(10, "niceness of the processes that write durable checkpoints: training goes first")
    durable_timeout_s: float = setting(1800.0, "seconds after which the write of a durable checkpoint is given up")
    durable_keep: int = setting(3, "newest durable checkpoints that stay; 0: all")
    durable_keep_every: int = setting(0, "checkpoints whose step is a multiple of this stay too; 0: none")
    resume: str = setting(
        "no",
        "whether the job begins from the newest complete checkpoint in --durable: no, auto (if there is one), must",
    )
    tls: str = setting(
        "off",
        "encryption of all connections: off, ephemeral, or a folder with cert.pem, key.pem and ca.pem",
        commands=_ALL,
    )
    metrics_port: int = setting(
        0,
        "port at which Prometheus can scrape this process; 0: none. deadpool run gives the coordinator this one, and "
        "standbys and agents the next ones; on clusters every agent has the next one",
        commands=_ALL,
    )
    metrics_host: str = setting(
        "127.0.0.1",
        "address that metrics are served at; they have no password, so only loopback is safe",
        commands=_ALL,
    )
    log_mb: int = setting(
        64,
        "MB after which a trainer's log begins a new file; the last 4 full ones stay, and those around the last 8 "
        "faults; 0: one file",
        commands=_NODE,
    )
    log_format: str = setting(
        "text", "what coordinators and agents print: text, or json with one object per line", commands=_ALL
    )
    on_event: tuple[str, ...] = setting((), ON_EVENT_HELP)
    webhook: tuple[str, ...] = setting((), WEBHOOK_HELP)
    dashboard: bool = setting(False, "serve a live page of the job, on loopback unless --dashboard-at says otherwise")
    dashboard_at: str = setting("127.0.0.1:0", "HOST:PORT of that page; port 0: any free one")
    faults: tuple[str, ...] = setting((), f"a fault to inject (repeatable), {ORDER_HELP}", word="fault")

    @property
    def heartbeat_s(self) -> float:
        return self.node_timeout_s / timeouts.BEATS_PER_TIMEOUT

    @property
    def scheme(self) -> Scheme:
        """The least protection; where the job itself chooses, it stays within --protect-at-most."""
        return Scheme.parse(self.protect) if self.protect not in ("", AUTO) else Scheme(copies=self.holders)

    @property
    def derived_timeouts(self) -> dict[str, float]:
        """Seconds by setting. Raises ConfigError where a timeout that was given cannot work."""
        given = {rule.name: getattr(self, rule.name) for rule in timeouts.RULES}
        return timeouts.derived(self.node_timeout_s, given)

    @property
    def coordinator_places(self) -> tuple[str, ...]:
        """HOST:PORT of each coordinator. Empty: there is only one."""
        return tuple(place.strip() for place in self.coordinators.split(",") if place.strip())

    @property
    def node_names(self) -> list[str]:
        """Names of the nodes that `deadpool run` starts; the spares come last."""
        return [f"n{i}" for i in range(self.nodes + self.spares)]

    def metrics_port_of(self, process: int) -> int:
        """For each process that `deadpool run` starts on this machine, counted from the first coordinator; 0: none."""
        return self.metrics_port + process if self.metrics_port else 0

    def hook_rules(self) -> list[HookRule]:
        return [parse_rule(kind, text) for kind in HOOKS for text in getattr(self, kind)]

    def protection_bounds(self) -> dict[str, float] | None:
        """None: protection stays as it is. Raises ConfigError where the bounds cannot be used."""
        return bounds_of_protection(self)

    @property
    def coded_bound(self) -> Scheme | None:
        """How snapshots may be coded where whole copies take too much memory; None: they may not."""
        text = coded_bound(self.protect_at_most)
        try:
            return Scheme.parse(text) if text else None
        except ValueError as error:
            raise ConfigError(f"protect_at_most={self.protect_at_most!r} cannot be used: {error}") from None

    def told(self) -> dict[str, Any]:
        """All settings, for whoever reads about the job. Targets of hooks may be secrets, so only their labels."""
        labels = {kind: tuple(rule.label for rule in self.hook_rules() if rule.kind == kind) for kind in HOOKS}
        return dataclasses.asdict(self) | labels

    def check_webhooks(self) -> None:
        """Raises ConfigError where a file holds no URL. Only at the start: later the job is more important."""
        for rule in self.hook_rules():
            if rule.kind == WEBHOOK:
                rule.url()

    def check_fault_nodes(self) -> None:
        """Raises ConfigError for a fault of a node that `deadpool run` does not start. Elsewhere nodes have names of
        their own."""
        for text in self.faults:
            node, names = parse_order(text).node, self.node_names
            fits = node is None or node in names
            require(f"fault {text!r}: node", node, fits, f"one of {', '.join(names)}")

    def racks(self) -> dict[str, str]:
        """Rack by node, from the topology file. A node that the file does not name is a rack of its own.

        This is no part of checked(): a coordinator gets the same settings, and does not know the names of spares.
        """
        return read_racks(Path(self.topology), self.node_names) if self.topology else {}

    def checked(self) -> JobConfig:
        """Raises ConfigError where a value cannot work. Fills in the timeouts that were not given."""
        check_values(self, SETTINGS)
        filled_in: dict[str, Any] = {**self.derived_timeouts}
        return dataclasses.replace(self, **filled_in)


SETTINGS = settings_of(JobConfig)


def settings_for(command: str) -> tuple[Setting, ...]:
    """The settings that a command has flags for."""
    return tuple(each for each in SETTINGS if command in each.commands)
