"""A node's compiled code: what its ranks use is offered, and what a spare lacks is fetched in the background.

One file after the other, one chunk at a time. A fence does not matter: code belongs to no generation. Whatever fails
is left out, since a process that does not find code compiles it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deadpool.protocol.agent.seams import AgentCore, AgentPart
from deadpool.protocol.agent.trainers.trainers import Trainer, TrainerState
from deadpool.protocol.effects import FindMissingCode, ImportModules, IndexCode, ReadCode, WriteCode
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.inputs import CodeIndexed, CodeMissing, CodeRead, CodeWritten, FeatureInput
from deadpool.protocol.messages import AskCode, CodeChunk, CodeFile, CodeList, CodeOffered, UsesCode

COMPILER = ("torch._functorch.aot_autograd", "torch._inductor.compile_fx")
"""What the first compiled call of a process imports, unless the fork server has."""
SILENT_BEATS = 10
"""The number of heartbeats after which an answer is awaited no longer."""
ATTEMPTS = 3


@dataclass(slots=True)
class _Fetch:
    """One list of files that is being fetched."""

    offer: CodeOffered
    attempt: int
    todo: list[CodeFile] = field(default_factory=list)
    has_list: bool = False
    offset: int = 0  # of the first file
    silent_beats: int = 0
    written: int = 0
    written_bytes: int = 0
    failures: list[str] = field(default_factory=list)


class NodeCode(AgentPart):
    def __init__(self, core: AgentCore) -> None:
        self._state = core.state
        self._names: set[str] = set()  # that this node's ranks have used
        self._indexed: frozenset[str] | None = None  # being indexed, or indexed
        self._is_indexing = False
        self._offer: CodeOffered | None = None  # of this node
        self._files: tuple[CodeFile, ...] = ()
        self._done: set[bytes] = set()
        self._waiting: dict[bytes, tuple[CodeOffered, int]] = {}  # offers of others, and how often they were tried
        self._fetch: _Fetch | None = None
        self._got_files = self._got_bytes = 0
        self._has_compiler = False

    # --- what this node's ranks use -----------------------------------------------------------------------------------

    def on_trainer_message(self, trainer: Trainer, message: FeatureMessage) -> None:
        if isinstance(message, UsesCode) and trainer.state is TrainerState.SEATED:
            self._names.update(message.names)
            self._index()

    def _index(self) -> None:
        names = frozenset(self._names)
        if not self._is_indexing and names != self._indexed:
            self._indexed, self._is_indexing = names, True
            self._state.effects.append(IndexCode(names=tuple(sorted(names))))

    def _on_indexed(self, found: CodeIndexed) -> None:
        self._is_indexing = False
        if found.files and (self._offer is None or self._offer.digest != found.digest):
            self._files = found.files
            size = sum(each.size for each in found.files)
            self._offer = CodeOffered(
                node=self._state.node, digest=found.digest, machine=found.machine, count=len(found.files), size=size
            )
            self._done.add(found.digest)
            self._state.tell_coordinator(self._offer)
        self._index()

    def on_welcome(self) -> None:
        if self._offer is not None:
            self._state.tell_coordinator(self._offer)

    def _on_asked(self, ask: AskCode) -> None:
        is_current = self._offer is not None and self._offer.digest == ask.digest
        if ask.name and is_current:
            self._state.effects.append(ReadCode(ask=ask))
        else:
            files = self._files if is_current else ()
            self._state.tell_coordinator(CodeList(asker=ask.asker, digest=ask.digest, files=files))

    # --- what other nodes offer ---------------------------------------------------------------------------------------

    def on_order(self, order: FeatureMessage) -> None:
        match order:
            case CodeOffered(digest=digest):
                if digest not in self._done and (self._fetch is None or self._fetch.offer.digest != digest):
                    self._waiting[digest] = (order, 1)
                    self._begin_next()
            case AskCode():
                self._on_asked(order)
            case CodeList(digest=digest, files=files):
                if self._fetch is not None and self._fetch.offer.digest == digest:
                    self._on_list(self._fetch, files)
            case CodeChunk():
                self._on_chunk(order)
            case _:
                pass  # another feature's

    def _begin_next(self) -> None:
        if self._fetch is None and self._waiting:
            digest = next(iter(self._waiting))
            offer, attempt = self._waiting.pop(digest)
            self._fetch = _Fetch(offer, attempt)
            self._ask(self._fetch)

    def _ask(self, fetch: _Fetch) -> None:
        fetch.silent_beats = 0
        name, offset = (fetch.todo[0].name, fetch.offset) if fetch.has_list else ("", 0)
        ask = AskCode(node=fetch.offer.node, digest=fetch.offer.digest, name=name, offset=offset)
        self._state.tell_coordinator(ask)

    def _on_list(self, fetch: _Fetch, files: tuple[CodeFile, ...]) -> None:
        if not files:
            self._give_up(fetch)
        elif not fetch.has_list:
            offer = fetch.offer
            self._state.effects.append(FindMissingCode(digest=offer.digest, machine=offer.machine, files=files))

    def _on_missing(self, fetch: _Fetch, missing: CodeMissing) -> None:
        fetch.todo, fetch.has_list = list(missing.files), True
        if missing.refused:
            fetch.failures.append(missing.refused)
        self._go_on(fetch)

    def _go_on(self, fetch: _Fetch) -> None:
        """The next chunk, or the end."""
        if fetch.todo:
            self._ask(fetch)
            return
        self._fetch = None
        self._done.add(fetch.offer.digest)
        self._import_compiler()
        if fetch.written or fetch.failures:
            self._state.emit(
                "compiled_code_fetched",
                source=fetch.offer.node,
                files=fetch.written,
                bytes=fetch.written_bytes,
                skipped="; ".join(fetch.failures[:3]),
            )
        self._begin_next()

    def _import_compiler(self) -> None:
        """The job's script compiles, so a process that is forked later will. A seated node leaves its processors to its
        ranks."""
        if not self._has_compiler and not any(self._state.trainers.seated()):
            self._has_compiler = True
            self._state.effects.append(ImportModules(modules=COMPILER))

    def _on_chunk(self, chunk: CodeChunk) -> None:
        fetch = self._fetch
        if fetch is None or not fetch.todo or fetch.offer.digest != chunk.digest:
            return
        file = fetch.todo[0]
        if (chunk.name, chunk.offset) == (file.name, fetch.offset):
            fetch.silent_beats = 0
            effect = WriteCode(digest=chunk.digest, file=file, offset=chunk.offset, data=chunk.data)
            self._state.effects.append(effect)

    def _on_written(self, fetch: _Fetch, written: CodeWritten) -> None:
        file = fetch.todo[0]
        if written.name != file.name:
            return
        fetch.offset = written.end
        if written.failure or written.end >= file.size:
            fetch.todo.pop(0)
            fetch.offset = 0
            fetch.failures += [written.failure] if written.failure else []
            if not written.failure:
                fetch.written, fetch.written_bytes = fetch.written + 1, fetch.written_bytes + file.size
                self._got_files, self._got_bytes = self._got_files + 1, self._got_bytes + file.size
        self._go_on(fetch)

    def _give_up(self, fetch: _Fetch) -> None:
        """Tries again later: a chunk was lost with a coordinator, or the node with the code. What was written stays."""
        self._fetch = None
        if fetch.attempt < ATTEMPTS:
            self._waiting.setdefault(fetch.offer.digest, (fetch.offer, fetch.attempt + 1))

    def on_heartbeat(self, now: float) -> None:
        if self._fetch is None:
            self._begin_next()
            return
        self._fetch.silent_beats += 1
        if self._fetch.silent_beats >= SILENT_BEATS:
            self._give_up(self._fetch)

    # --- from the data plane ------------------------------------------------------------------------------------------

    def on_input(self, input: FeatureInput, now: float) -> None:
        fetch = self._fetch
        match input:
            case CodeIndexed():
                self._on_indexed(input)
            case CodeRead(ask=ask, data=data):
                chunk = CodeChunk(asker=ask.asker, digest=ask.digest, name=ask.name, offset=ask.offset, data=data)
                self._state.tell_coordinator(chunk)
            case CodeMissing(digest=digest) if fetch is not None and fetch.offer.digest == digest:
                self._on_missing(fetch, input)
            case CodeWritten(digest=digest) if fetch is not None and fetch.offer.digest == digest and fetch.todo:
                self._on_written(fetch, input)
            case _:
                pass  # another feature's, or of a fetch that was given up

    def facts(self) -> dict[str, object]:
        """Status shows how much compiled code this node's ranks use, and what it has from other nodes."""
        if self._offer is None and not self._got_files:
            return {}
        used = self._offer.size if self._offer is not None else 0
        return {"compiled_code": {"used_bytes": used, "fetched_files": self._got_files, "fetched": self._got_bytes}}
