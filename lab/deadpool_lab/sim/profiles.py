"""Named mixes of faults, for situations that are rare among all seeds."""

from __future__ import annotations

from dataclasses import replace

from deadpool.protocol.schemes import Scheme
from deadpool_lab.sim.faults.fault import TIME
from deadpool_lab.sim.options import ANYTHING, AUDIT_KINDS, LASTING_KINDS, SIZE_KINDS, Profile, SeedOptions


def _succession(options: SeedOptions) -> SeedOptions:
    nodes = max(3, options.nodes)
    return replace(options, nodes=nodes, standbys=max(1, options.standbys), budget=0.0)


def _tight(options: SeedOptions) -> SeedOptions:
    """Few slots, slow copies, captures given up: permits decide all the time what is kept. In every other seed messages
    are slow, so that a fence finds some of them on their way."""
    latency_s = 0.2 if options.seed % 2 else options.latency_s
    return replace(options, slots=2, give_up=0.2, push_s=1.5, every=1, budget=0.0, latency_s=latency_s)


def _intervals(options: SeedOptions) -> SeedOptions:
    """Trainers learn late of changes of the interval."""
    return replace(options, budget=0.1, copy_s=2.0, deaf_s=60.0, calm_s=60.0)


def _long_loads(options: SeedOptions) -> SeedOptions:
    """The next fault comes while processes still load what the plan before it gave them."""
    return replace(options, load_s=8.0, calm_s=60.0, every=1, spares=3, budget=0.0)


def _replicas(options: SeedOptions) -> SeedOptions:
    return replace(options, replicated=True, holders=1, budget=0.0, nodes=max(3, options.nodes))


def _damage(options: SeedOptions) -> SeedOptions:
    """In every other seed all processes end at a fault, so that every rank has to load its copy."""
    return replace(options, in_place=options.seed % 2 == 0, budget=0.0)


def _returns(options: SeedOptions) -> SeedOptions:
    """Little is committed, so that a loss makes the job start anew; spares take every seat, and there is time to
    return."""
    return replace(options, nodes=min(3, options.nodes), spares=3, every=3, push_s=1.5, calm_s=60.0, budget=0.0)


def _births(options: SeedOptions) -> SeedOptions:
    """A node returns with versions that were computed again without it, and is needed, since the one spare, which took
    its seat, dies soon. Copies lag, so that the node had sealed what no holder had yet."""
    return replace(
        options, nodes=2 + options.seed % 2, spares=1, holders=1, push_s=1.5, every=1, slots=3, in_place=True,
        give_up=0.0, push_failure=0.0, budget=0.0, standbys=0, calm_s=45.0, latency_s=0.005,
    )  # fmt: skip


def _durable(options: SeedOptions) -> SeedOptions:
    """Pairs of nodes die, so that both copies of a rank are lost, and spares can take all seats."""
    return replace(options, durable=True, holders=1, spares=3, calm_s=60.0, budget=0.0, standbys=0, every=1)


def _illness(options: SeedOptions) -> SeedOptions:
    """Time for several decisions, nodes of which a few are ill, and often no more than one spare."""
    nodes, spares = max(3, options.nodes), 1 + options.seed % 2
    return replace(
        options, nodes=nodes, holders=1, spares=spares, adaptive=True, evict=True, calm_s=70.0, budget=0.0, standbys=0,
    )  # fmt: skip


MAY_BE_CODED = ("rs(2,1)", "rs(4,1)", "rs(3,2)", "rs(4,2)", "rs(8,1)")


def _memory(options: SeedOptions) -> SeedOptions:
    """The job may code its snapshots, also with a scheme that survives fewer losses than it is to survive: that one is
    never to be used. Time for several decisions."""
    coded = MAY_BE_CODED[options.seed % len(MAY_BE_CODED)]
    nodes, holders = max(4 + options.seed % 3, options.nodes), 1 + (options.seed % 4 == 0)
    return replace(
        options, nodes=nodes, holders=holders, coded=coded, spares=max(1, options.spares), adaptive=True, budget=0.0,
        calm_s=70.0,
    )  # fmt: skip


CODED = ("rs(1,1)", "rs(2,1)", "rs(3,1)", "rs(4,1)", "rs(2,2)", "rs(3,2)", "rs(4,2)")


def _coded(options: SeedOptions) -> SeedOptions:
    """Snapshots are coded in groups of all sizes, some of them smaller than the scheme allows."""
    scheme = CODED[options.seed % len(CODED)]
    nodes = max(options.nodes + options.seed % 3, Scheme.parse(scheme).parities + 1)
    return replace(options, scheme=scheme, nodes=nodes, spares=max(1, options.spares))


def _coded_pairs(options: SeedOptions) -> SeedOptions:
    """Two nodes of a group die at once, or one after the other, and two parities have to make up for it."""
    options = replace(options, nodes=4 + options.seed % 3, spares=3, budget=0.0, calm_s=45.0)
    return replace(options, scheme=("rs(2,2)", "rs(4,2)", "rs(3,2)")[options.seed % 3])


def _shrink(options: SeedOptions) -> SeedOptions:
    """Few spares or none. Replicas are single ranks, all ranks of a node, or ranks of two nodes. In most seeds all
    ranks have said how they divide their work before the first fault comes."""
    nodes_per_replica = 2 if options.seed % 3 == 0 else 1
    nodes = max(3, options.nodes) if nodes_per_replica == 1 else 4 + 2 * (options.seed % 2)
    shards = (1, options.per_node)[options.seed % 2] if nodes_per_replica == 1 else 2 * options.per_node
    return replace(
        options, shards=shards, nodes=nodes, spares=options.seed % 5 == 0, replicated=True, standbys=0, budget=0.0,
        durable=options.seed % 7 == 0, calm_s=45.0 + options.calm_s, quiet_s=0.0 if options.seed % 4 == 0 else 14.0,
    )  # fmt: skip


def _corruption(options: SeedOptions) -> SeedOptions:
    """Devices err in a job whose ranks hold a part alike, late enough that the claim of replication has been true for
    ten versions in most seeds. In every third seed a step that is computed again gives something else."""
    nodes = (2, 3, 3, 4)[options.seed % 4]
    return replace(
        options, nodes=nodes, holders=1, replicated=True, errs=True, exact=options.seed % 3 != 0, every=1, budget=0.0,
        durable=options.seed % 5 == 0, scheme="rs(2,1)" if options.seed % 7 == 3 and nodes > 2 else "", give_up=0.0,
        push_s=min(options.push_s, 0.5), calm_s=60.0, quiet_s=0.0 if options.seed % 8 == 0 else 20.0,
    )  # fmt: skip


def _step_audits(options: SeedOptions) -> SeedOptions:
    """Every few steps one is computed twice, and devices err in it. No rank has a replica."""
    nodes = (2, 3, 3, 4)[options.seed % 4]
    return replace(
        options, nodes=nodes, holders=1, replicated=False, audit_every=3 + options.seed % 4, every=1, budget=0.0,
        give_up=0.0, push_s=0.1, push_failure=0.0, late=0.0, slots=4, latency_s=0.005, spares=max(1, options.spares),
        calm_s=70.0,
    )  # fmt: skip


def _judges(options: SeedOptions) -> SeedOptions:
    """A spare computes the ranks of a node too, in every audit or in every other one; all else is as in `step_audits`.
    One spare is there, or several."""
    options = _step_audits(options)
    return replace(options, audit_spares=1 + options.seed % 2, spares=1 + options.seed % 3, calm_s=110.0)


def _ending(options: SeedOptions) -> SeedOptions:
    """Scripts end in the middle of the faults, and take some time for it. Most jobs have a standby coordinator."""
    nodes, standbys = max(3, options.nodes), (1, 1, 2, 0)[options.seed % 4]
    return replace(
        options, nodes=nodes, standbys=standbys, spares=max(2, options.spares), budget=0.0, calm_s=60.0,
        ends_at=3 + options.seed % 6, end_s=25.0,
    )  # fmt: skip


MACHINE_KINDS = {"node", "power", "reboot", "pause", "pair", "newcomer", "cut_off", "join", "spare", "drain", "leave"}
LINK_KINDS = {"reset", "node_cut", "node_half_cut", "peers_cut"}
SHRINK_KINDS = SIZE_KINDS | MACHINE_KINDS | LINK_KINDS | {"trainer", "hang", "alarm", "damage", "coordinator"}
ENDING_KINDS = frozenset({"node", "pause", "coordinator", "coordinator_machine", "coordinator_cut", "node_cut"})
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
    Profile(name="damage", kinds=frozenset({"damage", "trainer", "alarm", "node"}), intensity=3.0, shape=_damage),
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
    Profile(
        name="leases",
        kinds=frozenset({"lease", "node", "join"}),
        intensity=4.0,
        shape=lambda options: replace(options, spares=max(2, options.spares), budget=0.0),
    ),
    Profile(name="births", kinds=frozenset({"node_cut", "newcomer"}), intensity=10.0, shape=_births),
    Profile(name="long_loads", kinds=frozenset({"node", "trainer", "alarm"}), intensity=4.0, shape=_long_loads),
    Profile(name="durable", kinds=frozenset({"pair", "node", "trainer", "join"}), intensity=3.0, shape=_durable),
    Profile(
        name="illness",
        kinds=frozenset({"ill", "false_alarm", "flap", "epidemic", "node", "join"}),
        intensity=6.0,
        shape=_illness,
    ),
    Profile(
        name="memory",
        kinds=frozenset({"state_grows", "memory_eaten", "ill", "node", "trainer", "coordinator", "join", "scheme"}),
        intensity=3.0,
        shape=_memory,
    ),
    Profile(name="shrink", kinds=SHRINK_KINDS, intensity=0.7, shape=_shrink),
    Profile(
        name="corruption",
        kinds=frozenset(
            {"errs_once", "errs_always", "errs_at_random", "node", "trainer", "drain", "coordinator", "join"}
        ),
        intensity=1.5,
        shape=_corruption,
    ),
    Profile(
        name="step_audits",
        kinds=AUDIT_KINDS | {"node", "trainer", "coordinator", "join"},
        intensity=1.5,
        shape=_step_audits,
    ),
    Profile(
        name="judges",
        kinds=AUDIT_KINDS | LASTING_KINDS | {"node", "trainer", "spare", "coordinator", "join"},
        intensity=1.5,
        shape=_judges,
    ),
    Profile(name="coded", shape=_coded),
    Profile(
        name="coded_pairs",
        kinds=frozenset({"node", "pair", "newcomer", "trainer", "damage", "drain", "join"}),
        intensity=3.0,
        shape=_coded_pairs,
    ),
    Profile(name="intervals", kinds=frozenset({"node", "trainer"}), intensity=0.5, shape=_intervals),
    Profile(
        name="ending",
        kinds=ENDING_KINDS,
        intensity=4.0,
        shape=_ending,
        triggers=(TIME, "fence", "planned", *("finished",) * 6, *("took_over",) * 2),
    ),
)
BY_NAME = {profile.name: profile for profile in PROFILES}
