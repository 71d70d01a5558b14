"""What a user can set, and the only place that reads it: flags over environment over file over defaults.

One timeout is set by the user, `node_timeout_s`; the others are derived from it unless set on purpose.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool import timeouts
from deadpool.errors import ConfigError
from deadpool.fault_orders import parse_order

ENVIRONMENT_PREFIX = "DEADPOOL_"
IN_PLACE = ("auto", "always", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    nodes: int = 1
    spares: int = 0
    nproc_per_node: int = 1
    holders: int = 1  # nodes that keep a copy of each rank's snapshots
    slots: int = 3  # snapshots kept per rank and side
    standby: int = 0  # extra trainers parked on every node
    rehearsals: int = 1  # trainers parked per seat of a spare node, each rehearsing another rank
    capture_every: int = 1  # steps between snapshots, at least
    overhead_budget: float = 0.001  # share of the step time that snapshots may cost; 0: no limit, none is left out
    node_timeout_s: float = 5.0  # silence after which a node is taken for dead
    unwind_timeout_s: float = 0.0  # these four and the isolation timeout follow from it: see timeouts.py; 0: derived
    prepare_timeout_s: float = 0.0
    connect_timeout_s: float = 0.0
    spare_wait_s: float = 0.0
    quarantine_after: int = 3  # faults of one node, after which its ranks go to a spare; 0: never
    quarantine_window_s: float = 3600.0  # within which they count
    hang_timeout_s: float = 0.0  # without one completed step; 0: 10 times the slowest recent step, at least 60 s
    bulk_nice: int = 5  # of the agents' threads that hash and move copies: training goes first
    bulk_cpus: str = ""  # CPUs that these threads keep to, e.g. "0-3,8"; empty: any
    in_place: str = "auto"  # how survivors recover: always, never (fresh processes), auto: where this torch is known
    topology: str = ""  # TOML file that says which node of `deadpool run` stands in which rack
    host: str = "127.0.0.1"  # address that peers reach this process at
    interface: str = ""  # whose address that is, instead of `host`, e.g. "eth0"
    port: int = 0  # of the coordinator; 0: any free one
    coordinators: str = ""  # HOST:PORT of each, with commas in between, where there are several; the first one begins
    standby_coordinators: int = 0  # that `deadpool run` starts beside the first
    isolation_timeout_s: float = 0.0  # without any coordinator, after which a node ends its trainers
    replace_stragglers: bool = False  # drain a node that is slow all the time without being asked
    tls: str = "off"  # of control and data connections: off, ephemeral, or a folder with cert.pem, key.pem, ca.pem
    faults: tuple[str, ...] = ()  # to be injected, known from the start, e.g. "at=backward step=0 node=n1"

    @property
    def heartbeat_s(self) -> float:
        return self.node_timeout_s / timeouts.BEATS_PER_TIMEOUT

    @property
    def derived_timeouts(self) -> dict[str, float]:
        """By setting. ConfigError where one that was given cannot work."""
        given = {rule.name: getattr(self, rule.name) for rule in timeouts.RULES}
        return timeouts.derived(self.node_timeout_s, given)

    @property
    def coordinator_places(self) -> tuple[str, ...]:
        """HOST:PORT of each. Empty: there is one only."""
        return tuple(place.strip() for place in self.coordinators.split(",") if place.strip())

    @property
    def node_names(self) -> list[str]:
        """Of the nodes that `deadpool run` starts; the spares come last."""
        return [f"n{i}" for i in range(self.nodes + self.spares)]

    def racks(self) -> dict[str, str]:
        """Node -> rack, from the topology file. Nodes that it does not name are racks of their own.

        Not part of checked(): a coordinator is told the same settings, and does not know the names of spares.
        """
        return read_racks(Path(self.topology), self.node_names) if self.topology else {}

    def checked(self) -> JobConfig:
        """Refuses what cannot work, with the reason. The timeouts that were not given are filled in."""
        for name in ("nodes", "nproc_per_node", "slots", "capture_every", "rehearsals"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "a number of at least 1")
        for name in ("spares", "holders", "standby", "standby_coordinators", "quarantine_after"):
            _require(name, getattr(self, name), getattr(self, name) >= 0, "a number of at least 0")
        _require("slots", self.slots, self.slots >= 2, "at least 2: one kept, one being written")
        enough = self.holders < self.nodes
        _require("holders", self.holders, enough, f"less than the {self.nodes} nodes: copies lie on other nodes")
        _require("node_timeout_s", self.node_timeout_s, self.node_timeout_s >= 1, "at least 1 second")
        self._check_coordinators()
        hang, beats = self.hang_timeout_s, 2 * self.heartbeat_s
        _require("hang_timeout_s", hang, hang == 0 or hang >= beats, f"0 or at least {beats:g} s: two heartbeats")
        budget = self.overhead_budget
        _require("overhead_budget", budget, 0 <= budget < 1, "a share of the step time: 0.001 is 0.1 %, 0 is no limit")
        window = self.quarantine_window_s
        _require("quarantine_window_s", window, window > 0, "a time of more than 0 s")
        _require("in_place", self.in_place, self.in_place in IN_PLACE, f"one of {', '.join(IN_PLACE)}")
        _require("bulk_nice", self.bulk_nice, 0 <= self.bulk_nice <= 19, "a number of 0 to 19")
        parse_cpus(self.bulk_cpus)
        for text in self.faults:
            rank, world_size = parse_order(text).rank, self.nodes * self.nproc_per_node
            _require("rank", rank, rank is None or 0 <= rank < world_size, f"a rank of 0 to {world_size - 1}")
        filled_in: dict[str, Any] = {**self.derived_timeouts}
        return dataclasses.replace(self, **filled_in)

    def _check_coordinators(self) -> None:
        """Of several, one may act only with most of the nodes that ran; of two nodes, both are most."""
        several = max(self.standby_coordinators, len(self.coordinator_places) - 1)
        accepted = "none with fewer than 3 nodes: with most of them gone nobody could be sure to be the only one"
        _require("standby_coordinators", several, several == 0 or self.nodes > 2, accepted)
        for place in self.coordinator_places:
            host, _, port = place.rpartition(":")
            _require("coordinators", place, bool(host) and port.isdigit(), "HOST:PORT of each, with commas in between")


def _require(name: str, value: Any, good: bool, accepted: str) -> None:
    if not good:
        raise ConfigError(f"{name}={value!r} cannot be used: give {accepted}")


def parse_cpus(text: str) -> frozenset[int]:
    """Of "0-3,8"."""
    try:
        ranges = [part.split("-") for part in text.split(",") if part.strip()]
        return frozenset(cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1))
    except ValueError:
        raise ConfigError(f"bulk_cpus={text!r} cannot be used: give numbers and ranges, as in 0-3,8") from None


def read_racks(path: Path, nodes: Sequence[str]) -> dict[str, str]:
    """[racks] with a list of node names for each: r0 = ["n0", "n1"]."""
    racks = _read_toml(path, "topology file").get("racks")
    if not isinstance(racks, dict) or not all(isinstance(names, list) for names in racks.values()):
        raise ConfigError(f'topology file {path} needs a table [racks] with lists of nodes, as in r0 = ["n0", "n1"]')
    found: dict[str, str] = {}
    for rack, names in racks.items():
        for name in names:
            if name not in nodes:
                raise ConfigError(f"{path}: rack {rack} names node {name!r}: known are {', '.join(nodes)}")
            if found.setdefault(name, rack) != rack:
                raise ConfigError(f"{path}: node {name} stands in two racks, {found[name]} and {rack}")
    return found


def resolve(
    flags: Mapping[str, Any], *, file: Path | None = None, environment: Mapping[str, str] | None = None
) -> JobConfig:
    """Flags that are None were not given. A job of one node has nobody to hold its copies."""
    variables = os.environ if environment is None else environment
    merged: dict[str, Any] = {**_from_file(file), **_from_environment(variables)}
    merged.update({name: value for name, value in flags.items() if value is not None})
    if merged.get("host") and merged.get("interface"):
        raise ConfigError(f"host={merged['host']!r} and interface={merged['interface']!r}: give one of them")
    if merged.get("nodes", 1) == 1:
        merged.setdefault("holders", 0)
    return JobConfig(**merged).checked()


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    values = _read_toml(path, "config file")
    return {name: _cast(name, value, f"{path}: ") for name, value in values.items()}


def _read_toml(path: Path, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{what} {path} cannot be read: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(JobConfig)}
    found = {name: environment.get(ENVIRONMENT_PREFIX + name.upper()) for name in names}
    return {name: _cast(name, value, ENVIRONMENT_PREFIX) for name, value in found.items() if value is not None}


def _texts(value: Any) -> tuple[str, ...]:
    """A list in a file; in the environment one text, with semicolons in between."""
    parts = value.split(";") if isinstance(value, str) else value
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _truth(value: Any) -> bool:
    """In the environment a word."""
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if str(value).lower() not in words:
        raise ValueError(value)
    return words[str(value).lower()]


_KINDS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": _truth,
    "tuple[str, ...]": _texts,
}


def _cast(name: str, value: Any, where: str) -> Any:
    kinds = {f.name: str(f.type) for f in dataclasses.fields(JobConfig)}
    if name not in kinds:
        raise ConfigError(f"{where}{name} is not a setting: known are {', '.join(sorted(kinds))}")
    try:
        return _KINDS[kinds[name]](value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}{name}={value!r} is not a {kinds[name]}") from error
