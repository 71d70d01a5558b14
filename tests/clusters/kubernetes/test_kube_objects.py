"""The objects of a job are valid for current Kubernetes, and say what a job needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import BINARIES

from deadpool.clusters.kubernetes.charts import as_yaml, files, for_server, read_values
from deadpool.clusters.kubernetes.job_objects import custom_resource, definition, objects, operator_objects
from deadpool.clusters.kubernetes.spec import checked_name, job_spec
from deadpool.errors import ConfigError

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).resolve().parents[3] / "deploy/kubernetes"
FILE_OF = {"base": "job.yaml", "operator": "operator.yaml"}
VERSIONS = ("1.31", kubernetes_validate.latest_version())
PLAIN: dict[str, Any] = {"image": "registry/train:1", "program": ["train.py", "--lr", "1e-4"], "nodes": 3, "spares": 1}
FULL: dict[str, Any] = {
    "image": "registry/train@sha256:0",
    "script": "import deadpool\n\nprint('a: b')\n",
    "program": ["--steps", "10", "", "a b", "'", "{{ x }}"],
    "nodes": 16,
    "spares": 2,
    "nprocPerNode": 8,
    "settings": {"node_timeout_s": 10, "replace_stragglers": True, "overhead_budget": 0.001, "tls": "ephemeral"},
    "resources": {"limits": {"nvidia.com/gpu": 8, "memory": "1Ti"}, "requests": {"cpu": "64"}},
    "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    "nodeSelector": {"gpu": "h200"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClassName": "training",
    "secretName": "my-secret",
    "onePerMachine": False,
    "port": 31000,
}
ONE_COORDINATOR: dict[str, Any] = PLAIN | {"nodes": 2, "spares": 0}


def made(fields: dict[str, Any], job: str = "train") -> list[dict[str, Any]]:
    return objects(job, job_spec(fields))


def of_kind(kind: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in made(fields) if each["kind"] == kind]


def pod_of(content: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = content["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fields", [PLAIN, FULL, ONE_COORDINATOR], ids=["plain", "full", "one coordinator"])
def test_objects_are_valid_to_the_last_field(fields: dict[str, Any], version: str) -> None:
    for content in made(fields):
        kubernetes_validate.validate(content, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_operator_is_valid_to_the_last_field(version: str) -> None:
    for content in operator_objects("registry/deadpool:1"):
        kubernetes_validate.validate(content, version, strict=True)


def test_a_field_that_does_not_exist_would_be_found() -> None:
    content = made(PLAIN)[-1]
    content["spec"]["template"]["spec"]["hostnam"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(content, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", sorted(files()))
def test_files_in_deploy_are_those_that_are_made(name: str) -> None:
    assert (DEPLOY / name).read_text(encoding="utf-8") == files()[name], (
        "run deadpool kubernetes deploy deploy/kubernetes"
    )


def test_deploy_has_no_other_files() -> None:
    found = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    assert found == set(files())


@pytest.mark.skipif(not (BINARIES / "kubectl").exists(), reason="needs kubectl: scripts/testbed kubernetes build")
@pytest.mark.parametrize("name", ["base", "operator"])
def test_kustomize_takes_what_is_in_deploy(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(DEPLOY / name, folder)
    (folder / "secret").write_text("0123456789abcdef")
    command = [BINARIES / "kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    read = {(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(done.stdout)}
    written = list(yaml.safe_load_all((DEPLOY / name / FILE_OF[name]).read_text(encoding="utf-8")))
    expected = {(each["kind"], each["metadata"]["name"]) for each in written}
    assert read == expected | ({("Secret", "train-secret")} if name == "base" else set())


@pytest.mark.parametrize("fields", [PLAIN, FULL])
def test_yaml_reads_as_what_was_written(fields: dict[str, Any]) -> None:
    content = made(fields)
    assert list(yaml.safe_load_all(as_yaml(content))) == content


@pytest.mark.parametrize("fields", [PLAIN, FULL])
def test_no_process_is_root_or_writes_to_its_image(fields: dict[str, Any]) -> None:
    pods = [pod_of(each) for each in made(fields) if each["kind"] in ("Deployment", "Job")]
    assert len(pods) == 3
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] != 0
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        secret = next(each for each in pod["volumes"] if each["name"] == "secret")
        assert secret["secret"]["defaultMode"] == 0o400


def test_secret_is_new_for_each_job_and_long_enough() -> None:
    secrets = {of_kind("Secret", PLAIN)[0]["stringData"]["secret"] for _ in range(2)}
    assert len(secrets) == 2 and all(len(each) == 64 for each in secrets)
    assert of_kind("Secret", FULL) == []


def test_agents_have_no_rights_and_coordinators_only_three() -> None:
    (agents,) = of_kind("Deployment", PLAIN)
    assert pod_of(agents)["automountServiceAccountToken"] is False
    (role,) = of_kind("Role", PLAIN)
    assert [(rule["resources"], rule["resourceNames"], rule["verbs"]) for rule in role["rules"]] == [
        (["configmaps"], ["train-state"], ["get", "patch"]),
        (["deployments/scale"], ["train-agents"], ["get", "patch"]),
        (["jobs"], ["train-coordinator-0", "train-coordinator-1"], ["patch"]),
    ]


def test_coordinators_lie_on_different_machines_and_know_each_other() -> None:
    jobs = of_kind("Job", PLAIN)
    addresses = "--coordinators=train-coordinator-0.train:29400,train-coordinator-1.train:29400"
    for index, job in enumerate(jobs):
        pod = pod_of(job)
        assert addresses in pod["containers"][0]["args"]
        assert (pod["hostname"], pod["subdomain"]) == (f"train-coordinator-{index}", "train")
        (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
    assert len(jobs) == 2 and len(of_kind("Job", ONE_COORDINATOR)) == 1


def test_spares_are_pods_more() -> None:
    assert of_kind("Deployment", FULL)[0]["spec"]["replicas"] == 18


def test_settings_become_variables_of_all_pods() -> None:
    for content in [*of_kind("Deployment", FULL), *of_kind("Job", FULL)]:
        values = {each["name"]: each.get("value") for each in pod_of(content)["containers"][0]["env"]}
        assert values["DEADPOOL_REPLACE_STRAGGLERS"] == "true" and values["DEADPOOL_NODE_TIMEOUT_S"] == "10"
        assert values["NCCL_DEBUG"] == "WARN"


def test_old_server_gets_its_version_of_a_budget() -> None:
    old = {each["apiVersion"] for each in for_server(made(PLAIN), "v1.20.2") if each["kind"] == "PodDisruptionBudget"}
    assert old == {"policy/v1beta1"}
    assert for_server(made(FULL), "1.21") == made(FULL)


def test_custom_resource_takes_every_field() -> None:
    spec = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert set(FULL) | set(PLAIN) <= set(spec["properties"])
    assert custom_resource("train", PLAIN)["spec"] == PLAIN


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (PLAIN | {"node": 3}, "node is not a field"),
        (PLAIN | {"nodes": "3"}, "nodes='3'"),
        (PLAIN | {"nodes": True}, "nodes=True"),
        (PLAIN | {"nodes": 0}, "at least 1"),
        (PLAIN | {"image": ""}, "image=''"),
        (PLAIN | {"program": []}, "program"),
        (PLAIN | {"settings": {"nodes": 3}}, "settings.nodes"),
        (PLAIN | {"settings": {"holder": 3}}, "settings.holder is not a setting"),
        (PLAIN | {"settings": {"holders": 3}}, "holders=3"),
        (PLAIN | {"nodes": 2, "coordinators": 2}, "fewer than 3 nodes"),
        (PLAIN | {"runAsUser": 0}, "runAsUser=0"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        job_spec(fields)


@pytest.mark.parametrize("name", ["Train", "1train", "a_b", "x" * 46, "", "a.b", "-a", "a-"])
def test_name_that_no_pod_could_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name="):
        checked_name(name)


def test_values_that_are_no_mapping_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text("- a\n")
    with pytest.raises(ConfigError, match="YAML mapping"):
        read_values(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_values(tmp_path / "none.yaml")
