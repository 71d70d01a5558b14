"""Optional features enter the core through named seams: how many files of the core still name each of them.

A file counts where an identifier of its code (a name, an attribute, an argument, a class, a function, an import) has a
word of the feature in it; comments, docstrings and texts do not count. Files of the feature's own folders do not count
either. The numbers can only fall: where a change lowers one, it is lowered here too.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_layers import DOCS, ROOT, RUNNING

from deadpool.control.shells import CoordinatorShell, DataShell, JointShell
from deadpool.protocol.agent.copies.joint import JointCopies
from deadpool.protocol.agent.seams import AgentPart
from deadpool.protocol.coordinator.protection.redundancy import Redundancy
from deadpool.protocol.coordinator.recovery.fallback import Fallback
from deadpool.protocol.coordinator.recovery.global_plan import Seats, Vacancies
from deadpool.protocol.coordinator.seams import CoordinatorPart
from deadpool.snapshot.transfer import JointFrames

FEATURES_FOLDER = "protocol/features"
"""What stands here is no part of the core."""


@dataclass(frozen=True, kw_only=True)
class Feature:
    words: str  # an identifier names the feature if one of them stands in it
    files: int  # of the core that name it
    before: int  # as many as there were before there were seams
    folders: tuple[str, ...] = ()  # its own, beside the one in FEATURES_FOLDER
    other_words: str = ""  # in which a word means something else
    other_files: dict[str, str] = field(default_factory=dict)  # files or folders with another meaning, and which


FEATURES = {
    "shrink": Feature(
        words="shrink shrinks shrunk carry carries carried carrier carriers shares",
        files=15,
        before=44,
        folders=("trainer/shares",),
        other_words="carry_out carried_gradients carried_names tell_carried",
        other_files={
            "control/launch/folder_lock.py": "whether a file system shares locks",
            "snapshot": "parts of tensors in lanes; a kernel's flag",
            "trainer/guards": "what a loop carries from step to step",
            "wire": "the connection on which a proof is carried",
        },
    ),
    "adaptation": Feature(
        words="adaptation adaptive evict evicted eviction guarded hazard health ill outlook sign signs",
        files=8,
        before=22,
        other_words="last_sign",
        other_files={
            "control/launch/folder_lock.py": "a sign of life in a file",
            "protocol/coordinator/membership/reachability.py": "a sign that nodes do not reach each other",
            "snapshot/transfer/channel.py": "a block under a lock",
            "wire": "what a key signs",
        },
    ),
    "compilation": Feature(
        words="compilation compiled",
        files=4,
        before=0,
        folders=("control/compilation",),
        other_words="has_compiled",
    ),
    "corruption": Feature(words="corruption", files=2, before=0),
    "leases": Feature(
        words="lease leases leased pool pools parked_work parked_command parked_keeper idle_time",
        files=8,
        before=21,
        other_words="thread_pool dead_pool",
        other_files={
            "backend": "torch's pools of store connections",
            "control/agent/data_plane.py": "threads",
            "snapshot": "threads and channels",
        },
    ),
    "coding": Feature(
        words="coded coding erasure parities parity",
        files=2,
        before=46,
        folders=("control/coding", "snapshot/erasure"),
    ),
    "durable": Feature(
        words="checkpoint checkpoints durable",
        files=11,
        before=38,
        folders=("control/durable",),
        other_files={
            "snapshot": "names of parameters in checkpoints, which are the layout's",
            "trainer/interface.py": "the script's own call",
            "trainer/library_job.py": "the script's own call",
        },
    ),
}


@functools.cache
def names_of(source: str) -> frozenset[str]:
    """Of each file once: every feature asks for them."""
    return frozenset(_names(source))


def _names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchClass(kwd_attrs=names):
                yield from names
            case ast.ImportFrom(module=str(module), names=aliases):
                yield from module.split(".")
                yield from (name for alias in aliases for name in (alias.name, alias.asname or ""))
            case ast.Import(names=aliases):
                yield from (part for alias in aliases for part in alias.name.split("."))
            case _:
                pass


@functools.cache
def words_of(name: str) -> str:
    """`ParkedWorkEnded` and `parked_work_ended` are the same words."""
    return "_".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)).lower()


def naming(feature: Feature, source: str) -> list[str]:
    """The identifiers that name it."""
    found = re.compile(rf"(?<![a-z])({'|'.join(feature.words.split())})(?![a-z])")
    others = re.compile(rf"(?<![a-z])({'|'.join(feature.other_words.split())})(?![a-z])")
    meant = {
        name: others.sub("", words_of(name)) if feature.other_words else words_of(name) for name in names_of(source)
    }
    return sorted(name for name, words in meant.items() if found.search(words))


def files_naming(feature: Feature, root: Path = ROOT) -> dict[str, list[str]]:
    """All of them, and what they name."""
    files = sorted(path for room in RUNNING for path in (root / room).rglob("*.py"))
    found = {path.relative_to(root).as_posix(): naming(feature, path.read_text(encoding="utf-8")) for path in files}
    return {file: names for file, names in found.items() if names}


def core_files_naming(feature: Feature) -> dict[str, list[str]]:
    not_meant = (*feature.folders, *feature.other_files, FEATURES_FOLDER)
    return {file: names for file, names in files_naming(feature).items() if not is_within(file, not_meant)}


def is_within(file: str, places: Iterable[str]) -> bool:
    return any(file == place or file.startswith(f"{place}/") for place in places)


@pytest.mark.parametrize("name", FEATURES)
def test_the_core_names_a_feature_in_no_more_files_than_before(name):
    found = core_files_naming(FEATURES[name])
    assert len(found) == FEATURES[name].files, "\n".join(f"{file}: {' '.join(names)}" for file, names in found.items())


@pytest.mark.parametrize("name", FEATURES)
def test_every_exception_is_needed(name):
    found = files_naming(FEATURES[name])
    assert [place for place in FEATURES[name].other_files if not any(is_within(file, [place]) for file in found)] == []


def test_the_page_has_the_numbers():
    """docs/architecture.md, in the section about optional features."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rows = [f"| {name} | {feature.before} | {feature.files} |" for name, feature in FEATURES.items()]
    assert [row for row in rows if row not in page] == []


SEAMS = (AgentPart, CoordinatorPart, CoordinatorShell, DataShell, Fallback, JointCopies, JointFrames, JointShell)
SEAMS += (Redundancy, Seats, Vacancies)


@pytest.mark.parametrize("seam", SEAMS)
def test_the_page_names_what_a_seam_asks(seam):
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    asked = {name for name in vars(seam) if not name.startswith("_")} - {"nodes", "is_full"}
    assert [name for name in sorted(asked) if f"`{name}`" not in page] == []


def test_an_identifier_is_read_by_its_words():
    feature = Feature(words="lease parked_work", other_words="lease_cost", files=0, before=0)
    source = "def leased(): pass\nParkedWork = take_lease()\nreleased = release\nself.lease_cost = PARKED_WORK"
    assert naming(feature, source) == ["PARKED_WORK", "ParkedWork", "take_lease"]
