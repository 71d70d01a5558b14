"""Which machines park trainers for which jobs."""

from __future__ import annotations

from deadpool.protocol.effects import Emit
from deadpool.protocol.features.leases.pool.host import (
    AgentExited,
    Assigned,
    LeaseSeen,
    PoolHost,
    ReadySeen,
    StartAgent,
    StopAgent,
)
from deadpool.protocol.features.leases.pool.pool import (
    REFUSED_LATELY_S,
    FromHost,
    HostLost,
    JobAdded,
    JobRemoved,
    MachinePool,
    ToHost,
    WarnHost,
    assign,
)
from deadpool.protocol.messages import MachineState, PoolJob


def job(name: str, **more: int) -> PoolJob:
    return PoolJob(name=name, coordinators="c:1", secret_file="/s", script=("x.py",), folder="/", **more)  # type: ignore[arg-type]


def host(name: str, memory: int = 10, parked: str = "", leased_to: str = "", machine: str = "m0") -> MachineState:
    return MachineState(
        host=name, memory_bytes=memory, parked=tuple(parked), ready=(), leased_to=leased_to, machine=machine
    )


def test_every_machine_serves_every_job_where_memory_allows() -> None:
    assert assign([host("s0"), host("s1")], [job("a"), job("b")]) == {"s0": ("a", "b"), "s1": ("a", "b")}


def test_no_job_has_a_second_machine_before_all_have_one() -> None:
    jobs = [job("a", priority=2, memory_bytes=10), job("b", memory_bytes=10)]
    assert assign([host("s0"), host("s1")], jobs) == {"s0": ("a",), "s1": ("b",)}


def test_the_more_important_job_is_served_where_only_one_fits() -> None:
    jobs = [job("a", memory_bytes=10), job("b", priority=1, memory_bytes=10)]
    assert assign([host("s0")], jobs) == {"s0": ("b",)}


def test_jobs_stay_where_they_are_parked() -> None:
    jobs = [job("a", memory_bytes=10), job("b", memory_bytes=10)]
    assert assign([host("s0", parked="b"), host("s1", parked="a")], jobs) == {"s0": ("b",), "s1": ("a",)}


def test_limits() -> None:
    hosts = [host("s0"), host("s1"), host("s2", leased_to="a")]
    given = assign(hosts, [job("a", leased_most=1), job("b", parked_most=1)])
    assert given["s0"] == ("b",) and given["s1"] == ()


def test_a_leased_machine_is_told_what_to_do_when_it_is_free_again() -> None:
    """The pool may be dead by then."""
    assert assign([host("s0", leased_to="a")], [job("a"), job("b")]) == {"s0": ("a", "b")}


def test_pool_tells_only_what_has_changed() -> None:
    pool = MachinePool((job("a"),))
    told = [e for e in pool.step(FromHost(state=host("s0")), now=0.0) if isinstance(e, ToHost)]
    assert [each.name for each in told[0].message.jobs] == ["a"]
    assert not any(isinstance(e, ToHost) for e in pool.step(FromHost(state=host("s0", parked="a")), now=1.0))
    assert any(isinstance(e, ToHost) for e in pool.step(JobAdded(job=job("b")), now=2.0))
    assert any(isinstance(e, ToHost) for e in pool.step(JobRemoved(name="a"), now=3.0))


def test_a_second_machine_of_one_name_changes_nothing_and_is_told_of_once() -> None:
    pool = MachinePool((job("a"),))
    pool.step(FromHost(state=host("s0", machine="m0")), now=0.0)
    second = FromHost(state=host("s0", memory=99, machine="m1"))
    told = pool.step(second, now=1.0)
    assert [type(effect) for effect in told] == [Emit, WarnHost] and pool.hosts["s0"].machine == "m0"
    assert pool.step(second, now=2.0) == [] and len(pool.refused(2.0)) == 1
    assert pool.refused(2.0 + REFUSED_LATELY_S) == []
    pool.step(HostLost(host="s0", reason="closed"), now=3.0)
    pool.step(second, now=4.0)
    assert pool.hosts["s0"].machine == "m1" and pool.refused(4.0) == []


def test_a_machine_offers_itself_again_when_its_lease_ends() -> None:
    core = PoolHost("s0", memory_bytes=10)
    assert _names(core.step(Assigned(jobs=(job("a"), job("b"))), now=0.0)) == ["start a", "start b"]
    core.step(ReadySeen(jobs=frozenset("ab")), now=1.0)
    assert _names(core.step(LeaseSeen(job="a"), now=2.0)) == ["stop b"]
    assert _names(core.step(AgentExited(job="b", code=0), now=3.0)) == []
    assert _names(core.step(AgentExited(job="a", code=-9), now=60.0)) == []
    assert _names(core.step(LeaseSeen(job=""), now=61.0)) == ["start a", "start b"]


def test_an_agent_that_fails_again_and_again_is_started_ever_more_seldom() -> None:
    core = PoolHost("s0", memory_bytes=10)
    core.step(Assigned(jobs=(job("a"),)), now=0.0)
    now, pauses = 0.0, []
    for _ in range(5):
        core.step(AgentExited(job="a", code=1), now=now)
        pauses.append((core.deadline() or now) - now)
        now = core.deadline() or now
        assert _names(core.step(LeaseSeen(job=""), now=now)) == ["start a"]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0]


def _names(effects: list[object]) -> list[str]:
    found = []
    for effect in effects:
        match effect:
            case StartAgent(job=started):
                found.append(f"start {started.name}")
            case StopAgent(job=name):
                found.append(f"stop {name}")
    return found
