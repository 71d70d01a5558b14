"""Which checkpoints exist, for ModelCheckpoint, which gives a file another name if there is one already.

A step that is redone saves again. It has to find what the undisturbed run would find: the files that were there before
that step, and not those that the step wrote before the fault.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint


class CheckpointFiles:
    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._known: list[_KnownFiles] = []

    def begin(self) -> None:
        """Once callbacks know where they save."""
        found = [each for each in self._trainer.callbacks if isinstance(each, ModelCheckpoint)]
        self._known = [_KnownFiles(each) for each in found]

    def state_dict(self) -> list[list[str]]:
        return [sorted(each.names) for each in self._known]

    def load_state_dict(self, state: list[list[str]]) -> None:
        for each, names in zip(self._known, state, strict=False):
            each.names = set(names)


class _KnownFiles:
    """Stands between a ModelCheckpoint and its file system."""

    def __init__(self, callback: Any) -> None:
        self._files, self._save = callback._fs, callback._save_checkpoint
        folder = str(callback.dirpath or "")
        existing = self._files.ls(folder, detail=False) if folder and self._files.exists(folder) else []
        self.names = {PurePath(path).name for path in existing}
        callback._fs, callback._save_checkpoint = self, self._save_and_note

    def exists(self, path: Any, *args: Any, **kwargs: Any) -> bool:
        is_file = PurePath(path).suffix != ""
        return bool(self._files.exists(path, *args, **kwargs)) and (not is_file or PurePath(path).name in self.names)

    def _save_and_note(self, trainer: Any, filepath: str) -> None:
        self._save(trainer, filepath)
        self.names.add(PurePath(filepath).name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)
