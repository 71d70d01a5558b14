"""The data plane's part in compiled code: a thread that gives way to all others reads, hashes and writes files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from deadpool.control.compilation.code_files import CodeFiles, CodeLost, machine_kind
from deadpool.control.shells import DataPlaneAccess, DataShell, FeatureShell
from deadpool.host.code_folders import code_folders
from deadpool.protocol.effects import FeatureEffect, FindMissingCode, IndexCode, ReadCode, WriteCode
from deadpool.protocol.inputs import CodeIndexed, CodeMissing, CodeRead, CodeWritten, FeatureInput
from deadpool.protocol.messages import Settings

_NICE = 10


class CompiledCode(DataShell):
    def __init__(self, access: DataPlaneAccess) -> None:
        self._access = access
        self._files = CodeFiles(code_folders(os.environ), machine_kind())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="code", initializer=_give_way)

    def use(self, settings: Settings) -> None:
        self._files.limit_bytes = settings.compiled_mb * 1_000_000

    def perform(self, effect: FeatureEffect) -> bool:
        match effect:
            case IndexCode():
                self._do(lambda: self._index(effect))
            case FindMissingCode():
                self._do(lambda: self._find_missing(effect))
            case ReadCode(ask=ask):
                self._do(lambda: CodeRead(ask=ask, data=self._files.read(ask.name, ask.offset)))
            case WriteCode():
                self._do(lambda: self._write(effect))
            case _:
                return False
        return True

    def _do(self, work: Callable[[], FeatureInput]) -> None:
        self._thread.submit(lambda: self._access.deliver(work()))

    def _index(self, effect: IndexCode) -> FeatureInput:
        digest, files = self._files.index(effect.names)
        return CodeIndexed(digest=digest, machine=self._files.machine, files=files)

    def _find_missing(self, effect: FindMissingCode) -> FeatureInput:
        files, refused = self._files.find_missing(effect.files, effect.machine)
        return CodeMissing(digest=effect.digest, files=files, refused=refused)

    def _write(self, effect: WriteCode) -> FeatureInput:
        try:
            end, failure = self._files.write(effect.file, effect.offset, effect.data), ""
        except CodeLost as error:
            end, failure = effect.offset, str(error)
        return CodeWritten(digest=effect.digest, name=effect.file.name, end=end, failure=failure)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


def _give_way() -> None:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))


SHELL = FeatureShell(data=CompiledCode)
