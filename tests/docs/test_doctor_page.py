"""The commands of the doctor's page, followed literally."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/doctor.md"
PORT = "29499"


def test_commands_for_one_machine_do_what_the_page_says(tmp_path: Path) -> None:
    commands = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(commands) == 2 and PORT in commands[1]
    commands[1] = commands[1].replace(PORT, str(free_port()))  # another check may run on this machine
    command = tmp_path / "bin" / "deadpool"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m deadpool.cli.main "$@"\n')
    command.chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("DEADPOOL_", "SLURM_"))}
    variables["PATH"] = f"{command.parent}:{variables['PATH']}"
    done = [
        subprocess.run(
            ["bash", "-e", "-c", text], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300
        )
        for text in commands
    ]
    assert all(_is_fine(each) for each in done), [each.stdout + each.stderr for each in done]
    assert "1 node examined: nothing found that would stop a job" in " ".join(done[0].stdout.split())
    assert done[1].stdout.count("2 nodes examined") == 1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _is_fine(done: subprocess.CompletedProcess[str]) -> bool:
    """How fast bytes pass from a busy machine to itself is no matter of the page."""
    checks = set(re.findall(r"^│ finding *│ (\w+)", done.stdout, re.MULTILINE))
    return done.returncode == (1 if checks else 0) and checks <= {"bandwidth"}
