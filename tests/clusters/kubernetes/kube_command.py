"""`scripts/testbed kubernetes up|down|enter|...`: one cluster that stays until `down`, or for two hours."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kube_cluster import ROOT, Cluster, why_not

FOLDER = Path("/tmp") / f"kube-testbed-{ROOT.stat().st_ino}"
LIFETIME_S = 7200
_USAGE = "usage: scripts/testbed kubernetes build|up [NODES]|down|enter [COMMAND...]|kill|start|cut|mend NODE|test"


def main(words: list[str]) -> int:
    match words:
        case ["up", *count] if len(count) < 2:
            return _up(int(count[0]) if count else 5)
        case ["down"]:
            if FOLDER.exists():
                Cluster(FOLDER).down()
            return 0
        case ["enter", *command]:
            cluster = Cluster(FOLDER)
            program = cluster.inside(*(command or [os.environ.get("SHELL", "bash")]))
            os.execvpe(program[0], program, cluster.environment())
        case ["kill" | "start" | "cut" | "mend" as action, node]:
            Cluster(FOLDER).ask(action, node)
            return 0
    print(_USAGE, file=sys.stderr)
    return 2


def _up(count: int) -> int:
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 1
    if (FOLDER / "ready.json").exists():
        print(f"it is up already, in {FOLDER}", file=sys.stderr)
        return 1
    cluster = Cluster.start(count, lifetime_s=LIFETIME_S, detached=True, folder=FOLDER)
    print(f"{count} nodes are ready; scripts/testbed kubernetes enter kubectl get nodes")
    print(f"logs: {cluster.folder}; it ends with scripts/testbed kubernetes down, or after {LIFETIME_S // 3600} hours")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
