"""The terminal that the processes of a job print to, which is closed in the middle, as that of a job under `setsid` is.

Whatever they write afterwards fails with EIO. Processes that start later print to another terminal. What was printed is
kept in a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHUNK = 1 << 16


class Terminal:
    def __init__(self, said: Path) -> None:
        """`said` is the file for what is printed. It must not lie on a disk that may be held up: who prints would wait
        for this terminal."""
        self.said = said
        self.number = 0  # counts the terminals that were opened
        self.descriptor = -1  # for whoever is to print here
        self._master = self._closing = -1
        self._reader: threading.Thread | None = None

    def open(self) -> None:
        self.number += 1
        self._master, self.descriptor = os.openpty()
        tty.setraw(self.descriptor)  # lines as they were written
        woken, self._closing = os.pipe()
        self._reader = threading.Thread(
            target=self._read, args=(self._master, woken), name="deadpool-chaos-terminal", daemon=True
        )
        self._reader.start()

    def close(self) -> None:
        """When this returns, everything that was printed before is in the file."""
        os.close(self.descriptor)
        os.close(self._closing)
        assert self._reader is not None
        self._reader.join()

    def replace(self) -> None:
        """Closes it, and opens another one for processes that start from now on."""
        self.close()
        self.open()

    def _read(self, master: int, woken: int) -> None:
        """Reads until it is told to close. What was printed by then is read all the same."""
        with self.said.open("ab", buffering=0) as file:
            is_closing = False
            while not is_closing:
                ready, _, _ = select.select([master, woken], [], [])
                is_closing = woken in ready
                self._drain(master, file.write)
        os.close(master)
        os.close(woken)

    def _drain(self, master: int, write: Any) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has it open any more
            while select.select([master], [], [], 0.0)[0] and (data := os.read(master, _CHUNK)):
                write(data)

    def records(self) -> Iterator[dict[str, Any]]:
        """What was printed as JSON. A line may be cut short where it was closed."""
        for line in self.said.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    yield record
