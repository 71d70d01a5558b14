"""A training job on the testbed: started by the command or by the operator, watched, and compared with torchrun."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import ROOT, Cluster
from kube_image import IMAGE

from deadpool.demo.trial import Results, differences
from deadpool_lab.chaos.plan import PACE_VARIABLE

SCRIPT = ROOT / "lab/deadpool_lab/chaos/script.py"
SIZE = [
    "--layers",
    "2",
    "--width",
    "64",
    "--sequence",
    "32",
    "--vocabulary",
    "256",
    "--dropout",
    "0.1",
    "--clip",
    "1.0",
]
NODES, SPARES = 3, 1
FAILED: pytest.StashKey[bool] = pytest.StashKey()
"""Set once a test has run: whether its job should be looked at before it is removed."""
_PACE_S = "0.25"


@dataclass(slots=True)
class KubeJob:
    cluster: Cluster
    name: str
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        """Pods write their results into the folder, as another user."""
        self.folder = Path(tempfile.mkdtemp(prefix="kube-job-", dir="/tmp"))
        self.folder.chmod(0o777)
        self.out.mkdir()
        self.out.chmod(0o777)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def fields(self) -> dict[str, Any]:
        return {
            "image": IMAGE,
            "program": self._program(self.out),
            "nodes": NODES,
            "spares": SPARES,
            "settings": {"node_timeout_s": 8, "overhead_budget": 0},
            "sharedMemory": "256Mi",
            "graceSeconds": 120,
            "evictAfterSeconds": 2,
            "env": [{"name": PACE_VARIABLE, "value": _PACE_S}],
            "volumes": [{"name": "results", "hostPath": {"path": str(self.folder)}}],
            "volumeMounts": [{"name": "results", "mountPath": str(self.folder)}],
        }

    def _program(self, out: Path) -> list[str]:
        """The learning rate depends on --steps, so all runs have the same; the file says where to stop."""
        files = ["--out", str(out), "--stop", str(self.folder / "stop")]
        return [str(SCRIPT), *files, "--layout", "fsdp2", "--steps", "1000000", *SIZE]

    def start_by_command(self, **changed: Any) -> None:
        values = self.folder / "values.yaml"
        values.write_text(json.dumps(self.fields() | changed))
        command = ["deadpool", "kubernetes", "manifest", "--name", self.name, "--values", str(values)]
        manifest = self.cluster.run(*command, "--server-version", "1.20")
        self.cluster.kubectl("apply", "-f", "-", text=manifest)

    def start_by_operator(self) -> None:
        values = self.folder / "values.yaml"
        values.write_text(json.dumps(self.fields()))
        command = ["deadpool", "kubernetes", "manifest", "--name", self.name, "--values", str(values)]
        self.cluster.kubectl("apply", "-f", "-", text=self.cluster.run(*command, "--custom-resource"))

    def remove(self) -> None:
        """Also what is on machines that died: nothing waits for their kubelets."""
        own = f"deadpool.dev/job={self.name}"
        kinds = "deployments,jobs,services,configmaps,secrets,serviceaccounts,roles,rolebindings,pdb,netpol"
        self.cluster.kubectl("delete", "deadpooljobs", self.name, "--ignore-not-found", check=False)
        self.cluster.kubectl("delete", kinds, "-l", own, "--wait=false", check=False)
        self.cluster.kubectl("delete", "pods", "-l", own, "--grace-period=0", "--force", check=False, timeout_s=120)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- what can be seen ---------------------------------------------------------------------------------------------

    def pods(self, role: str) -> list[dict[str, Any]]:
        return self.cluster.items("pods", "-l", f"deadpool.dev/job={self.name},deadpool.dev/role={role}")

    def events(self) -> list[dict[str, Any]]:
        """Of all coordinators that are there."""
        found = []
        for pod in self.pods("coordinator"):
            name = pod["metadata"]["name"]
            text = self.cluster.kubectl("exec", name, "--", "cat", "/run/deadpool/run/events.jsonl", check=False)
            found += [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        return sorted(found, key=lambda event: event["t"])

    def status(self) -> dict[str, Any]:
        """Of the coordinator that leads. Empty: none does at this moment."""
        command = ["deadpool", "status", "/run/deadpool/run", "--json"]
        for pod in self.pods("coordinator"):
            text = self.cluster.kubectl("exec", pod["metadata"]["name"], "--", *command, check=False)
            if text.startswith("{"):
                return dict(json.loads(text))
        return {}

    def seats(self) -> list[str]:
        """The pods that train, by position."""
        self.cluster.await_true(lambda: self.status().get("phase") == "running", "a running job", 60)
        active = [node for node in self.status()["nodes"] if node["role"] == "active"]
        return [node["node"] for node in sorted(active, key=lambda node: node["position"])]

    def machine_of(self, pod: str) -> str:
        found = json.loads(self.cluster.kubectl("get", "pod", pod, "-o", "json"))
        return str(found["spec"]["nodeName"])

    def step(self) -> int:
        return Results.read(self.out).newest_step()

    def ready_agents(self, without: str = "") -> int:
        """Of a machine that died the API server believes for a while that its pods are ready: `without` names one."""
        return sum(_is_ready(pod) and pod["metadata"]["name"] != without for pod in self.pods("agent"))

    # --- waiting, always bounded --------------------------------------------------------------------------------------

    def await_training(self, limit_s: float = 240.0) -> None:
        """All ranks train, and the spare is warm."""
        self.cluster.await_true(lambda: self.step() >= 5, f"step 5 of job {self.name}", limit_s)
        self.await_warm(limit_s)

    def await_warm(self, limit_s: float = 240.0, *, without: str = "") -> float:
        wanted = NODES + SPARES
        return self.cluster.await_true(lambda: self.ready_agents(without) >= wanted, "a warm spare", limit_s)

    def await_steps(self, count: int, limit_s: float = 120.0) -> float:
        """So many more than now."""
        wanted = self.step() + count
        return self.cluster.await_true(lambda: self.step() >= wanted, f"step {wanted}", limit_s)

    def await_resumed(self, since: float, limit_s: float = 180.0) -> float:
        """Until every rank has made a step after a recovery or drain that began after `since`. Returns the seconds."""

        def resumed() -> list[float]:
            return [event["t"] for event in self.events() if event["what"] == "resumed" and event["t"] > since]

        self.cluster.await_true(lambda: len(resumed()) >= NODES, "resumed training", limit_s)
        return max(resumed()) - since

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self, limit_s: float = 120.0) -> Results:
        """Has the script end a few steps from now. All pods of agents go, and the Jobs of the coordinators complete."""
        (self.folder / "stop").write_text(str(self.step() + 12))
        self.cluster.await_true(lambda: len(self._completed()) == 2, "completed Jobs", limit_s)
        self.cluster.await_true(lambda: not self.pods("agent"), "agents that are gone", limit_s)
        return Results.read(self.out)

    def _completed(self) -> list[str]:
        jobs = self.cluster.items("jobs", "-l", f"deadpool.dev/job={self.name}")
        return [each["metadata"]["name"] for each in jobs if each["status"].get("succeeded")]

    def assert_as_torchrun(self, results: Results) -> int:
        """Bit for bit: all losses of all ranks, and the final state. Returns the number of steps."""
        steps = int((self.folder / "stop").read_text())
        out = self.folder / "torchrun"
        command = ["python", "-m", "torch.distributed.run", "--nproc-per-node", str(NODES)]
        variables = self.cluster.environment() | {"OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *self._program(out)], env=variables, check=True, capture_output=True, timeout=240)
        reference = Results.read(out)
        assert differences(reference, results) == []
        assert results.newest_step() == steps - 1 and len(results.digests) == NODES
        return steps


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def now() -> float:
    return time.time()
