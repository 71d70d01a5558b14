"""Folders and files that are given on the command line: what cannot be used is refused before any work is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from deadpool.errors import ConfigError


def folder_given_as(name: str) -> Callable[[str], Path]:
    """For typer, which takes an empty text for the current folder."""

    def path(text: str) -> Path:
        if not str(text):
            raise ConfigError(
                f"{name} is empty, perhaps from a variable of the shell that is not set: give a folder, or leave it out"
            )
        return Path(text)

    return path


def check_health_root(root: str) -> None:
    """What stands before {node} is a folder here, where each node has its own below it."""
    place = root.partition("{node}")[0] or "."
    if not Path(place).is_dir():
        raise ConfigError(
            f"health_root={root!r} cannot be used: {place} is no folder. Give the one with /proc, /sys and /dev of the "
            "node, as in --health-root /"
        )


def check_output(file: Path | None, name: str) -> None:
    """Checks that a file can be written there, so that a command that works for minutes says so before that. The folder
    may have to be made; None means that no file is wanted."""
    if file is None:
        return
    place = next(each for each in file.absolute().parents if each.exists())
    if file.is_dir():
        reason = "it is a folder"
    elif not place.is_dir():
        reason = f"{place} is a file"
    elif not os.access(file if file.exists() else place, os.W_OK):
        reason = "this user cannot write there"
    else:
        return
    raise ConfigError(f"{name}={str(file)!r} cannot be used: {reason}. Give the path of a file that can be written")


def write_output(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
