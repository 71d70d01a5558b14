"""Writes the tensors of one object of a checkpoint as safetensors files, with the names that the object itself gives.

The result is what readers of Hugging Face models expect: `model.safetensors`, or several files and an index. Tensors
are put together from the shards that ranks wrote, without a process group and without the script. One file's tensors
are in memory at a time.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from deadpool.durable.manifest import Manifest, complete_ones
from deadpool.durable.metadata import Written, tensors_by_name
from deadpool.durable.rate import CHUNK_BYTES
from deadpool.durable.shards import TensorShard, decode_part, part_path
from deadpool.durable.store import Store
from deadpool.errors import ConfigError, StateError
from deadpool.snapshot.arena.checksums import digest_region
from deadpool.snapshot.record.tensors import dtype_from_name

INDEX = "model.safetensors.index.json"
OF_RANK = "@rank"  # in the name of a tensor that differs between ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A whole tensor, in shards that together cover it."""

    name: str  # without the keyword
    kind: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    shards: tuple[tuple[str, TensorShard], ...]  # with the file that has it

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    manifest: Manifest
    prefix: str
    files: tuple[str, ...]
    tensor_count: int
    total_bytes: int
    of_ranks: tuple[str, ...]  # names that still tell of which rank the tensor is
    left_out: tuple[str, ...]  # buffers of other ranks


def export(
    store: Store, out: Path, *, name: str | None, prefix: str | None, shard_bytes: int, force: bool = False
) -> Exported:
    """name None: the newest complete checkpoint. prefix None: the only module in it. ConfigError: it is not clear
    which, or files are there already. StateError: the checkpoint is damaged."""
    _require_package()
    old = _old_files(out)
    if old and not force:
        raise ConfigError(f"{out} has {old[0].name} already: give another --out, or --force to replace it")
    manifest = _choose(store, name)
    stored = _stored_tensors(store, manifest)
    prefix = _only_module(stored, manifest) if prefix is None else prefix
    tensors, left_out = _without_buffers_of_other_ranks(_below(stored, prefix, manifest))
    _require_types(tensors)
    contents = _cut(tensors, shard_bytes)
    names = _file_names(len(contents))
    with _drafts(out) as drafts:
        for file, content in zip(names, contents, strict=True):
            _write_file(store, manifest.name, content, drafts.path(file))
        if len(contents) > 1:
            drafts.path(INDEX).write_text(_index(names, contents))
        drafts.publish(old)
    return Exported(
        manifest=manifest,
        prefix=prefix,
        files=tuple(names),
        tensor_count=len(tensors),
        total_bytes=sum(tensor.nbytes for tensor in tensors),
        of_ranks=tuple(tensor.name for tensor in tensors if OF_RANK in tensor.name),
        left_out=left_out,
    )


def _require_package() -> None:
    try:
        import safetensors.torch  # noqa: F401
    except ImportError as error:
        raise ConfigError("an export needs safetensors: pip install 'torch-deadpool[durable]'") from error


# --- what is written --------------------------------------------------------------------------------------------------


def _choose(store: Store, name: str | None) -> Manifest:
    complete = complete_ones(store)
    found = next((each for each in complete if name in (None, each.name)), None)
    if found is None:
        known = (
            f"give one of {', '.join(each.name for each in complete)}"
            if complete
            else "give what the job has as --durable"
        )
        raise ConfigError(f"there is no complete checkpoint{f' {name}' if name else ''} there: {known}")
    return found


def _stored_tensors(store: Store, manifest: Manifest) -> dict[str, StoredTensor]:
    """Reads what is stored of each tensor, by the name in the checkpoint."""
    parts = [decode_part(store.read(f"{manifest.name}/{part_path(copy.seal.rank)}")) for copy in manifest.copies]
    return {name: _stored_tensor(name, written) for name, written in tensors_by_name(parts)}


def _stored_tensor(name: str, written: Sequence[Written]) -> StoredTensor:
    shards = {shard.start: (part.file, shard) for part, shard in reversed(written)}
    first = written[0][1]
    if sum(math.prod(shard.shape) for _, shard in shards.values()) != math.prod(first.whole):
        raise StateError(f"the shards of {name} do not cover it")
    return StoredTensor(
        name=name,
        kind=first.kind,
        dtype=dtype_from_name(first.dtype),
        shape=first.whole,
        shards=tuple(shards.values()),
    )


def _only_module(stored: dict[str, StoredTensor], manifest: Manifest) -> str:
    """An optimizer may have parameters of its own, but it has state too."""
    keywords: dict[str, set[str]] = {}
    for name, tensor in stored.items():
        keywords.setdefault(name.partition(".")[0], set()).add(tensor.kind)
    modules = sorted(keyword for keyword, kinds in keywords.items() if "state" not in kinds)
    if len(modules) != 1:
        which = " or ".join(f"--prefix {keyword}" for keyword in modules or sorted(keywords))
        raise ConfigError(f"{manifest.name} has {len(modules)} modules: give {which or 'another checkpoint'}")
    return modules[0]


def _below(stored: dict[str, StoredTensor], prefix: str, manifest: Manifest) -> list[StoredTensor]:
    found = [
        StoredTensor(
            name=name.removeprefix(f"{prefix}."),
            kind=tensor.kind,
            dtype=tensor.dtype,
            shape=tensor.shape,
            shards=tensor.shards,
        )
        for name, tensor in stored.items()
        if name.startswith(f"{prefix}.")
    ]
    if not found:
        known = ", ".join(sorted({name.partition(".")[0] for name in stored}))
        raise ConfigError(f"--prefix {prefix}: {manifest.name} has no tensor below it, only below {known}")
    return found


def _without_buffers_of_other_ranks(tensors: list[StoredTensor]) -> tuple[list[StoredTensor], tuple[str, ...]]:
    """Where one has the plain name, as the statistics of a BatchNorm: a script that saves on rank 0 has only that."""
    plain = {tensor.name for tensor in tensors}
    left_out = tuple(name for name in sorted(plain) if OF_RANK in name and name.rpartition(OF_RANK)[0] in plain)
    return [tensor for tensor in tensors if tensor.name not in left_out], left_out


def _require_types(tensors: list[StoredTensor]) -> None:
    """Checks the types before anything is written. The package has no list of the types that the format knows."""
    from safetensors.torch import save

    for dtype, name in {tensor.dtype: tensor.name for tensor in tensors}.items():
        try:
            save({name: torch.empty(0, dtype=dtype)})
        except Exception as error:
            raise ConfigError(
                f"{name} is of {dtype}, which safetensors cannot store: choose another --prefix"
            ) from error


# --- files ------------------------------------------------------------------------------------------------------------


def _cut(tensors: Sequence[StoredTensor], shard_bytes: int) -> list[list[StoredTensor]]:
    """Returns what each file has. A tensor that is larger than a file may be gets a file of its own."""
    contents: list[list[StoredTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if contents[-1] and size + tensor.nbytes > shard_bytes:
            contents.append([])
            size = 0
        contents[-1].append(tensor)
        size += tensor.nbytes
    return contents


def _file_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def _index(names: Sequence[str], contents: Sequence[Sequence[StoredTensor]]) -> str:
    weight_map = {tensor.name: file for file, content in zip(names, contents, strict=True) for tensor in content}
    total = sum(tensor.nbytes for content in contents for tensor in content)
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2, sort_keys=True) + "\n"


def _write_file(store: Store, checkpoint: str, content: Sequence[StoredTensor], path: Path) -> None:
    from safetensors.torch import save_file

    save_file(_read(store, checkpoint, content), path, metadata={"format": "pt"})


def _read(store: Store, checkpoint: str, content: Sequence[StoredTensor]) -> dict[str, Tensor]:
    """Every file is opened once, and read from its beginning to its end."""
    tensors = {tensor.name: torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in content}
    by_file: dict[str, list[tuple[StoredTensor, TensorShard]]] = {}
    for tensor in content:
        for file, shard in tensor.shards:
            if shard.nbytes:
                by_file.setdefault(file, []).append((tensor, shard))
    for file, wanted in sorted(by_file.items()):
        with store.open(f"{checkpoint}/{file}") as stream:
            for tensor, shard in sorted(wanted, key=lambda each: _place(each[1])):
                _read_shard(stream, shard, tensors[tensor.name], f"{checkpoint}/{file}")
    return tensors


def _read_shard(stream: BinaryIO, shard: TensorShard, whole: Tensor, path: str) -> None:
    """A shard that is the whole tensor goes to its place at once; another one goes through memory of its own."""
    is_whole = shard.shape == shard.whole
    local = whole if is_whole else torch.empty(shard.shape, dtype=whole.dtype)
    data = local.reshape(-1).view(torch.uint8).numpy().data
    stream.seek(_place(shard))
    filled = 0
    while filled < len(data) and (chunk := stream.read(min(CHUNK_BYTES, len(data) - filled))):
        data[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    if filled != shard.nbytes or digest_region(data) != shard.digest:
        raise StateError(f"{path}: {shard.name} is not as it was written (see: deadpool durable verify)")
    if not is_whole:
        whole[tuple(slice(at, at + size) for at, size in zip(shard.start, shard.shape, strict=True))].copy_(local)


def _place(shard: TensorShard) -> int:
    assert shard.at is not None
    return shard.at[2]


def _old_files(out: Path) -> list[Path]:
    return sorted([*out.glob("model*.safetensors"), *out.glob(INDEX)])


class _Drafts:
    """Files that get their names when all of them are complete."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._paths: dict[str, Path] = {}

    def path(self, file: str) -> Path:
        return self._paths.setdefault(file, self._out / f".{file}.{os.getpid()}.draft")

    def publish(self, old: Sequence[Path]) -> None:
        """The index comes last, so what it names is there."""
        for draft in self._paths.values():
            _sync(draft)
        for path in old:
            path.unlink()
        for file, draft in self._paths.items():
            draft.replace(self._out / file)
        _sync(self._out)

    def discard(self) -> None:
        for draft in self._paths.values():
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _drafts(out: Path) -> Iterator[_Drafts]:
    out.mkdir(parents=True, exist_ok=True)
    drafts = _Drafts(out)
    try:
        yield drafts
    finally:
        drafts.discard()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
