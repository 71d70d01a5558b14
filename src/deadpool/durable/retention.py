"""Which checkpoints stay: the newest `keep_last`, and every one whose step is a multiple of `keep_every`. No torch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from deadpool.durable.manifest import Manifest, complete_ones
from deadpool.durable.store import Store

PREFIX = "step-"


def superfluous(manifests: Sequence[Manifest], keep_last: int, keep_every: int) -> list[str]:
    """`manifests` are newest first. The newest one always stays. keep_last 0: all stay."""
    if keep_last == 0:
        return []
    older = manifests[max(1, keep_last) :]
    return [each.name for each in older if not (keep_every and each.step % keep_every == 0)]


def torn(store: Store, manifests: Sequence[Manifest], before: int) -> list[str]:
    """Folders of writes that were cut off, below this step: nobody completes them any more."""
    complete = {manifest.name for manifest in manifests}
    names = [name for name in store.folders() if name.startswith(PREFIX) and name not in complete]
    return [name for name in names if (step := step_of(name)) is not None and step < before]


def step_of(name: str) -> int | None:
    digits = name.removeprefix(PREFIX).partition("-")[0]
    return int(digits) if digits.isdigit() else None


def discard_old(store: Store, keep_last: int, keep_every: int, *, newest: Manifest) -> list[str]:
    """What cannot be deleted now is tried again the next time: it is in nobody's way."""
    manifests = complete_ones(store)
    names = [*superfluous(manifests, keep_last, keep_every), *torn(store, manifests, newest.step)]
    gone = []
    for name in names:
        if name != newest.name:
            with contextlib.suppress(OSError):
                store.delete(name)
                gone.append(name)
    return gone
