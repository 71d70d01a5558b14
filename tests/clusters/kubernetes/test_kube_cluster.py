"""Jobs on a real cluster, through what happens there: each survives, and its losses are those of torchrun to the bit.

Every test prints how long things took; docs/howto/kubernetes.md has the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kube_cluster import Cluster
from kube_image import IMAGE
from kube_job import FAILED, NODES, KubeJob, now

from deadpool.clusters.kubernetes.objects import OPERATOR
from deadpool.clusters.kubernetes.operator_objects import NAMESPACE, operator_objects

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]


@pytest.fixture
def whole_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Machines that died in a test are started again after it."""
    yield cluster
    ready = cluster.ready_nodes()
    for node in (each["metadata"]["name"] for each in cluster.items("nodes")):
        if node not in ready:
            cluster.ask("kill", node)
            cluster.ask("start", node)
        cluster.kubectl("uncordon", node)
        cluster.kubectl("taint", "node", node, "deadpool.dev/drain-", check=False)
    cluster.await_true(lambda: len(cluster.ready_nodes()) == 5, "all nodes", 120)


@pytest.fixture
def job(whole_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[KubeJob]:
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:40].strip("-")
    made = KubeJob(whole_cluster, name)
    yield made
    if request.node.stash.get(FAILED, True):
        print(diagnosis(made))
    made.remove()


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


def test_node_killed(job: KubeJob) -> None:
    """Without the operator: Kubernetes itself finds out, and replaces the pod."""
    job.start_by_command()
    began = now()
    job.await_training()
    started = now() - began
    victim = job.seats()[1]
    machine = job.machine_of(victim)
    hit_at = now()
    job.cluster.ask("kill", machine)
    resumed = job.await_resumed(hit_at)
    job.await_warm()
    report("node killed", start=started, resumed=resumed, warm_spare=now() - hit_at)
    assert victim not in job.seats()
    finish(job)


def test_pod_deleted(job: KubeJob) -> None:
    job.start_by_command()
    job.await_training()
    victim, hit_at = job.seats()[1], now()
    job.cluster.kubectl("delete", "pod", victim, "--wait=false")
    resumed = job.await_resumed(hit_at)
    job.cluster.await_true(lambda: victim not in names(job), "the end of the pod", 150)
    gone = now() - hit_at
    job.await_warm()
    report("pod deleted", resumed=resumed, gone=gone, warm_spare=now() - hit_at)
    assert redone(job) == 0
    finish(job)


def test_node_drained(job: KubeJob) -> None:
    job.start_by_command()
    job.await_training()
    victim, hit_at = job.seats()[1], now()
    machine = job.machine_of(victim)
    job.cluster.kubectl("drain", machine, "--ignore-daemonsets", "--delete-emptydir-data", timeout_s=300)
    drained = now() - hit_at
    resumed = job.await_resumed(hit_at)
    job.await_warm()
    report("node drained with kubectl drain", resumed=resumed, drained=drained, warm_spare=now() - hit_at)
    assert redone(job) == 0
    assert all(job.machine_of(name) != machine for name in names(job))
    finish(job)


def test_coordinator_pod_deleted(job: KubeJob) -> None:
    job.start_by_command()
    job.await_training()
    own = job.pods("coordinator")[0]["metadata"]
    assert own["name"].startswith(f"{job.name}-coordinator-0")
    hit_at = now()
    job.cluster.kubectl("delete", "pod", own["name"], "--wait=false")
    took_over = await_event(job, "took_over", hit_at)
    job.await_steps(5)
    new = job.cluster.await_true(lambda: len(running_coordinators(job, own["uid"])) == 2, "a new pod", 120)
    report("coordinator pod deleted", other_leads=took_over, new_pod=new)
    assert redone(job) == 0
    finish(job)


def test_api_server_away(job: KubeJob) -> None:
    """For a minute. Training goes on, also through the loss of a node in the meantime."""
    job.start_by_command()
    job.await_training()
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
    job.await_warm()
    report("API server away", away=back, ten_steps_after_loss=healed, warm_spare=now() - hit_at)
    print(f"{without} steps without the API server")
    finish(job)


@pytest.fixture
def operator(whole_cluster: Cluster) -> Iterator[Cluster]:
    for content in operator_objects(IMAGE):
        whole_cluster.kubectl("apply", "-f", "-", text=json.dumps(content))
    whole_cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{OPERATOR}", timeout_s=120)
    yield whole_cluster
    print(whole_cluster.kubectl("-n", NAMESPACE, "logs", f"deployment/{OPERATOR}", "--tail=30", check=False))
    whole_cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", check=False)
    whole_cluster.kubectl("delete", "clusterrole,clusterrolebinding", OPERATOR, check=False)
    whole_cluster.kubectl("delete", "pods", "-n", NAMESPACE, "--all", "--grace-period=0", "--force", check=False)
    whole_cluster.await_true(
        lambda: not whole_cluster.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"), "no namespace", 90
    )


def test_operator_replaces_lost_pod_at_once(operator: Cluster, job: KubeJob) -> None:
    job.start_by_operator()
    job.await_training()
    assert shown(job)["phase"] == "Running"
    victim = job.seats()[1]
    machine = job.machine_of(victim)
    known = set(names(job))
    hit_at = now()
    job.cluster.ask("kill", machine)
    replaced = job.cluster.await_true(lambda: bool(running(job) - known), "a replacement", 120)
    resumed = job.await_resumed(hit_at)
    job.await_warm()
    warm = now() - hit_at
    report("node killed, with operator", resumed=resumed, replacement_runs=replaced, warm_spare=warm)
    table = job.cluster.kubectl("get", "deadpooljobs")
    print(table)
    assert victim in shown(job)["lastFault"]
    assert "deadpool.dev/lost" in json.dumps(taints(job.cluster, machine))
    job.cluster.ask("start", machine)
    job.cluster.await_true(lambda: "deadpool.dev/lost" not in json.dumps(taints(job.cluster, machine)), "untainted", 90)
    finish(job)
    job.cluster.await_true(lambda: shown(job)["phase"] == "Completed", "phase Completed", 30)


def test_operator_restarted_in_mid_recovery(operator: Cluster, job: KubeJob) -> None:
    job.start_by_operator()
    job.await_training()
    victim = job.seats()[1]
    machine = job.machine_of(victim)
    job.cluster.await_true(lambda: joined(job, victim), "the operator's mark of the pod", 30)
    known = set(names(job))
    hit_at = now()
    job.cluster.ask("kill", machine)
    job.cluster.kubectl(
        "-n", NAMESPACE, "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false", timeout_s=60
    )
    restarted = now() - hit_at
    replaced = job.cluster.await_true(lambda: bool(running(job) - known), "a replacement", 180)
    resumed = job.await_resumed(hit_at)
    job.await_warm()
    report("operator restarted in mid-recovery", resumed=resumed, operator_deleted=restarted, replacement_runs=replaced)
    finish(job)
    job.cluster.await_true(lambda: shown(job)["phase"] == "Completed", "phase Completed", 30)


def test_operator_drains_machine_that_is_about_to_go_and_scales_spares(operator: Cluster, job: KubeJob) -> None:
    job.start_by_operator()
    job.await_training()
    victim = job.seats()[1]
    machine, hit_at = job.machine_of(victim), now()
    job.cluster.kubectl("taint", "node", machine, "deadpool.dev/drain=spot:NoSchedule")
    resumed = job.await_resumed(hit_at)
    job.await_warm()
    report("spot notice", resumed=resumed, warm_spare=now() - hit_at)
    assert redone(job) == 0 and victim not in job.seats()
    job.cluster.kubectl("taint", "node", machine, "deadpool.dev/drain-")
    change = json.dumps({"spec": {"spares": 2}})
    job.cluster.kubectl("patch", "deadpooljob", job.name, "--type=merge", "-p", change)
    job.cluster.await_true(lambda: job.ready_agents() == NODES + 2, "a second spare", 120)
    finish(job)
    job.cluster.kubectl("delete", "deadpooljob", job.name)
    own = f"deadpool.dev/job={job.name}"
    kinds = "deployments,jobs,pods,services,configmaps,secrets,roles,rolebindings,pdb"
    job.cluster.await_true(lambda: not job.cluster.items(kinds, "-l", own), "an empty namespace", 60)


def test_spec_that_cannot_work_is_shown_as_such(operator: Cluster, job: KubeJob) -> None:
    fields = job.fields() | {"settings": {"holders": 9}}
    content = {
        "apiVersion": "deadpool.dev/v1alpha1",
        "kind": "DeadPoolJob",
        "metadata": {"name": job.name},
        "spec": fields,
    }
    job.cluster.kubectl("apply", "-f", "-", text=json.dumps(content))
    job.cluster.await_true(lambda: shown(job).get("phase") == "Invalid", "phase Invalid", 30)
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


def joined(job: KubeJob, pod: str) -> bool:
    found = json.loads(job.cluster.kubectl("get", "pod", pod, "-o", "json"))
    return "deadpool.dev/joined" in found["metadata"].get("annotations", {})


def taints(cluster: Cluster, machine: str) -> list[Any]:
    found: list[Any] = json.loads(cluster.kubectl("get", "node", machine, "-o", "json"))["spec"].get("taints", [])
    return found


def shown(job: KubeJob) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job.cluster.kubectl("get", "deadpooljob", job.name, "-o", "json"))
    return dict(found.get("status", {}))


def await_event(job: KubeJob, what: str, since: float, limit_s: float = 120.0) -> float:
    def times() -> list[float]:
        return [event["t"] for event in job.events() if event["what"] == what and event["t"] > since]

    job.cluster.await_true(lambda: bool(times()), f"event {what}", limit_s)
    return min(times()) - since


def redone(job: KubeJob) -> int:
    from deadpool.workload.results import Results

    return Results.read(job.out).steps_done_again()
