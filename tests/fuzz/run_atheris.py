"""The same targets under atheris: coverage guides what is tried next. Called by scripts/fuzz, one target at a time."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["deadpool", "targets"]):
    from targets import SEEDS, TARGETS


def main() -> None:
    name, corpus, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{index}").write_bytes(seed)
    atheris.Setup([sys.argv[0], str(corpus), f"-max_total_time={seconds}", "-max_len=4096"], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
