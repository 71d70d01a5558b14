"""Where checkpoints are kept: a directory, or whatever fsspec reaches (s3://, gs://, ...). Owns how a file is written.

In a directory a file is written under another name, synced, and renamed, so a file with its final name is whole. An
object store shows an object only when it is complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from deadpool.errors import ConfigError


class Store(Protocol):
    """Paths are relative, with slashes. Errors of the storage are OSErrors."""

    def writing(self, path: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """The file exists when the block ends without an error."""

    def read(self, path: str) -> bytes:
        """FileNotFoundError: there is no such file."""

    def open(self, path: str) -> BinaryIO: ...

    def folders(self) -> list[str]:
        """Names at the top, sorted."""

    def sizes(self, folder: str, paths: Iterable[str]) -> dict[str, int]:
        """Returns the sizes of those of these files that are there; paths are relative to the folder."""

    def delete(self, folder: str) -> None: ...


def open_store(where: str) -> Store:
    """Raises ConfigError where a URL needs a package that is missing."""
    scheme, separator, rest = where.partition("://")
    if not separator or scheme == "file":
        return DirectoryStore(Path(rest if separator else where))
    return FsspecStore(where)


def absolute(where: str) -> str:
    """Agents have other working directories than the process that was given `where`."""
    return where if "://" in where else str(Path(where).absolute())


class DirectoryStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}.draft")
        try:
            with draft.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        _sync_folder(target.parent)

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def open(self, path: str) -> BinaryIO:
        return (self._root / path).open("rb")

    def folders(self) -> list[str]:
        if not self._root.is_dir():
            return []
        return sorted(each.name for each in self._root.iterdir() if each.is_dir())

    def sizes(self, folder: str, paths: Iterable[str]) -> dict[str, int]:
        """Asks for each by its name: a network file system may list a folder as it was some seconds ago."""
        found = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                found[path] = (self._root / folder / path).stat().st_size
        return found

    def delete(self, folder: str) -> None:
        shutil.rmtree(self._root / folder)


class FsspecStore:
    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(f"durable={url!r} needs fsspec: pip install 'torch-deadpool[durable]'") from error
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"durable={url!r} cannot be used: {error}; install what it names, or give a directory"
            ) from error

    @contextlib.contextmanager
    def writing(self, path: str) -> Iterator[BinaryIO]:
        with self._errors():
            file: Any = self._fs.open(self._at(path), "wb")
            try:
                yield cast(BinaryIO, file)
            except BaseException:
                with contextlib.suppress(Exception):
                    file.discard()
                    file.closed = True  # otherwise the collection of the object would publish what was written so far
                raise
            file.close()

    def read(self, path: str) -> bytes:
        with self._errors():
            return cast(bytes, self._fs.cat_file(self._at(path)))

    def open(self, path: str) -> BinaryIO:
        with self._errors():
            return cast(BinaryIO, self._fs.open(self._at(path), "rb"))

    def folders(self) -> list[str]:
        with self._errors():
            try:
                found = self._fs.ls(self._root, detail=True, refresh=True)
            except FileNotFoundError:
                return []
            except TypeError:  # a file system without a listings cache
                found = self._fs.ls(self._root, detail=True)
        return sorted(each["name"].rstrip("/").rpartition("/")[2] for each in found if each["type"] == "directory")

    def sizes(self, folder: str, paths: Iterable[str]) -> dict[str, int]:
        """Lists the folder: a request to an object store takes long, and this way it tells of a thousand files."""
        with self._errors():
            listed = self._fs.find(self._at(folder), detail=True)
        found = {path: listed.get(self._at(f"{folder}/{path}")) for path in paths}
        return {path: int(facts["size"]) for path, facts in found.items() if facts is not None}

    def delete(self, folder: str) -> None:
        with self._errors():
            self._fs.rm(self._at(folder), recursive=True)

    def _at(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Libraries of object stores raise errors of their own kinds."""
        try:
            yield
        except (OSError, ConfigError):
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


def _sync_folder(folder: Path) -> None:
    """Syncs the folder so that the new name survives a crash. Some file systems cannot do it for folders."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
