"""Where torch.compile and Triton keep what they have compiled on this node.

Two folders: inductor's, in which it keeps Triton's code too, and Triton's own, for kernels that a script compiles
itself. Variables that the user has set count, so a second run of a job finds what the first has compiled.
"""

from __future__ import annotations

import getpass
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

INDUCTOR_VARIABLE, TRITON_VARIABLE, TRITON_HOME_VARIABLE = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME"

_NAME = re.compile(r"[01](/[\w+=-][\w.+=-]*)+", re.ASCII)
_NAME_AT_MOST = 400
_NOT_CODE = ("locks", "__pycache__", "precompiled_headers", "dynamo")
"""Locks; what an interpreter and a compiler make for themselves; and guesses at sizes, which would change what is
compiled."""


def own_variables(folder: str, node: str) -> dict[str, str]:
    """What a node's trainers get where the user has chosen a folder for this code."""
    if not folder:
        return {}
    chosen = os.path.abspath(folder.replace("{node}", node))  # noqa: PTH100 (links stay)
    return {INDUCTOR_VARIABLE: chosen}


def code_folders(environment: Mapping[str, str]) -> tuple[Path, Path]:
    """Inductor's folder and Triton's, as both would choose them in this environment."""
    inductor = environment.get(INDUCTOR_VARIABLE) or f"{tempfile.gettempdir()}/torchinductor_{_user()}"
    home = environment.get(TRITON_HOME_VARIABLE) or environment.get("HOME") or "~"
    triton = environment.get(TRITON_VARIABLE) or f"{home}/.triton/cache"
    return Path(os.path.abspath(inductor)), Path(os.path.abspath(triton))  # noqa: PTH100


def _user() -> str:
    """Returns the user's name as torch writes it."""
    try:
        name = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        name = f"uid_{os.getuid()}"
    return re.sub(r'[\\/:*?"<>|]', "_", name)


def name_of(path: str, folders: Sequence[str]) -> str | None:
    """The name of a file of compiled code; None: it is none."""
    for number, folder in enumerate(folders):
        if path.startswith(folder + os.sep):
            name = f"{number}/{path[len(folder) + 1 :]}"
            return name if is_name(name) else None
    return None


def is_name(name: str) -> bool:
    """Whether a peer may name a file like this. Nothing outside of the folders can be named, and no hidden file: those
    are still being written."""
    if len(name) > _NAME_AT_MOST or _NAME.fullmatch(name) is None:
        return False
    _, *parts = PurePosixPath(name).parts
    return not any(part in _NOT_CODE for part in parts) and not name.endswith((".lock", ".tmp"))


def path_of(name: str, folders: Sequence[Path]) -> Path:
    assert is_name(name), name
    number, _, inside = name.partition("/")
    return folders[int(number)] / inside
