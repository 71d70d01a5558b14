"""Jobs on a real cluster, through all that happens there. Their losses stay those of torchrun, to the bit.

One job goes through several situations, because each start takes minutes on a small machine. Each prints how long
things took; docs/howto/kubernetes.md has the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kube_cluster import Cluster
from kube_image import IMAGE
from kube_job import FAILED, NODES, KubeJob, now

from deadpool.clusters.kubernetes.job_objects import NAMESPACE, OPERATOR, custom_resource, operator_objects
from deadpool.demo.trial import Results

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(2400)]
LOST = "deadpool.dev/lost"


@pytest.fixture
def job(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[KubeJob]:
    made = KubeJob(cluster, "trial")
    yield made
    if request.node.stash.get(FAILED, True):
        print(diagnosis(made))
    made.remove()
    mend(cluster)


def mend(cluster: Cluster) -> None:
    """Machines that died are started again, and all may get pods."""
    cluster.ask("revive")
    for node in (each["metadata"]["name"] for each in cluster.items("nodes")):
        cluster.kubectl("uncordon", node)
        cluster.kubectl("taint", "node", node, "deadpool.dev/drain-", check=False)
    cluster.await_true(lambda: len(cluster.ready_nodes()) == 5, "all nodes", 180)


def diagnosis(job: KubeJob) -> str:
    """What a person would look at first."""
    parts = [job.cluster.kubectl("get", "pods,nodes", "-o", "wide", check=False)]
    for pod in [*job.pods("coordinator"), *job.pods("agent")]:
        name = pod["metadata"]["name"]
        parts.append(f"== {name}\n" + job.cluster.kubectl("logs", "--tail=30", name, check=False))
    return "\n".join(parts)


def report(what: str, **times: float) -> None:
    print(f"\nTIMES {what}: " + ", ".join(f"{name} {value:.1f} s" for name, value in times.items()), flush=True)


def finish(job: KubeJob) -> None:
    steps = job.assert_as_torchrun(job.finish())
    print(f"bit-identical to torchrun: {steps} steps of {NODES} ranks", flush=True)


# --- situations -------------------------------------------------------------------------------------------------------


def kill_node(job: KubeJob) -> None:
    """Without the operator: Kubernetes itself finds out, and replaces the pod."""
    victim = job.seats()[1]
    machine = job.machine_of(victim)
    hit_at = now()
    job.cluster.ask("kill", machine)
    resumed = job.await_resumed(hit_at)
    job.await_warm(without=victim)
    report("node killed", resumed=resumed, warm_spare=now() - hit_at)
    assert victim not in job.seats()
    mend(job.cluster)


def delete_pod(job: KubeJob) -> None:
    victim, before = job.seats()[1], redone(job)
    hit_at = now()
    job.cluster.kubectl("delete", "pod", victim, "--wait=false")
    resumed = job.await_resumed(hit_at)
    job.cluster.await_true(lambda: victim not in names(job), "the end of the pod", 150)
    gone = now() - hit_at
    job.await_warm(without=victim)
    report("pod deleted", resumed=resumed, gone=gone, warm_spare=now() - hit_at)
    assert redone(job) == before and victim not in job.seats()


def drain_node(job: KubeJob) -> None:
    """As an administrator does. Pods that do not belong to the job, and coordinators, are evicted too."""
    victim, before = job.seats()[1], redone(job)
    machine, hit_at = job.machine_of(victim), now()
    job.cluster.kubectl("drain", machine, "--ignore-daemonsets", "--delete-emptydir-data", "--force", timeout_s=300)
    drained = now() - hit_at
    resumed = job.await_resumed(hit_at)
    job.await_warm(without=victim)
    report("node drained with kubectl drain", resumed=resumed, drained=drained, warm_spare=now() - hit_at)
    assert redone(job) == before
    assert all(job.machine_of(name) != machine for name in names(job))
    mend(job.cluster)


def delete_coordinator(job: KubeJob) -> None:
    leader, before = leading(job), redone(job)
    hit_at = now()
    job.cluster.kubectl("delete", "pod", leader["name"], "--wait=false")
    job.await_steps(5)
    led = job.cluster.await_true(lambda: leads_elsewhere(job, leader["uid"]), "another leader", 120)
    new = job.cluster.await_true(lambda: len(running_coordinators(job, leader["uid"])) == 2, "a new pod", 120)
    report("coordinator pod deleted", other_leads_at_most=led, new_pod_after_that=new, in_all=now() - hit_at)
    assert redone(job) == before


def take_api_server_away(job: KubeJob) -> None:
    """For a minute. Training goes on, also through the loss of a node in the meantime."""
    victim = job.seats()[1]
    machine = job.machine_of(victim)
    away = now()
    job.cluster.ask("stop-process", "api")
    before = job.step()
    job.await_steps(10)
    hit_at = now()
    job.cluster.ask("kill", machine)
    healed = job.await_steps(10)
    job.cluster.await_true(lambda: now() - away > 60, "the end of a minute", 70)
    without = job.step() - before
    job.cluster.ask("start-process", "api")
    back = now() - away
    job.await_warm(without=victim)
    report("API server away", away=back, ten_steps_after_loss=healed, warm_spare=now() - hit_at)
    print(f"{without} steps without the API server")
    mend(job.cluster)


def kill_node_under_operator(job: KubeJob) -> None:
    victim = job.seats()[1]
    machine = job.machine_of(victim)
    job.cluster.await_true(lambda: joined(job, victim), "the operator's mark of the pod", 60)
    known = set(names(job))
    hit_at = now()
    job.cluster.ask("kill", machine)
    job.cluster.await_true(lambda: bool(running(job) - known), "a replacement", 180)
    replaced = now() - hit_at
    resumed = job.await_resumed(hit_at)
    job.await_warm(without=victim)
    report("node killed, with operator", resumed=resumed, replacement_runs=replaced, warm_spare=now() - hit_at)
    print(job.cluster.kubectl("get", "deadpooljobs"))
    assert victim in shown(job)["lastFault"]
    assert LOST in json.dumps(taints(job.cluster, machine))
    mend(job.cluster)
    job.cluster.await_true(lambda: LOST not in json.dumps(taints(job.cluster, machine)), "no taint", 90)


def restart_operator_in_mid_recovery(job: KubeJob) -> None:
    victim = job.seats()[1]
    machine = job.machine_of(victim)
    job.cluster.await_true(lambda: joined(job, victim), "the operator's mark of the pod", 60)
    known = set(names(job))
    hit_at = now()
    job.cluster.ask("kill", machine)
    force = ("--grace-period=0", "--force", "--wait=false")
    job.cluster.kubectl("-n", NAMESPACE, "delete", "pods", "--all", *force)
    restarted = now() - hit_at
    job.cluster.await_true(lambda: bool(running(job) - known), "a replacement", 240)
    replaced = now() - hit_at
    resumed = job.await_resumed(hit_at)
    job.await_warm(without=victim)
    times = {"operator_killed": restarted, "replacement_runs": replaced, "warm_spare": now() - hit_at}
    report("operator restarted in mid-recovery", resumed=resumed, **times)
    mend(job.cluster)


def announce_end_of_machine(job: KubeJob) -> None:
    victim, before = job.seats()[1], redone(job)
    machine, hit_at = job.machine_of(victim), now()
    job.cluster.kubectl("taint", "node", machine, "deadpool.dev/drain=spot:NoSchedule")
    resumed = job.await_resumed(hit_at)
    job.await_warm(without=victim)
    report("end of a machine announced by a taint", resumed=resumed, warm_spare=now() - hit_at)
    assert redone(job) == before and victim not in job.seats()
    job.cluster.kubectl("taint", "node", machine, "deadpool.dev/drain-")


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_job_of_the_command_survives_what_happens_to_it(job: KubeJob) -> None:
    began = now()
    job.start_by_command()
    job.await_training()
    report("start", warm_spare=now() - began)
    for situation in (kill_node, delete_pod, drain_node, delete_coordinator, take_api_server_away):
        situation(job)
    finish(job)


def test_job_that_fails_is_a_job_that_failed(job: KubeJob) -> None:
    job.start_by_command(script="raise SystemExit('no data')", program=[])
    for index in range(2):
        wait = ["wait", "--for=condition=failed", f"job/{job.name}-coordinator-{index}", "--timeout=300s"]
        job.cluster.kubectl(*wait, timeout_s=310)
    state = json.loads(job.cluster.kubectl("get", "configmap", f"{job.name}-state", "-o", "json"))
    assert state["data"]["outcome"] == "failed" and "no data" in state["data"]["reason"]
    job.cluster.await_true(lambda: not job.pods("agent"), "no agents", 150)


@pytest.fixture
def operator(cluster: Cluster) -> Iterator[Cluster]:
    for content in operator_objects(IMAGE):
        cluster.kubectl("apply", "-f", "-", text=json.dumps(content))
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{OPERATOR}", timeout_s=180)
    yield cluster
    print(cluster.kubectl("-n", NAMESPACE, "logs", f"deployment/{OPERATOR}", "--tail=40", check=False))
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", check=False)
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", OPERATOR, check=False)
    cluster.kubectl("delete", "pods", "-n", NAMESPACE, "--all", "--grace-period=0", "--force", check=False)
    cluster.await_true(lambda: not cluster.kubectl("get", "ns", NAMESPACE, "--ignore-not-found"), "no namespace", 120)


def test_job_of_the_operator_survives_what_happens_to_it(operator: Cluster, job: KubeJob) -> None:
    job.start_by_operator()
    job.await_training()
    assert shown(job)["phase"] == "Running"
    for situation in (kill_node_under_operator, restart_operator_in_mid_recovery, announce_end_of_machine):
        situation(job)
    change = json.dumps({"spec": {"spares": 2}})
    job.cluster.kubectl("patch", "deadpooljob", job.name, "--type=merge", "-p", change)
    job.cluster.await_true(lambda: job.ready_agents() == NODES + 2, "a second spare", 180)
    change = json.dumps({"spec": {"port": 29500}})
    job.cluster.kubectl("patch", "deadpooljob", job.name, "--type=merge", "-p", change)
    job.cluster.await_true(lambda: "without effect: port" in shown(job)["reason"], "a word on the change", 60)
    finish(job)
    job.cluster.await_true(lambda: shown(job)["phase"] == "Completed", "phase Completed", 60)
    job.cluster.kubectl("delete", "deadpooljob", job.name)
    own = f"deadpool.dev/job={job.name}"
    kinds = "deployments,jobs,pods,services,configmaps,secrets,roles,rolebindings,pdb"
    job.cluster.await_true(lambda: not job.cluster.items(kinds, "-l", own), "no objects of the job", 90)


def test_spec_that_cannot_work_is_shown_as_such(operator: Cluster, job: KubeJob) -> None:
    content = custom_resource(job.name, job.fields() | {"settings": {"holders": 9}})
    job.cluster.kubectl("apply", "-f", "-", text=json.dumps(content))
    job.cluster.await_true(lambda: shown(job).get("phase") == "Invalid", "phase Invalid", 60)
    assert "holders=9" in shown(job)["reason"]


# --- what tests ask ---------------------------------------------------------------------------------------------------


def names(job: KubeJob) -> list[str]:
    return [pod["metadata"]["name"] for pod in job.pods("agent")]


def running(job: KubeJob) -> set[str]:
    pods = job.pods("agent")
    return {pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"}


def running_coordinators(job: KubeJob, without: str) -> list[str]:
    pods = [pod for pod in job.pods("coordinator") if pod["metadata"]["uid"] != without]
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]


def leading(job: KubeJob) -> dict[str, Any]:
    """The metadata of the pod whose coordinator leads."""
    command = ["deadpool", "status", "/run/deadpool/run", "--json"]
    for pod in job.pods("coordinator"):
        own: dict[str, Any] = pod["metadata"]
        if job.cluster.kubectl("exec", own["name"], "--", *command, check=False).startswith("{"):
            return own
    return {}


def leads_elsewhere(job: KubeJob, uid: str) -> bool:
    return leading(job).get("uid", uid) != uid


def joined(job: KubeJob, pod: str) -> bool:
    found = json.loads(job.cluster.kubectl("get", "pod", pod, "-o", "json"))
    return "deadpool.dev/joined" in found["metadata"].get("annotations", {})


def taints(cluster: Cluster, machine: str) -> list[Any]:
    found: list[Any] = json.loads(cluster.kubectl("get", "node", machine, "-o", "json"))["spec"].get("taints", [])
    return found


def shown(job: KubeJob) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job.cluster.kubectl("get", "deadpooljob", job.name, "-o", "json"))
    return dict(found.get("status", {}))


def redone(job: KubeJob) -> int:
    return Results.read(job.out).steps_done_again()
