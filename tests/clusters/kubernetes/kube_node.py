"""A node of the testbed: containerd and kubelet in net, pid, uts, mount and ipc namespaces of their own.

To kill its first process is the death of the machine: the kernel ends everything in it at once.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from pathlib import Path

from kube_control_plane import HUB
from kube_dns import DOMAIN
from kube_image import PAUSE, shared_folders

from deadpool.host.child_processes import end_with_parent

BRIDGE = "kube0"
_START_S = 30.0


class Node:
    def __init__(self, name: str, number: int, folder: Path, binaries: Path, images: list[Path], cgroup: str) -> None:
        self.name, self._number, self._cluster = name, number, folder
        self._folder, self._binaries, self._images, self._cgroup = folder / name, binaries, images, cgroup
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"10.78.0.{10 + number}"
        self.pods = f"10.244.{number}"

    def start(self, others: list[Node]) -> None:
        self._write_files(others)
        script = self._folder / "start.sh"
        command = [
            "unshare",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "bash",
            script,
        ]
        with open(self._folder / "console.log", "ab") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent(),
            )
        init = self._await_init()
        port = f"port{self._number}"
        subprocess.run(["ip", "link", "del", port], capture_output=True, timeout=10)  # that of the node before it died
        _ip(f"link add {port} type veth peer name eth0 netns {init}")
        _ip(f"link set {port} master {BRIDGE} up")
        _ip(f"route replace {self.pods}.0/24 via {self.address}")

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """The network first: a machine without power says no goodbye to its peers."""
        if self._process is not None:
            self.cut()
            self._process.kill()
            self._process.wait()
            self._process = None

    def cut(self) -> None:
        _ip(f"link set port{self._number} down")

    def mend(self) -> None:
        _ip(f"link set port{self._number} up")

    def _await_init(self) -> int:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        deadline = time.monotonic() + _START_S
        while not (found := children.read_text().split()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"node {self.name} does not start, see {self._folder / 'console.log'}")
            time.sleep(0.02)
        return int(found[0])

    def _write_files(self, others: list[Node]) -> None:
        for name in ("cni", "log", "lib", "kubelet"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / "containerd.sock").unlink(missing_ok=True)
        for name, value in (("one", "1\n"), ("ten", "10\n")):
            (self._folder / name).write_text(value)
        (self._folder / "containerd.toml").write_text(self._containerd())
        (self._folder / "container.json").write_text(json.dumps(_container_spec()))
        (self._folder / "kubelet.json").write_text(json.dumps(self._kubelet()))
        (self._folder / "cni/10-bridge.conflist").write_text(json.dumps(self._network()))
        (self._folder / "start.sh").write_text(self._start_script(others))

    def _start_script(self, others: list[Node]) -> str:
        folder, socket = self._folder, self._folder / "containerd.sock"
        routes = "\n".join(f"ip route add {each.pods}.0/24 via {each.address}" for each in others if each is not self)
        imports = "\n".join(
            f"ctr -a {socket} -n k8s.io images import {shlex.quote(str(each))}" for each in self._images
        )
        # Kubelets want some settings of the kernel that belong to the whole machine: they are shown what they want.
        return f"""
mount --bind {folder}/log /var/log
mkdir -p /var/lib/kubelet; mount --bind {folder}/kubelet /var/lib/kubelet
for file in vm/overcommit_memory kernel/panic_on_oops; do mount --bind {folder}/one /proc/sys/$file; done
mount --bind {folder}/ten /proc/sys/kernel/panic
hostname {self.name}; ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep .02; done
ip addr add {self.address}/24 dev eth0; ip link set eth0 up; ip route add default via {HUB}
echo 1 >/proc/sys/net/ipv4/ip_forward
{routes}
containerd --config {folder}/containerd.toml >{folder}/containerd.log 2>&1 &
until [ -S {socket} ]; do sleep .05; done
{imports}
{self._binaries}/kubelet --config={folder}/kubelet.json --kubeconfig={self._cluster}/kubeconfig \\
    --hostname-override={self.name} --node-ip={self.address} --container-runtime=remote \\
    --container-runtime-endpoint=unix://{socket} --root-dir={folder}/kubelet --cert-dir={folder}/pki \\
    --cgroup-root={self._cgroup} --pod-infra-container-image={PAUSE} >{folder}/kubelet.log 2>&1 &
wait
"""

    def _containerd(self) -> str:
        plugin = 'plugins."io.containerd.grpc.v1.cri"'
        unused = ("btrfs", "zfs", "devmapper", "aufs")
        disabled = ["io.containerd.internal.v1.opt", *(f"io.containerd.snapshotter.v1.{name}" for name in unused)]
        return f"""version = 2
root = "{self._folder}/containerd"
state = "{self._folder}/state"
oom_score = 0
disabled_plugins = {json.dumps(disabled)}
[grpc]
  address = "{self._folder}/containerd.sock"
[{plugin}]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [{plugin}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{self._folder}/cni"
  [{plugin}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [{plugin}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "{self._folder}/container.json"
"""

    def _network(self) -> dict[str, object]:
        ranges = {"ranges": [[{"subnet": f"{self.pods}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}
        ipam = {"type": "host-local", "dataDir": f"{self._folder}/ipam", **ranges}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": ipam}
        return {"cniVersion": "0.4.0", "name": "testbed", "plugins": [bridge]}

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "resolvConf": "",
            "clusterDNS": [HUB],
            "clusterDomain": DOMAIN,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            "healthzPort": 0,
        }


def _container_spec() -> dict[str, object]:
    """What every container begins with: containerd's own default, and folders of the machine."""
    made = subprocess.run(["ctr", "oci", "spec"], check=True, capture_output=True, timeout=30)
    spec: dict[str, list[object]] = json.loads(made.stdout)
    spec["mounts"] += [
        {"destination": inside, "type": "bind", "source": outside, "options": ["rbind", "ro"]}
        for inside, outside in shared_folders().items()
    ]
    return dict(spec)


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True, timeout=10)
