"""Files of compiled code: what a node offers, what another takes, and what it never does to its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from deadpool.control.compilation.code_files import CodeFiles, CodeLost, machine_kind
from deadpool.host.code_folders import code_folders, is_name, name_of, own_variables
from deadpool.protocol.messages import CHUNK_BYTES, CodeFile

CODE = {"0/ab/cab.py": b"python", "0/fxgraph/gz/fgz/7mj": os.urandom(CHUNK_BYTES + 5), "1/KEY/kernel.cubin": b"device"}
NATIVE = {"0/lv/clv.main.so": b"machine"}


def node(
    folder: Path, files: dict[str, bytes] | None = None, *, machine: str = "arm", limit: int = 1 << 30
) -> CodeFiles:
    folders = (folder / "inductor", folder / "triton")
    for name, content in (files or {}).items():
        path = folders[int(name[0])] / name[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return CodeFiles(folders, machine, limit)


def there(folder: Path) -> dict[str, bytes]:
    found = {}
    for number, inside in enumerate(("inductor", "triton")):
        for path in (folder / inside).rglob("*"):
            if path.is_file():
                found[f"{number}/{path.relative_to(folder / inside)}"] = path.read_bytes()
    return found


def fetch(source: CodeFiles, target: CodeFiles, file: CodeFile) -> None:
    offset = 0
    while offset < file.size:
        offset = target.write(file, offset, source.read(file.name, offset))


def test_a_spare_has_what_a_live_rank_has_used(tmp_path):
    source, target = node(tmp_path / "a", {**CODE, **NATIVE}), node(tmp_path / "b")
    _, files = source.index([*CODE, *NATIVE, "0/never/written"])
    missing, refused = target.find_missing(files, "arm")
    assert {file.name for file in missing} == {*CODE, *NATIVE} and not refused
    for file in missing:
        fetch(source, target, file)
    assert there(tmp_path / "b") == {**CODE, **NATIVE}
    assert target.find_missing(files, "arm") == ((), "")
    assert (tmp_path / "b" / "inductor" / "ab" / "cab.py").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "b" / "inductor").stat().st_mode & 0o777 == 0o700


def test_nodes_with_the_same_code_offer_the_same(tmp_path):
    one, other = node(tmp_path / "a", CODE), node(tmp_path / "b", CODE)
    assert one.index(list(CODE)) == other.index(list(reversed(CODE)))
    (tmp_path / "b" / "inductor" / "ab" / "cab.py").write_bytes(b"another")
    assert one.index(list(CODE))[0] != other.index(list(CODE))[0]


def test_machine_code_of_another_kind_of_processor_is_not_taken(tmp_path):
    _, files = node(tmp_path / "a", {**CODE, **NATIVE}).index([*CODE, *NATIVE])
    missing, _ = node(tmp_path / "b", machine="x86").find_missing(files, "arm")
    assert {file.name for file in missing} == set(CODE)
    assert machine_kind() == machine_kind() and machine_kind(tmp_path / "cpuinfo") != machine_kind()


def test_what_is_there_is_never_written_over(tmp_path):
    source, target = node(tmp_path / "a", CODE), node(tmp_path / "b")
    _, (file, *_) = source.index(["0/ab/cab.py"])
    node(tmp_path / "b", {"0/ab/cab.py": b"own"})  # compiled while the file was on its way
    fetch(source, target, file)
    assert there(tmp_path / "b") == {"0/ab/cab.py": b"own"}


def test_a_damaged_file_gets_no_name(tmp_path):
    source, target = node(tmp_path / "a", CODE), node(tmp_path / "b")
    _, files = source.index(list(CODE))
    for file in files:
        with pytest.raises(CodeLost, match="as it was listed"):
            fetch(source, target, replace(file, digest=b"another"))
    for data in (b"", b"longer than it was listed"):
        with pytest.raises(CodeLost):
            target.write(files[0], 0, data)
    assert there(tmp_path / "b") == {}


def test_no_more_is_taken_than_was_allowed(tmp_path):
    _, files = node(tmp_path / "a", CODE).index(list(CODE))
    target = node(tmp_path / "b", limit=100)
    missing, refused = target.find_missing(files, "arm")
    assert {file.name for file in missing} == {"0/ab/cab.py", "1/KEY/kernel.cubin"}
    assert refused == "1 files are over --compiled-mb"
    assert node(tmp_path / "c", limit=0).find_missing(files, "arm") == ((), "3 files are over --compiled-mb")


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    _, files = node(tmp_path / "a", CODE).index(list(CODE))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "inductor").write_text("a file")
    missing, refused = node(tmp_path / "b").find_missing(files, "arm")
    assert missing == () and "inductor cannot be used" in refused


def test_only_what_was_listed_is_read(tmp_path):
    source = node(tmp_path / "a", CODE)
    assert source.read("0/ab/cab.py", 0) == b""
    source.index(["0/ab/cab.py"])
    assert source.read("0/ab/cab.py", 0) == b"python" and source.read("1/KEY/kernel.cubin", 0) == b""
    (tmp_path / "a" / "inductor" / "ab" / "cab.py").unlink()
    (tmp_path / "a" / "inductor" / "ab" / "cab.py").symlink_to("/etc/hostname")
    assert source.read("0/ab/cab.py", 0) == b"" and source.index(["0/ab/cab.py"])[1] == ()


@pytest.mark.parametrize(
    "name",
    [
        *("0/../../etc/passwd", "0//etc/passwd", "/etc/passwd", "2/a", "0", "0/", "0/a/", "0/.a.tmp", "0/a/.hidden"),
        *("0/locks/a.lock", "0/precompiled_headers/a", "0/dynamo/a", "0/a\n", "0/a b", "0/" + 400 * "a"),
    ],
)
def test_nothing_else_can_be_named(name):
    assert not is_name(name)


def test_folders_are_those_that_torch_and_triton_would_choose(tmp_path):
    assert code_folders({"TORCHINDUCTOR_CACHE_DIR": "/a", "TRITON_CACHE_DIR": "/b"}) == (Path("/a"), Path("/b"))
    assert code_folders({"TRITON_HOME": "/h"})[1] == Path("/h/.triton/cache")
    assert code_folders({"HOME": "/home/x"})[1] == Path("/home/x/.triton/cache")
    assert own_variables("", "n1") == {}
    assert own_variables(f"{tmp_path}/{{node}}", "n1") == {"TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/n1"}
    assert name_of("/a/ab/cab.py", ("/a", "/b")) == "0/ab/cab.py"
    assert name_of("/b/KEY/x", ("/a", "/b")) == "1/KEY/x"
    assert name_of("/a2/x", ("/a", "/b")) is None and name_of("/a/.x.tmp", ("/a", "/b")) is None


def test_the_default_folder_is_torchs_own(monkeypatch):
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    assert str(code_folders({})[0]) == default_cache_dir()
