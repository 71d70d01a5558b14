"""Named mixes of faults, for what is rare among all of them."""

from __future__ import annotations

from dataclasses import replace

from deadpool.sim.options import ANYTHING, Options, Profile


def _succession(options: Options) -> Options:
    nodes = max(3, options.nodes)
    return replace(options, nodes=nodes, standbys=max(1, options.standbys), budget=0.0)


def _tight(options: Options) -> Options:
    """Little room, slow copies, captures given up: what is kept and overwritten is decided all the time. In every other
    world news takes long: then a fence finds some of it on its way."""
    latency_s = 0.2 if options.seed % 2 else options.latency_s
    return replace(options, slots=2, give_up=0.2, push_s=1.5, every=1, budget=0.0, latency_s=latency_s)


def _intervals(options: Options) -> Options:
    """Changes of the interval that are heard of late."""
    return replace(options, budget=0.1, copy_s=2.0, deaf_s=60.0, calm_s=60.0)


def _replicas(options: Options) -> Options:
    return replace(options, replicated=True, holders=1, budget=0.0, nodes=max(3, options.nodes))


def _damage(options: Options) -> Options:
    """Who loses its processes at every fault has to load its copies."""
    return replace(options, in_place=options.seed % 2 == 0, budget=0.0)


def _returns(options: Options) -> Options:
    """Little is committed, so that a loss costs the start; spares take every seat, and there is time to come back."""
    return replace(options, nodes=min(3, options.nodes), spares=3, every=3, push_s=1.5, calm_s=60.0, budget=0.0)


def _births(options: Options) -> Options:
    """Who returns has versions that were computed again without it, and is needed: the one spare, which has its seat,
    dies soon. Copies lag, so that it had sealed what no holder had yet."""
    return replace(
        options, nodes=2 + options.seed % 2, spares=1, holders=1, push_s=1.5, every=1, slots=3, in_place=True,
        give_up=0.0, push_failure=0.0, budget=0.0, standbys=0, calm_s=45.0, latency_s=0.005,
    )  # fmt: skip


PROFILES = (
    ANYTHING,
    Profile(
        name="succession",
        kinds=frozenset({"node", "trainer", "coordinator", "coordinator_cut", "coordinator_half_cut", "split"}),
        intensity=2.0,
        shape=_succession,
    ),
    Profile(name="tight", kinds=frozenset({"node", "trainer", "alarm"}), intensity=2.0, shape=_tight),
    Profile(name="replicas", kinds=frozenset({"node", "pair", "trainer"}), intensity=2.0, shape=_replicas),
    Profile(name="damage", kinds=frozenset({"corrupt", "trainer", "alarm", "node"}), intensity=3.0, shape=_damage),
    Profile(
        name="departures",
        kinds=frozenset({"drain", "leave", "node", "join"}),
        intensity=3.0,
        shape=lambda options: replace(options, spares=max(2, options.spares), budget=0.0),
    ),
    Profile(
        name="returns",
        kinds=frozenset({"node_cut", "node_half_cut", "pause", "reset", "node"}),
        intensity=4.0,
        shape=_returns,
    ),
    Profile(name="births", kinds=frozenset({"node_cut", "newcomer"}), intensity=10.0, shape=_births),
    Profile(name="intervals", kinds=frozenset({"node", "trainer"}), intensity=0.5, shape=_intervals),
)
BY_NAME = {profile.name: profile for profile in PROFILES}
