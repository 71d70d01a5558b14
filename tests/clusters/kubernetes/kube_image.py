"""Images for the testbed, made without a builder: a busybox, and a `deadpool` that runs this checkout.

The interpreter, its packages and the checkout are the machine's own, which its containerd mounts into every container:
an image of them would have gigabytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tarfile
from pathlib import Path

PAUSE, IMAGE = "localhost/deadpool-testbed/pause:1", "registry/deadpool:1"
"""The second name is the one that the documentation uses."""
ROOT = Path(__file__).resolve().parents[3]
BUSYBOX = Path("/bin/busybox")
_APPLETS = ("sh", "sleep", "cat", "ls", "test", "env", "kill", "echo", "tail", "ps")
_PASSWD = "root:x:0:0:root:/root:/bin/sh\ndeadpool:x:1000:1000:deadpool:/run/deadpool:/bin/sh\n"
_ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}


def shared_folders() -> dict[str, str]:
    """Where each container finds the machine's folders that a `deadpool` of this checkout needs."""
    return {"/usr": "/usr", "/lib": "/usr/lib", **{str(path): str(path) for path in _python_folders()}}


def _python_folders() -> list[Path]:
    """Of the interpreter, of each folder with packages, and the checkout. None lies in another."""
    packages = [Path(each).resolve() for each in sys.path if each.endswith("site-packages")]
    venvs = {path.parents[2] for path in packages}
    every = sorted({Path(sys.base_prefix).resolve(), ROOT, Path(sys.prefix).resolve(), *venvs})
    return [path for path in every if not any(other in path.parents for other in every) and path != Path("/usr")]


def write_images(folder: Path) -> list[Path]:
    pause = _archive(folder / "pause.tar", PAUSE, entry=["/bin/busybox", "sleep", "1000000000"])
    return [pause, _archive(folder / "deadpool.tar", f"docker.io/{IMAGE}", entry=["deadpool"])]


def _archive(path: Path, name: str, *, entry: list[str]) -> Path:
    layer = _layer()
    digest = hashlib.sha256(layer).hexdigest()
    variables = [
        f"PATH=/bin:{sys.prefix}/bin:/usr/local/bin:/usr/bin",
        f"PYTHONPATH={ROOT / 'src'}",
        "OMP_NUM_THREADS=1",
    ]
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": entry, "Env": variables},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    text = json.dumps(config).encode()
    own = f"{hashlib.sha256(text).hexdigest()}.json"
    index = [{"Config": own, "RepoTags": [name], "Layers": [f"{digest}.tar"]}]
    with tarfile.open(path, "w") as archive:
        for member, data in ((f"{digest}.tar", layer), (own, text), ("manifest.json", json.dumps(index).encode())):
            _add(archive, member, data)
    return path


def _layer() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in ("bin", "etc", "dev", "proc", "sys", "usr", "lib", "run", "run/deadpool", "var", "etc/deadpool"):
            _add_folder(archive, folder, 0o755)
        _add_folder(archive, "tmp", 0o1777)
        _add(archive, "bin/busybox", BUSYBOX.read_bytes(), 0o755)
        for applet in _APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        _add(archive, "etc/passwd", _PASSWD.encode())
        _add(archive, "bin/deadpool", _LAUNCHER.encode(), 0o755)
    return buffer.getvalue()


_LAUNCHER = f'#!/bin/sh\nexec {sys.prefix}/bin/python -m deadpool.cli.main "$@"\n'


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _add_folder(archive: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    archive.addfile(entry)
