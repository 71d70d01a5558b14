"""etcd, API server, controller manager, scheduler and DNS of the testbed, as children of the supervisor."""

from __future__ import annotations

import json
import os
import secrets
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from kube_dns import API

from deadpool.host.child_processes import end_with_parent

HUB, SERVICE = "10.78.0.1", API
"""The address of the hub, and that of the Service of the API server, which is the hub's too: so no proxy is needed."""
URL = f"https://{HUB}"
_ETCD = "http://127.0.0.1:2379"
_READY_S = 90.0
_ORDER = ("etcd", "api", "controllers", "scheduler", "dns")


class ControlPlane:
    def __init__(self, folder: Path, binaries: Path) -> None:
        self._folder, self._binaries = folder, binaries
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self._make_keys()
        self.start_process("etcd")
        self.start_process("api")
        self.await_api()
        for name in _ORDER[2:]:
            self.start_process(name)

    def start_process(self, name: str) -> None:
        with open(self._folder / f"{name}.log", "ab") as log:
            self._running[name] = subprocess.Popen(
                self._commands()[name],
                cwd=self._folder,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent(),
            )

    def stop_process(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for name in reversed(list(self._running)):
            self.stop_process(name)

    def await_api(self) -> None:
        token = (self._folder / "token").read_text()
        request = urllib.request.Request(f"{URL}/readyz", headers={"Authorization": f"Bearer {token}"})
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                with urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=5):
                    return
            except (OSError, urllib.error.HTTPError):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the API server is not ready, see {self._folder / 'api.log'}") from None
            time.sleep(0.2)

    def _commands(self) -> dict[str, list[str]]:
        binaries = self._binaries
        return {
            "etcd": [
                "etcd",
                f"--data-dir={self._folder}/etcd",
                f"--listen-client-urls={_ETCD}",
                f"--advertise-client-urls={_ETCD}",
                "--unsafe-no-fsync",
            ],
            "api": [
                f"{binaries}/kube-apiserver",
                f"--etcd-servers={_ETCD}",
                "--bind-address=0.0.0.0",
                f"--advertise-address={HUB}",
                "--secure-port=443",
                "--insecure-port=0",
                "--tls-cert-file=api.crt",
                "--tls-private-key-file=api.key",
                "--client-ca-file=ca.crt",
                "--token-auth-file=tokens.csv",
                "--authorization-mode=RBAC",
                "--service-account-key-file=accounts.pub",
                "--service-account-signing-key-file=accounts.key",
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--kubelet-preferred-address-types=InternalIP",
                "--allow-privileged",
            ],
            "controllers": [
                f"{binaries}/kube-controller-manager",
                "--kubeconfig=kubeconfig",
                "--port=0",
                "--service-account-private-key-file=accounts.key",
                "--root-ca-file=ca.crt",
                "--leader-elect=false",
                "--node-monitor-period=1s",
                "--node-monitor-grace-period=20s",
                "--node-eviction-rate=10",
            ],
            "scheduler": [f"{binaries}/kube-scheduler", "--kubeconfig=kubeconfig", "--leader-elect=false", "--port=0"],
            "dns": [sys.executable, str(Path(__file__).with_name("kube_dns.py")), HUB, URL, f"{self._folder}/token"],
        }

    def _make_keys(self) -> None:
        self._openssl("genrsa -out accounts.key 2048")
        self._openssl("rsa -in accounts.key -pubout -out accounts.pub")
        self._openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 30 -subj /CN=testbed")
        self._openssl("req -newkey rsa:2048 -nodes -keyout api.key -out api.csr -subj /CN=kube-apiserver")
        names = f"IP:127.0.0.1,IP:{SERVICE},IP:{HUB},DNS:kubernetes,DNS:kubernetes.default.svc"
        (self._folder / "names").write_text(f"subjectAltName={names}")
        self._openssl(
            "x509 -req -in api.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out api.crt -days 30 -extfile names"
        )
        token = secrets.token_hex(16)
        self._write("token", token)
        self._write("tokens.csv", f"{token},admin,admin,system:masters\n")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "t", "cluster": {"server": URL, "certificate-authority": f"{self._folder}/ca.crt"}}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "t", "context": {"cluster": "t", "user": "admin"}}],
            "current-context": "t",
        }
        self._write("kubeconfig", json.dumps(config))

    def _openssl(self, arguments: str) -> None:
        subprocess.run(["openssl", *arguments.split()], cwd=self._folder, check=True, capture_output=True, timeout=60)

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_text(text)
