"""Whether the job can write where it will have to, and whether its secret is one that DeadPool reads."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from deadpool.doctor.finding import Facts, Finding
from deadpool.host.owner_only import open_private
from deadpool.wire.secret import UnusableSecret, read_secret, secret_is_given

_LEAST_FREE_BYTES = 100 << 20
_TRIED_BYTES = 1 << 16
_ADVICE = {
    errno.EROFS: "mount it for writing, or give another --run-dir",
    errno.EACCES: "give its folder to the user of the job, or give another --run-dir",
    errno.EPERM: "give its folder to the user of the job, or give another --run-dir",
    errno.ENOSPC: "free some space or inodes, or give another --run-dir",
    errno.EDQUOT: "free some of your quota, or give another --run-dir",
    errno.ESTALE: "mount the file system again: its server has forgotten this mount",
    errno.ENOTDIR: "it is a file: give another --run-dir",
}


def check_folder(run_dir: Path) -> tuple[Facts, list[Finding]]:
    """Where the folder does not exist yet, the nearest one above it that does has to take it."""
    folder = run_dir.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        _try_writing(folder)
        figures = os.statvfs(folder)
    except OSError as error:
        what = f"{folder} cannot be written to: {error.strerror}"
        do = _ADVICE.get(error.errno or 0, "repair it, or give another --run-dir")
        return {}, [Finding(check="run folder", what=what, do=do)]
    free = figures.f_bavail * figures.f_frsize
    facts: Facts = {"run_folder": str(folder), "run_folder_free_bytes": free}
    if free < _LEAST_FREE_BYTES:
        what = f"{folder} has {free / 2**20:.0f} MiB free: logs and events of a long job need more"
        return facts, [Finding(check="run folder", what=what, do=_ADVICE[errno.ENOSPC])]
    return facts, []


def check_secret() -> tuple[Facts, list[Finding]]:
    if not secret_is_given():
        return {}, []
    try:
        read_secret()
    except UnusableSecret as error:
        return {}, [Finding(check="secret", what=error.found, do=error.cure)]
    return {}, []


def _try_writing(folder: Path) -> None:
    """Writes until the bytes are on the disk: a full or broken file system may tell only then."""
    trial = folder / f".deadpool-doctor-{secrets.token_hex(6)}"
    try:
        with open_private(trial, "wb") as file:
            file.write(secrets.token_bytes(_TRIED_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        trial.unlink(missing_ok=True)
