"""What a fork server imports while it runs: trainers that are forked later find it, and nothing else of it."""

from __future__ import annotations

import os

from waiting import wait_until

from deadpool.control.trainers.fork_client import request, start_fork_server

TELLS = "import os\nwith open({path!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"


def test_a_module_is_imported_only_where_it_leaves_no_trace(tmp_path):
    """Each module writes the process that imports it: a child tries it first."""
    more = {
        "fine": "",
        "threads": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    }
    more["broken"] = "raise ValueError"
    for name, code in more.items():
        (tmp_path / f"{name}.py").write_text(TELLS.format(path=str(tmp_path / f"{name}.txt")) + code)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    link, process = start_fork_server(environment)

    def importers(name: str) -> list[int]:
        path = tmp_path / f"{name}.txt"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    try:
        for name in ("threads", "broken", "fine"):
            request(link, "import", [name])
        wait_until(lambda: len(importers("fine")) == 2, "both imports")
        assert importers("fine")[1] == process.pid != importers("fine")[0]
        assert [len(importers(name)) for name in ("threads", "broken")] == [1, 1]
        assert process.poll() is None
    finally:
        link.close()
        process.wait(60)
