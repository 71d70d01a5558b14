"""`deadpool durable salvage`: read the copies that a job left on disk when it could not go on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def salvage(
    folders: Annotated[list[Path], typer.Argument(help="the folders that the job named when it ended")],
    out: Annotated[
        Path | None, typer.Option(help="folder for one file per rank that torch.load(..., weights_only=True) reads")
    ] = None,
) -> None:
    """List the copies that nodes kept of a job that could not go on, check them, and write them as plain tensors."""
    from deadpool.snapshot.record.salvage_reader import read_folder

    for rank, kept in sorted(read_folder(*folders).items()):
        size = sum(tensor.nbytes for tensor in kept.tensors.values())
        missing = f", without {', '.join(kept.missing)}" if kept.missing else ""
        print(f"rank {rank}: {kept.step} completed steps, {len(kept.tensors)} tensors, {size / 1e6:.1f} MB{missing}")
        if out is not None:
            kept.save(out)
