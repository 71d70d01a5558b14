"""Images for the testbed, made without a builder: a busybox, and a `deadpool` that runs this checkout.

The interpreter, its packages and the checkout themselves come into pods as volumes of the machine: an image of them
would have gigabytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import sys
import tarfile
from pathlib import Path

PAUSE, IMAGE = "localhost/deadpool-testbed/pause:1", "localhost/deadpool-testbed/deadpool:1"
ROOT = Path(__file__).resolve().parents[3]
BUSYBOX = Path("/bin/busybox")
_APPLETS = ("sh", "sleep", "cat", "ls", "test", "env", "kill", "echo", "tail", "ps")
_PASSWD = "root:x:0:0:root:/root:/bin/sh\ndeadpool:x:1000:1000:deadpool:/run/deadpool:/bin/sh\n"
_ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}


def machine_volumes(*writable: Path) -> dict[str, list[dict[str, object]]]:
    """The fields `volumes` and `volumeMounts` of a job whose pods run this checkout."""
    folders = {Path("/usr"): "/usr", Path("/lib"): "/usr/lib"}
    folders |= {path: str(path) for path in _python_folders()}
    volumes, mounts = [], []
    for index, (inside, outside) in enumerate([*folders.items(), *((path, str(path)) for path in writable)]):
        volumes.append({"name": f"machine-{index}", "hostPath": {"path": outside}})
        mounts.append({"name": f"machine-{index}", "mountPath": str(inside), "readOnly": inside not in writable})
    return {"volumes": volumes, "volumeMounts": mounts}


def _python_folders() -> list[Path]:
    """Of the interpreter, of each folder with packages, and the checkout. None lies in another."""
    packages = [Path(each).resolve() for each in sys.path if each.endswith("site-packages")]
    venvs = {path.parents[2] for path in packages}
    every = sorted({Path(sys.base_prefix).resolve(), ROOT, Path(sys.prefix).resolve(), *venvs})
    return [path for path in every if not any(other in path.parents for other in every) and path != Path("/usr")]


def write_images(folder: Path) -> list[Path]:
    pause = _archive(folder / "pause.tar", PAUSE, entry=["/bin/busybox", "sleep", "1000000000"])
    return [pause, _archive(folder / "deadpool.tar", IMAGE, entry=["deadpool"])]


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
