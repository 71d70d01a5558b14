"""What torch.compile and Triton have compiled: live ranks' nodes offer it, and spares fetch what they lack.

Everything passes through the coordinator, a chunk at a time: a spare asks for the next one when it has written the one
before. A file is named by its folder's number and its path in there, and is never written over.
"""

from __future__ import annotations

from deadpool.protocol.identity import FeatureMessage, Value

CHUNK_BYTES = 1 << 20


class CodeFile(Value, frozen=True, kw_only=True):
    name: str
    size: int
    digest: bytes


class UsesCode(FeatureMessage, frozen=True, kw_only=True):
    """A trainer has read or written these files of compiled code, and has not named them before."""

    names: tuple[str, ...]


class CodeOffered(FeatureMessage, frozen=True, kw_only=True):
    """The node's ranks use this compiled code. The coordinator passes it on to spares."""

    node: str
    digest: bytes  # of the list of files: nodes whose ranks do the same have the same
    machine: str  # the kind of processors that machine code was made for
    count: int
    size: int


class AskCode(FeatureMessage, frozen=True, kw_only=True):
    """A spare wants the list of files, or a chunk of one of them."""

    node: str  # that offered it
    digest: bytes
    name: str = ""  # empty: the list
    offset: int = 0
    asker: str = ""  # written by the coordinator


class CodeList(FeatureMessage, frozen=True, kw_only=True):
    """Empty: the node has another list by now, or is gone."""

    asker: str
    digest: bytes
    files: tuple[CodeFile, ...]


class CodeChunk(FeatureMessage, frozen=True, kw_only=True):
    """Empty: the file is gone, or ends there."""

    asker: str
    digest: bytes
    name: str
    offset: int
    data: bytes
