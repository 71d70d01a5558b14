"""docs/howto/kubernetes.md: its table is that of the code, and its commands work as they stand."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import pytest
from kube_cluster import ROOT, Cluster

from deadpool.clusters.kubernetes.spec import JobSpec

HOWTO = ROOT / "docs/howto/kubernetes.md"
ELSEWHERE = ("docker ", "helm ")
"""Programs that there are not here. The image is the testbed's own, of the same name."""
OLD_SERVER = ("deadpool kubernetes manifest --name", "deadpool kubernetes manifest --server-version 1.20 --name")
"""The testbed's API server is older than 1.21, as the page says what to do about."""


def blocks() -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", HOWTO.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for language, block in found if not language and not block.startswith(ELSEWHERE)]


def test_fields_of_a_job_are_all_there() -> None:
    default, text = JobSpec(), HOWTO.read_text(encoding="utf-8")
    for field in dataclasses.fields(JobSpec):
        row = f"| `{field.name}` | `{json.dumps(getattr(default, field.name))}` | {field.metadata['help']} |"
        assert row in text


def test_there_are_commands_to_follow() -> None:
    assert len(blocks()) == 6
    assert all(block.startswith(("kubectl ", "deadpool ")) for block in blocks())


@pytest.mark.kubernetes
@pytest.mark.timeout(900)
def test_commands_of_the_page_work_as_they_stand(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "train.py").write_text(tutorial_script())
    printed = ""
    try:
        for block in blocks():
            printed += run(cluster, tmp_path, block.replace(*OLD_SERVER))
            if "kubectl delete pod " in block:
                assert "drain-1" in await_story(cluster, tmp_path)
    finally:
        print(printed)
        clean_up(cluster)
    assert "running at step" in printed and "job.batch/train-coordinator-0 condition met" in printed
    assert "deadpooljob.deadpool.dev/second created" in printed


def tutorial_script() -> str:
    tutorial = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    return str(re.findall(r"^```python\n(.*?)^```", tutorial, re.MULTILINE | re.DOTALL)[0])


def run(cluster: Cluster, folder: Path, block: str) -> str:
    done = subprocess.run(
        cluster.inside("bash", "-euxo", "pipefail", "-c", block),
        cwd=folder,
        env=cluster.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=650,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}"
    return done.stdout


def await_story(cluster: Cluster, folder: Path) -> str:
    """A drain takes a moment; the page's own command is asked again."""
    command = "kubectl exec job/train-coordinator-0 -- deadpool show story /run/deadpool/run"
    cluster.await_true(lambda: "drain-1" in run(cluster, folder, command), "the drain in the story", 60)
    return run(cluster, folder, command)


def clean_up(cluster: Cluster) -> None:
    for job in ("train", "second"):
        cluster.kubectl("delete", "deadpooljob", job, "--ignore-not-found", check=False)
        kinds = "deployments,jobs,services,configmaps,secrets,serviceaccounts,roles,rolebindings,pdb,netpol"
        cluster.kubectl("delete", kinds, "-l", f"deadpool.dev/job={job}", "--wait=false", check=False)
        cluster.kubectl("delete", "pods", "-l", f"deadpool.dev/job={job}", "--grace-period=0", "--force", check=False)
    cluster.kubectl("delete", "namespace", "deadpool-system", "--ignore-not-found", timeout_s=120, check=False)
